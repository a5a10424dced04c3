"""`python -m rolegraph.cli` is `rolegraph`."""

from rolegraph.cli.main import main

main()
