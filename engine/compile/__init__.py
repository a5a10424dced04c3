"""A spec to an immutable Plan, or to every fault that stands in the way."""

from rolegraph.engine.compile.compiler import CompileResult, Further, check_file, check_source, compile_file
from rolegraph.engine.compile.plan import Endpoint, Plan, PolicyPlan, RolePlan
from rolegraph.engine.compile.size import EpisodeBounds, size_of
from rolegraph.engine.compile.unroll import graph

__all__ = [
    "CompileResult",
    "Endpoint",
    "EpisodeBounds",
    "Further",
    "Plan",
    "PolicyPlan",
    "RolePlan",
    "check_file",
    "check_source",
    "compile_file",
    "graph",
    "size_of",
]
