"""Compilation of a spec to an immutable Plan, or to all its faults."""

from rolegraph.engine.compile.compiler import (
    CompileResult,
    PlanCheck,
    check_file,
    check_source,
    compile_file,
)
from rolegraph.engine.compile.plan import Endpoint, Plan, PolicyPlan, RolePlan
from rolegraph.engine.compile.size import EpisodeBounds, size_of
from rolegraph.engine.compile.unroll import graph

__all__ = [
    "CompileResult",
    "Endpoint",
    "EpisodeBounds",
    "Plan",
    "PlanCheck",
    "PolicyPlan",
    "RolePlan",
    "check_file",
    "check_source",
    "compile_file",
    "graph",
    "size_of",
]
