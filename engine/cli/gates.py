"""Opens every model that a plan names, starting a local service for those that live on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine.compile.plan import Plan
from engine.errors import UsageError
from engine.local.launcher import Running, running
from engine.models import open_model
from engine.models.limit import Gate
from engine.models.tinker import TinkerModel
from engine.models.types import Model
from engine.prompts.chat import ChatFormat
from engine.records.folder import RunFolder
from engine.shipped import model_folder
from engine.spec.models import ModelRef
from engine.training import Home
from engine.training.signals import Teacher


@asynccontextmanager
async def open_gates(
    plan: Plan, trusted_url: str | None = None
) -> AsyncGenerator[dict[ModelRef, Gate], None]:
    """A gate for each model of the plan; services and connections end with the context.

    `trusted_url` is an endpoint that the person named outside the spec: keys may be sent there.
    Raises UsageError (a missing key, folder or extra) or WorldError (an endpoint that is down).
    """
    async with AsyncExitStack() as stack:
        yield await Opener(stack, trusted_url).gates(role.model for role in plan.roles)


class Opener:
    """Opens models for as long as a stack is open; one service for each local folder."""

    def __init__(self, stack: AsyncExitStack, trusted_url: str | None = None) -> None:
        self._stack, self._trusted_url = stack, trusted_url
        self._services: dict[tuple[Path, Path | None], Running] = {}

    async def gates(self, refs: Iterable[ModelRef]) -> dict[ModelRef, Gate]:
        """A gate for each model."""
        return {ref: Gate(await self.model(ref), ref.concurrency) for ref in dict.fromkeys(refs)}

    async def teachers(self, plan: Plan, policy: ChatFormat) -> dict[ModelRef, Teacher]:
        """The models that trainable roles' signals compare with, which must mean the same by every token."""
        found: dict[ModelRef, Teacher] = {}
        for name, signal in plan.signals.items():
            ref = signal.teacher
            if ref is None or ref in found:
                continue
            model = await self.model(ref)
            if not isinstance(model, TinkerModel) or not model.chat.same_tokens(policy):
                raise UsageError(
                    f"the teacher of {name} has another vocabulary than the policy, so it cannot say how "
                    "likely the policy's tokens are; choose a teacher of the same family"
                )
            found[ref] = Teacher(model, asyncio.Semaphore(ref.concurrency))
        return found

    async def model(self, ref: ModelRef) -> Model:
        """One open model."""
        if ref.provider == "local":
            home = self.home(ref)
            opened = await open_model(home.ref, api_key=home.api_key, tokenizer_dir=home.tokenizer_dir)
        else:
            opened = await open_model(ref, trusted_url=self._trusted_url)
        self._stack.push_async_callback(opened.aclose)
        return opened

    def home(self, ref: ModelRef, state_dir: Path | None = None) -> Home:
        """Where a model lives, its service started if it is this machine's. Checkpoints go to `state_dir`."""
        if ref.provider != "local":
            return Home(ref, trusted_url=self._trusted_url)
        folder = model_folder(ref.name)
        checkpoint = ref.checkpoint
        if checkpoint is not None and not checkpoint.startswith("tinker://"):
            run = RunFolder(Path(checkpoint))
            checkpoint, state_dir = run.best().sampler, run.weights
        key = folder, state_dir
        if key not in self._services:
            self._services[key] = self._stack.enter_context(running(folder, state_dir=state_dir))
        service = self._services[key]
        changes = {
            "provider": "tinker",
            "name": service.model_name,
            "base_url": service.base_url,
            "checkpoint": checkpoint,
        }
        return Home(ref.model_copy(update=changes), service.api_key, folder)
