"""Specs under rLLM: a Workflow class, an AgentFlow, and the grouping hook for its trainers.

Only this package imports rllm, and only when one of its functions is called: `pip install 'rolegraph[rllm]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.integrations.rllm.backends import need_rllm

if TYPE_CHECKING:
    from rolegraph.integrations.rllm.agents import SpecEvaluator, SpecFlow
    from rolegraph.integrations.rllm.grouping import GroupingHook

__all__ = ["compile_agent_flow", "compile_workflow", "grouping_hook"]


def compile_workflow(spec: str | Path | Plan, overrides: Sequence[str] = ()) -> type[Any]:
    """Compile a spec to a class for `AgentTrainer(workflow_class=…)`; the class is pickled as its plan.

    Args:
        spec: Name or path of a spec, or a plan.
        overrides: Overrides of the spec, such as `train.steps=2`.

    Returns:
        A subclass of `rllm.workflows.workflow.Workflow`; `SpecWorkflow` describes its `workflow_args`.

    Raises:
        SpecError: For a faulty spec.
        UsageError: If rLLM is not installed or cannot train the spec, and for overrides of a plan.
    """
    need_rllm()
    from rolegraph.integrations.rllm.workflow import workflow_class

    return workflow_class(_plan(spec, overrides))


def compile_agent_flow(
    spec: str | Path | Plan, overrides: Sequence[str] = ()
) -> tuple[SpecFlow, SpecEvaluator]:
    """Compile a spec to the arguments of `AgentTrainer(agent_flow=…, evaluator=…)`.

    Args:
        spec: Name or path of a spec, or a plan.
        overrides: Overrides of the spec.

    Returns:
        The AgentFlow and its Evaluator.

    Raises:
        SpecError: For a faulty spec.
        UsageError: If rLLM is not installed or its gateway cannot carry the spec, and for overrides of a
            plan.
    """
    need_rllm()
    from rolegraph.integrations.rllm.agents import evaluator, flow

    return flow(_plan(spec, overrides)), evaluator


def grouping_hook(spec: str | Path | Plan, overrides: Sequence[str] = ()) -> GroupingHook:
    """Return a `traj_grouping_hook` for rLLM's synchronous trainers that sets every role's advantages.

    Specs with precomputed and estimated roles need it, because rLLM alone does not train them together; set
    `rllm.algorithm.use_precomputed_advantage=true` beside it.

    Args:
        spec: Name or path of a spec, or a plan.
        overrides: Overrides of the spec.

    Raises:
        SpecError: For a faulty spec.
        UsageError: If rLLM is not installed, and for overrides of a plan.
    """
    need_rllm()
    from rolegraph.integrations.rllm.grouping import GroupingHook

    return GroupingHook(_plan(spec, overrides))


def _plan(spec: str | Path | Plan, overrides: Sequence[str]) -> Plan:
    if not isinstance(spec, Plan):
        return compile_file(spec, overrides)
    if overrides:
        raise UsageError("overrides apply to a spec, not to a compiled plan; compile the spec with them")
    return spec
