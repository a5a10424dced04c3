"""Specs under slime's trainer, for the modules that `rolegraph eject --slime` writes."""

from rolegraph.ejecting import load_ejected
from rolegraph.engine.bridges.slime_rollout import SpecRollout

__all__ = ["SpecRollout", "load_ejected"]
