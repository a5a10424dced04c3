"""The command `rolegraph`: one file a verb. Importing this imports none of them."""

from rolegraph.cli.main import main

__all__ = ["main"]
