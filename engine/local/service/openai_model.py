"""The served model behind /v1: sampling, streaming and token counts of chats and completions.

Token ids are returned in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice) on request.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.endpoints import run_while_connected
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.openai_bodies import SampledBody
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, ticks_while_sampling

OWNER = "/v1"
"""Owner of all requests of /v1, which have no session: together they take turns with the sessions."""


class OpenAIBackend:
    """The model of one backend, as chats and completions sample from it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.started = int(time.time())

    async def checkpoint(self, model: str | None) -> str | None:
        """Return the checkpoint path that a request names as its model; None for the served model itself.

        Raises:
            NotFoundError: no such checkpoint or model.
            RequestError: the checkpoint cannot be loaded.
        """
        if model is not None and model.startswith("tinker://"):
            await self.backend.shape(model)
            return model
        if model is not None:
            self.backend.check_name(model)
        return None

    async def sample(self, request: Request, path: str | None, samples: Sequence[SampleRequest]) -> None:
        """Sample sequences to their end. Raises ClientDisconnect when the client disconnects before."""
        await run_while_connected(request, self.backend.sample(SampleJob(path, samples, owner=OWNER)))
        for sample in samples:
            check_finite(sample)

    async def stream(
        self,
        head: Mapping[str, Any],
        body: SampledBody,
        path: str | None,
        states: Sequence[StreamState],
        choices: Callable[[int, StreamDelta], list[dict[str, Any]]],
        usage: Callable[[], Mapping[str, int]],
        first: Mapping[str, Any],
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Sample sequences and yield the chunks of a streamed response.

        Args:
            head: fields that begin every chunk.
            body: the request's body.
            path: the checkpoint to sample from; None for the base model.
            states: one state for each answer.
            choices: returns the `choices` of the chunks for an answer's number and increment.
            usage: returns the token counts at the end.
            first: further fields of the first chunk.
        """
        head = {**head, **({"usage": None} if body.with_usage else {})}
        ended: set[int] = set()
        samples = [state.sample for state in states]
        ticks = ticks_while_sampling(
            lambda progress: self.backend.sample(SampleJob(path, samples, owner=OWNER, progress=progress))
        )
        async with aclosing(ticks):
            async for _ in ticks:
                for number, state in enumerate(states):
                    if number in ended or (delta := state.delta()) is None:
                        continue
                    check_finite(state.sample, delta.tokens)
                    if delta.ended:
                        ended.add(number)
                    for choice in choices(number, delta):
                        yield {**head, **first, "choices": [choice]}
                        first = {}
        if body.with_usage:
            yield {**head, "choices": [], "usage": usage()}

    def head(self, kind: str, prefix: str, body: SampledBody) -> dict[str, Any]:
        """Return the fields with which every response to a request, or every chunk of one, begins."""
        name = f"{prefix}-{uuid.uuid4().hex}"
        return {
            "id": name,
            "object": kind,
            "created": int(time.time()),
            "model": body.model or self.backend.name,
        }

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        return self.backend.model.decode([[token] for token in tokens])


def usage(prompt_tokens: int, samples: Sequence[SampleRequest]) -> dict[str, int]:
    """Return the token counts of a request."""
    sampled = sum(len(sample.tokens) for sample in samples)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


def check_finite(sample: SampleRequest, positions: slice = slice(None)) -> None:
    """Raise RequestError if log-probabilities are not finite, which JSON cannot express."""
    if not all(map(math.isfinite, sample.logprobs[positions])):
        raise RequestError("these weights give no finite numbers: their training has diverged")
