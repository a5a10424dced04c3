"""Names of `rolegraph.engine.compile`; `rolegraph.engine.lazily` reads where each comes from."""

from rolegraph.engine.compile.compiler import CompileResult as CompileResult
from rolegraph.engine.compile.compiler import PlanCheck as PlanCheck
from rolegraph.engine.compile.compiler import check_file as check_file
from rolegraph.engine.compile.compiler import check_source as check_source
from rolegraph.engine.compile.compiler import compile_file as compile_file
from rolegraph.engine.compile.compiler import data_findings as data_findings
from rolegraph.engine.compile.compiler import few_tasks_message as few_tasks_message
from rolegraph.engine.compile.compiler import marker_findings as marker_findings
from rolegraph.engine.compile.compiler import shared_message as shared_message
from rolegraph.engine.compile.plan import EpisodeBounds as EpisodeBounds
from rolegraph.engine.compile.plan import Plan as Plan
from rolegraph.engine.compile.plan import size_of as size_of
from rolegraph.engine.compile.role_plan import Endpoint as Endpoint
from rolegraph.engine.compile.role_plan import PolicyPlan as PolicyPlan
from rolegraph.engine.compile.role_plan import RolePlan as RolePlan
