"""Specs under slime's trainer, for the modules that `rolegraph eject --slime` writes."""

from rolegraph.engine.bridges.slime_rollout import SpecRollout
from rolegraph.starting import load_ejected

__all__ = ["SpecRollout", "load_ejected"]
