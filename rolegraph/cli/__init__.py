"""The command `rolegraph`: one module for each subcommand. Importing this package imports no subcommand."""

from rolegraph.cli.main import main

__all__ = ["main"]
