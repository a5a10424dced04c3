"""The same spec under rLLM: as a Workflow class or an AgentFlow, and the hook that groups for its trainer.

The only package that imports rllm, and only when one of these is called: `pip install 'rolegraph[rllm]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.rllm_bridge.installed import need_rllm

if TYPE_CHECKING:
    from rolegraph.engine.rllm_bridge.agents import SpecEvaluator, SpecFlow
    from rolegraph.engine.rllm_bridge.grouping import Grouping

__all__ = ["compile_agent_flow", "compile_workflow", "grouping_hook"]


def compile_workflow(spec: str | Path | Plan, overrides: Sequence[str] = ()) -> type[Any]:
    """An `rllm.workflows.workflow.Workflow` class that runs the spec, for `AgentTrainer(workflow_class=…)`.

    The class is pickled as its plan. See `SpecWorkflow` for the `workflow_args` it takes. Raises SpecError,
    and UsageError for what rLLM cannot train.
    """
    need_rllm()
    from rolegraph.engine.rllm_bridge.workflow import workflow_class

    return workflow_class(_plan(spec, overrides))


def compile_agent_flow(
    spec: str | Path | Plan, overrides: Sequence[str] = ()
) -> tuple[SpecFlow, SpecEvaluator]:
    """The spec as rLLM's AgentFlow, with its Evaluator, for `AgentTrainer(agent_flow=…, evaluator=…)`.

    Raises SpecError, and UsageError for what rLLM's gateway cannot carry.
    """
    need_rllm()
    from rolegraph.engine.rllm_bridge.agents import evaluator, flow

    return flow(_plan(spec, overrides)), evaluator


def grouping_hook(spec: str | Path | Plan, overrides: Sequence[str] = ()) -> Grouping:
    """A `traj_grouping_hook` for rLLM's synchronous trainers: our own estimators' advantages for every role.

    Needed where a spec mixes precomputed and estimated roles, which rLLM alone does not train together; set
    `rllm.algorithm.use_precomputed_advantage=true` beside it.
    """
    need_rllm()
    from rolegraph.engine.rllm_bridge.grouping import Grouping

    return Grouping(_plan(spec, overrides))


def _plan(spec: str | Path | Plan, overrides: Sequence[str]) -> Plan:
    if not isinstance(spec, Plan):
        return compile_file(spec, overrides)
    if overrides:
        raise UsageError("overrides change a spec, not a plan; compile it with them")
    return spec
