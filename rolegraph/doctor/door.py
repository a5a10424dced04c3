"""Command `doctor`."""

from rolegraph.cli.doors import Door, Verb

DOOR = Door({"doctor": Verb("Run", "Probe what a Tinker service does.", "rolegraph.doctor.command")})
