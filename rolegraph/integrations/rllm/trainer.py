"""rLLM's AgentTrainer with a plan's workflow, datasets, estimators and grouping hook.

rLLM's own AgentTrainer accepts only its three backends, drops the grouping hook's metrics, and trains every
role with one estimator unless it gets a map. `agent_trainer` has none of these limits.
"""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Services
from rolegraph.engine.training.loop.schedule import validation_tasks
from rolegraph.integrations.rllm.backends import check_version, need_rllm
from rolegraph.integrations.rllm.bridge import compile_workflow, grouping_hook
from rolegraph.integrations.rllm.checks import FlowRun
from rolegraph.integrations.rllm.compose import compose
from rolegraph.integrations.rllm.config import Launch
from rolegraph.integrations.rllm.estimators import estimator_map, hook_reasons
from rolegraph.integrations.rllm.keys import refuse
from rolegraph.integrations.rllm.names import BACKENDS, kind_of
from rolegraph.integrations.rllm.verl_versions import adapt


def trainer(run: Launch, hydra_overrides: Sequence[str], services: Services) -> Any:
    """Return rLLM's AgentTrainer for a run, ready to `train()`.

    Args:
        run: The run.
        hydra_overrides: Overrides that rLLM's config is composed with.
        services: Services that open the models other than the policy.
    """
    from rllm.data import Dataset

    plan = run.plan
    validation = validation_tasks(plan)
    return agent_trainer(
        backend=run.backend_class or run.backend,
        config=compose(hydra_overrides, run.backend),
        workflow_class=compile_workflow(plan),
        # In Ray, workflows are made in another process, where they open models themselves.
        workflow_args={} if run.backend == "verl" else {"open_model": services.open},
        train_dataset=Dataset(list(plan.data["train"].rows(None)), plan.name, "train"),
        val_dataset=Dataset(validation, plan.name, "validation") if validation else None,
    )


def agent_trainer(*, backend: str, config: Any, **options: Any) -> Any:
    """Return an object whose `train()` trains as rLLM's AgentTrainer does, with the estimators of the spec.

    Args:
        backend: One of rLLM's backends, or a BackendProtocol of your own as `package.module:Class`.
        config: The composed config.
        options: Arguments of rLLM's AgentTrainer, with a `workflow_class` of `compile_workflow`, or an
            `agent_flow` and `evaluator` of `compile_agent_flow`. `traj_group_adv_estimator_map` and
            `traj_grouping_hook` are those of the spec unless they are given. The hook's metrics go to the
            trackers.

    Raises:
        UsageError: If rLLM is not installed, for a version of the backend's package that rLLM does not work
            with, and for keys of the spec that the backend cannot carry; from `train()`, for a backend class
            that does not exist.
    """
    need_rllm()
    kind = kind_of(backend)
    check_version(kind)
    if kind == "verl":
        adapt(config)  # a script composes the config itself
    flow = options.get("agent_flow")
    plan: Plan = (flow or options["workflow_class"]).plan
    run = None if flow is None else FlowRun(is_ours=True)
    refuse(plan, kind, run)
    options.setdefault("traj_group_adv_estimator_map", estimator_map(plan, kind))
    if hook_reasons(plan, kind):
        options.setdefault("traj_grouping_hook", grouping_hook(plan))
    if flow is not None and run is not None:
        options["agent_flow"] = replace(flow, flow_run=run)
        if kind != "verl":  # whose own config puts them in again
            config = _without_sampling(config)
    # In Ray, for verl, rLLM computes advantages and their figures again, in our groups.
    if backend == "verl" or (backend in BACKENDS and "traj_grouping_hook" not in options):
        from rllm.trainer.unified_trainer import AgentTrainer

        return AgentTrainer(config=config, backend=backend, **options)
    return _InProcessTrainer(backend, config, options)


def _without_sampling(config: Any) -> Any:
    """Return a copy of a config without the sampling settings that rLLM's gateway would put into every call,
    so that each role keeps its own settings."""
    from omegaconf import open_dict

    config = deepcopy(config)
    with open_dict(config):
        for part in config.rllm.rollout.train, config.rllm.rollout.val:
            for key in ("temperature", "top_p", "max_tokens"):
                part.pop(key, None)
    return config


@dataclass(frozen=True, slots=True)
class _InProcessTrainer:
    """Trainer in this process, as rLLM's own launchers for tinker and fireworks are."""

    backend: str
    config: Any
    options: Mapping[str, Any] = field(repr=False)

    def train(self) -> None:
        """Train to the end, and shut the backend down whether training succeeds or fails."""
        from omegaconf import OmegaConf
        from rllm.trainer.unified_trainer import UnifiedTrainer

        if self.backend in BACKENDS:
            import_module(f"rllm.trainer.{self.backend}.utils").sync_config(self.config)
        OmegaConf.resolve(self.config)
        kind = _with_hook_figures(backend_class(self.backend), self.options.get("traj_grouping_hook"))
        trainer = UnifiedTrainer(backend_cls=kind, config=self.config, **self.options)
        try:
            trainer.fit()
        finally:
            trainer.shutdown()


def backend_class(name: str) -> type[Any]:
    """Import the class of one of rLLM's backends, or the class that `package.module:Class` names.

    Raises:
        UsageError: The class cannot be imported, or is no BackendProtocol.
    """
    if name in BACKENDS:
        module, attribute = f"rllm.trainer.{name}.{name}_backend", f"{name.capitalize()}Backend"
    else:
        module, _, attribute = name.partition(":")
    from rllm.trainer.backend_protocol import BackendProtocol

    try:
        backend = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import the backend {name}: {error}") from error
    if not (isinstance(backend, type) and issubclass(backend, BackendProtocol)):
        raise UsageError(f"{name} is not a backend: expected a subclass of rLLM's BackendProtocol")
    return backend


def _with_hook_figures(kind: type[Any], hook: Any) -> type[Any]:
    """Return a subclass of a backend whose `update_policy` adds the grouping hook's metrics to the step's
    metrics."""
    if hook is None:
        return kind

    async def update_policy(self: Any, trainer_state: Any, **options: Any) -> None:
        await kind.update_policy(self, trainer_state, **options)
        trainer_state.metrics.update(hook.figures)

    return type(kind.__name__, (kind,), {"update_policy": update_policy, "__module__": kind.__module__})
