"""Command `migrate`."""

from rolegraph.cli.doors import Door, Verb

_LINE = "Rewrite files of version 1 of the language in version 2."
DOOR = Door({"migrate": Verb("Author", _LINE, "rolegraph.migrate.command")})
