"""Responses of /v1, whole or streamed: what chats and completions share.

Token ids are returned in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice) on request.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.endpoints import run_while_connected
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.openai_bodies import SampledBody
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events, ticks_while_sampling

OWNER = "/v1"
"""Owner of all requests of /v1, which have no session: together they take turns with the sessions."""


class AnswerFormat(Protocol):
    """Format in which one endpoint returns the answers to one request."""

    prefix: str
    """Beginning of a response's id."""
    kind: str
    """`object` of a response."""
    marks: tuple[str, ...]
    """Texts that never are in a streamed increment: stop texts and tags."""
    first: Mapping[str, Any]
    """Further fields of a whole response, or of the first chunk of a stream."""

    def parts(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        """Return the parts, such as reasoning and text, of an answer's tokens so far."""
        ...

    def choice(self, sample: SampleRequest, delta: StreamDelta) -> dict[str, Any] | None:
        """Return the choice, without its index, for an increment or a whole answer; None to send nothing."""
        ...


class OpenAIBackend:
    """The model of one backend, as chats and completions sample from it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

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

    async def respond(
        self, request: Request, body: SampledBody, samples: Sequence[SampleRequest], form: AnswerFormat
    ) -> Response:
        """Sample sequences and return the response, a stream if the body asks for one.

        Args:
            request: the request; when its client disconnects, sampling ends.
            body: the request's body.
            samples: the sequences to sample, `n` for each prompt.
            form: the format of the answers.

        Raises:
            ClientDisconnect: the client has disconnected.
            NotFoundError: no such checkpoint or model.
            RequestError: the checkpoint cannot be loaded, or its weights give no finite numbers.
        """
        job = SampleJob(await self.checkpoint(body.model), samples, owner=OWNER)
        head = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}",
            "object": form.kind,
            "created": int(time.time()),
            "model": body.model or self.backend.name,
        }
        if body.stream:
            return events(self._chunks(head, body, job, form))
        await run_while_connected(request, self.backend.sample(job))
        choices: list[dict[str, Any]] = []
        for number, sample in enumerate(samples):
            _check_finite(sample)
            whole = StreamDelta(form.parts(sample, sample.tokens, True), slice(0, None), True)
            choices.append({"index": number, **(form.choice(sample, whole) or {})})
        return JSONResponse({**head, "choices": choices, "usage": _usage(body, samples), **form.first})

    async def _chunks(
        self, head: dict[str, Any], body: SampledBody, job: SampleJob, form: AnswerFormat
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Sample a job and yield the chunks of the streamed response."""
        head |= {"usage": None} if body.with_usage else {}
        first = form.first
        states = [StreamState(sample, form.parts, form.marks) for sample in job.requests]
        async with aclosing(ticks_while_sampling(self.backend.sample, job)) as ticks:
            async for _ in ticks:
                for number, state in enumerate(states):
                    if (delta := state.delta()) is None:
                        continue
                    _check_finite(state.sample, delta.tokens)
                    if (choice := form.choice(state.sample, delta)) is not None:
                        yield {**head, **first, "choices": [{"index": number, **choice}]}
                        first = {}
        if body.with_usage:
            yield {**head, "choices": [], "usage": _usage(body, job.requests)}


def _usage(body: SampledBody, samples: Sequence[SampleRequest]) -> dict[str, int]:
    """Return the token counts of a request; a prompt counts once for its `n` answers."""
    prompt_tokens = sum(len(sample.prompt) for sample in samples) // (body.n or 1)
    sampled = sum(len(sample.tokens) for sample in samples)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


def _check_finite(sample: SampleRequest, positions: slice = slice(None)) -> None:
    """Raise RequestError if log-probabilities are not finite, which JSON cannot express."""
    if not all(map(math.isfinite, sample.logprobs[positions])):
        raise RequestError("these weights give no finite numbers: their training has diverged")
