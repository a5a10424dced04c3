"""A spec to an immutable Plan, or to every fault that stands in the way."""

from rolegraph.engine.compile.compiler import Compiled, Further, check_file, compile_file
from rolegraph.engine.compile.plan import Endpoint, Plan, PolicyPlan, RolePlan, graph
from rolegraph.engine.compile.size import Size, size_of

__all__ = [
    "Compiled",
    "Endpoint",
    "Further",
    "Plan",
    "PolicyPlan",
    "RolePlan",
    "Size",
    "check_file",
    "compile_file",
    "graph",
    "size_of",
]
