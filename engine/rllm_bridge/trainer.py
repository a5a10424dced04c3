"""rLLM's AgentTrainer, given what a spec says: workflow, datasets, estimators and the grouping hook."""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.models import Services
from engine.rllm_bridge import compile_workflow, grouping_hook
from engine.rllm_bridge.compose import compose
from engine.rllm_bridge.config import Launch
from engine.rllm_bridge.estimators import custom_estimators, estimator_map, hook_reasons
from engine.training.advantages import advantages_of
from engine.training.order import validation_tasks
from engine.vocabulary import Estimator


def trainer(run: Launch, words: Sequence[str], services: Services) -> Any:
    """rLLM's AgentTrainer for a plan, ready to `train()`; `words` compose rLLM's config."""
    from rllm.data import Dataset
    from rllm.trainer.unified_trainer import AgentTrainer

    plan = run.plan
    register(custom_estimators(plan, run.backend))
    hook = {"traj_grouping_hook": grouping_hook(plan)} if hook_reasons(plan, run.backend) else {}
    validation = validation_tasks(plan)
    return AgentTrainer(
        config=compose(words, run.backend),
        workflow_class=compile_workflow(plan),
        # verl makes its workflows in a process of its own, where they open models themselves.
        workflow_args={} if run.backend == "verl" else {"open_model": services.open},
        train_dataset=Dataset(list(plan.data["train"].rows(None)), plan.name, "train"),
        val_dataset=Dataset(validation, plan.name, "validation") if validation else None,
        backend=run.backend,
        traj_group_adv_estimator_map=estimator_map(plan, run.backend),
        **hook,
    )


def register(custom: Mapping[str, Estimator]) -> None:
    """Make estimators of ours known to rLLM, each by its name in the estimator map."""
    if not custom:
        return
    from rllm.trainer.algorithms.advantage import register_rllm_adv_estimator

    for name, estimator in custom.items():
        register_rllm_adv_estimator(name)(as_rllm(estimator, name.rpartition("/")[2]))


def as_rllm(estimator: Estimator, role: str) -> Callable[..., tuple[Any, Any]]:
    """A role's estimator in the signature of rLLM's: advantages and returns, which are the same here."""

    def advantages(
        rewards: Any, algorithm_config: object, *, traj_groups: Any, **_: object
    ) -> tuple[Any, Any]:
        tasks = [str(group.task_id) for group in traj_groups]
        values = advantages_of(estimator, role, rewards, traj_groups, tasks)
        return values, values

    return advantages
