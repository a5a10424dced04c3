"""Command `optimize`."""

from rolegraph.cli.doors import Door, Verb

_LINE = "Evolve the prompts of a spec by reflection."
DOOR = Door({"optimize": Verb("Train", _LINE, "rolegraph.integrations.gepa.command")})
