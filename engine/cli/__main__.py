"""`python -m engine.cli` is `rolegraph`."""

from engine.cli.main import main

main()
