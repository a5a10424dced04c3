"""The functions of `rolegraph.integrations.rllm`; each imports rllm when it is called."""

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
    """Compile a spec to the arguments `agent_flow` and `evaluator` of `agent_trainer`.

    rLLM's own AgentTrainer also accepts them, for specs whose roles all have AgentTrainer's estimator and
    loss; for other specs the first episode is refused.

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

    The hook is needed for specs in which one role has only a signal and another has an estimator, because
    rLLM alone does not train them together. Set `rllm.algorithm.use_precomputed_advantage=true` as well.

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
