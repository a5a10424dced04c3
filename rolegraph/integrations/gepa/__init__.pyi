"""Public names; `__init__.py` reads here where each name comes from."""

from rolegraph.integrations.gepa.optimizing import OptimizationJob as OptimizationJob
from rolegraph.integrations.gepa.optimizing import OptimizationResult as OptimizationResult
from rolegraph.integrations.gepa.optimizing import optimize as optimize
from rolegraph.integrations.gepa.optimizing import optimize_async as optimize_async
from rolegraph.integrations.gepa.page import OptimizationRecord as OptimizationRecord
