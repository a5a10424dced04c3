"""`python -m rolegraph` is `rolegraph`."""

from rolegraph.cli.main import main

main()
