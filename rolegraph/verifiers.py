"""Specs as environments of verifiers, for the packages that `rolegraph eject --verifiers` writes."""
# verifiers is an extra, so it is missing where types are checked.
# pyright: reportUnknownVariableType=false

from rolegraph.engine.bridges.verifiers_env import RoleHarness, SpecEnv, SpecTaskset, role
from rolegraph.starting import load_ejected

__all__ = ["RoleHarness", "SpecEnv", "SpecTaskset", "load_ejected", "role"]
