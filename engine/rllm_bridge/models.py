"""Where answers come from under rLLM: its rollout engine for the policy, our own models for the rest."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
from rllm.workflows.workflow import TerminationEvent, TerminationReason

from engine.compile.plan import Plan
from engine.errors import ModelError, UsageError
from engine.models.limit import Gate
from engine.models.types import Completion, Model, Request
from engine.spec.models import ModelRef
from engine.training.signals import Teacher

Open = Callable[[ModelRef], Awaitable[Model]]

_SAMPLING = ("temperature", "top_p", "max_tokens", "stop")


def sampling_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """What each role's calls ask of the engine: only what the spec says; the rest is rLLM's configuration."""
    return {
        role.name: {
            name: getattr(role.sampling, name) for name in _SAMPLING if name in role.sampling.model_fields_set
        }
        for role in plan.roles
    }


class PolicyModel:
    """rLLM's rollout engine, for one episode.

    An answer that the engine refuses with a TerminationEvent is that instance's failure alone: `timeout` for
    its timeouts, else `model_error`; the event's reason is kept in `ended`.
    """

    def __init__(self, engine: RolloutEngine, sampling: Mapping[str, dict[str, Any]]) -> None:
        self._engine, self._sampling = engine, sampling
        self.outputs: dict[tuple[str, int], ModelOutput] = {}
        """The last answer of each role instance, by name and index."""
        self.ended: dict[tuple[str, int], TerminationReason] = {}
        """Why the engine gave a role instance no answer, by name and index."""

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError or TimeoutError."""
        key = request.role, request.index
        options = self._sampling[request.role]
        if request.seed is not None:
            options = {**options, "seed": request.seed}
        try:
            output = await self._engine.get_model_response(list(request.messages), **options)
        except TerminationEvent as event:
            self.ended[key] = event.reason
            if event.reason is TerminationReason.TIMEOUT:
                raise TimeoutError from event
            raise ModelError(f"rLLM's engine ended the call: {event.reason.value}") from event
        self.outputs[key] = output
        text = output.text if output.content is None else output.content
        return Completion(
            text or "",
            output.reasoning or "",
            output.prompt_ids or (),
            output.completion_ids or (),
            output.logprobs or (),
            output.finish_reason or "stop",
            output.weight_version,
        )

    async def aclose(self) -> None:
        """The engine is rLLM's."""


class Elsewhere:
    """A model that is not the policy: a frozen role's own, or a teacher; opened when it is first needed."""

    def __init__(self, ref: ModelRef, open_model: Open) -> None:
        self._ref, self._open = ref, open_model
        self._opening: asyncio.Future[Model] | None = None
        self._slots = asyncio.Semaphore(ref.concurrency)
        self.gate = Gate(self, ref.concurrency)

    async def _model(self) -> Model:
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.ensure_future(self._open(self._ref))
        return await asyncio.shield(self._opening)

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError, or what opening the model raised."""
        return await (await self._model()).complete(request)

    async def teacher(self) -> Teacher:
        """The model as a teacher; raises UsageError where it gives no log-probabilities."""
        model: Any = await self._model()
        if not hasattr(model, "logprobs"):
            raise UsageError(f"the model {self._ref.provider} gives no log-probabilities, so it cannot teach")
        return Teacher(model, self._slots)

    async def aclose(self) -> None:
        """It stays open as long as the process: rLLM never says when a workflow is done with."""
