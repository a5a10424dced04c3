"""`python -m rolegraph.engine.cli` is `rolegraph`."""

from rolegraph.engine.cli.main import main

main()
