"""Command `new`."""

from rolegraph.cli.doors import Door, Verb

_LINE = "Write a workflow of your own into a new folder."
DOOR = Door({"new": Verb("Author", _LINE, "rolegraph.starter.command")})
