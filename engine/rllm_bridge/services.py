"""The local models that a run of rLLM's trainer asks: each served from before it starts until it is over."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.compile.plan import Plan
from engine.errors import UsageError
from engine.local.launcher import Running, running
from engine.models import open_model
from engine.models.types import Model
from engine.rllm_bridge.config import Launch, model_name
from engine.spec.models import ModelRef

KEY_VARIABLE = "TINKER_API_KEY"


@dataclass(frozen=True, slots=True)
class Services:
    """Opens the models that are not the policy: frozen roles' own, and teachers."""

    running: dict[str, Running]
    """By model folder."""

    async def open(self, ref: ModelRef) -> Model:
        """One open model; raises UsageError or WorldError, as `open_model` does."""
        if ref.provider != "local":
            return await open_model(ref)
        folder = model_name(ref) or ""
        service = self.running[folder]
        changes = {"provider": "tinker", "name": service.model_name, "base_url": service.base_url}
        there = ref.model_copy(update=changes)
        return await open_model(there, api_key=service.api_key, tokenizer_dir=Path(folder))


def is_served(run: Launch) -> bool:
    """Whether the policy is a model of this machine, for which a service has to be started."""
    ref = run.plan.spec.model
    return run.backend == "tinker" and ref.provider == "local" and not (run.base_url or ref.base_url)


def others(plan: Plan) -> list[ModelRef]:
    """The models of a plan that are not its policy, each once."""
    own = [role.model for role in plan.roles if not role.trainable and role.model != plan.spec.model]
    teachers = [signal.teacher for signal in plan.signals.values()]
    return list(dict.fromkeys([*own, *(ref for ref in teachers if ref is not None)]))


@contextmanager
def served(run: Launch) -> Generator[tuple[Launch, Services], None, None]:
    """The run with a place for its policy, and what opens its other models, for the time of the block.

    rLLM takes the policy's key from the environment, where it stands for that time.
    """
    state = None if run.folder is None else Path(run.folder) / "weights"
    with ExitStack() as stack:
        services = Services({})
        for ref in others(run.plan):
            if ref.provider == "local" and ref.checkpoint is not None:
                raise UsageError(
                    "under rLLM a local model has no checkpoint: serve it, and give its base_url"
                )
            folder = model_name(ref) or ""
            if ref.provider == "local" and folder not in services.running:
                services.running[folder] = stack.enter_context(running(Path(folder)))
        if is_served(run):
            policy = Path(model_name(run.plan.spec.model) or "")
            service = stack.enter_context(running(policy, state_dir=state))
            stack.enter_context(_key(service.api_key))
            run = replace(run, base_url=service.base_url)
        yield run, services


@contextmanager
def _key(value: str) -> Generator[None, None, None]:
    before = os.environ.get(KEY_VARIABLE)
    os.environ[KEY_VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[KEY_VARIABLE]
        else:
            os.environ[KEY_VARIABLE] = before
