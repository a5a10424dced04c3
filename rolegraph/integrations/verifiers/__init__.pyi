"""Public names for ejected packages; `__init__.py` reads here where each name comes from."""

# pyright: reportUnknownVariableType=false

from rolegraph.integrations.verifiers.ejecting import eject_verifiers as eject_verifiers
from rolegraph.integrations.verifiers.ejecting import load_ejected as load_ejected
from rolegraph.integrations.verifiers.env import RoleHarness as RoleHarness
from rolegraph.integrations.verifiers.env import SpecEnv as SpecEnv
from rolegraph.integrations.verifiers.env import SpecTaskset as SpecTaskset
from rolegraph.integrations.verifiers.env import role as role
