"""Command `doctor`."""

from rolegraph.cli.doors import Door, Verb

_LINE = "Probe a Tinker service, or an endpoint of OpenAI's API."
DOOR = Door({"doctor": Verb("Run", _LINE, "rolegraph.doctor.command")})
