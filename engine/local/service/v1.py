"""What both kinds of calls of /v1 do alike: the model that they name, drawing, streaming, counting.

Token ids come in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice), where they are asked for.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.requests import Request

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.calls import check_name, unless_gone
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, while_drawn
from rolegraph.engine.local.service.trainer import RequestError
from rolegraph.engine.local.service.v1_bodies import SampledBody

OWNER = "/v1"
"""Calls of /v1 have no session: together they take turns with the sessions."""


class ResponseHead(NamedTuple):
    """What every answer to one call, or every chunk of one, begins with."""

    id: str
    object: str
    created: int
    model: str


class V1:
    """The model behind /v1; `names` are all that clients may call it."""

    def __init__(self, backend: Backend, name: str, names: frozenset[str]) -> None:
        self.backend, self.name, self.names = backend, name, names
        self.started = int(time.time())

    async def weights(self, model: str | None) -> str | None:
        """The checkpoint that a call names; None for the model itself. Raises Missing and Refused."""
        if model is not None and model.startswith("tinker://"):
            await self.backend.shape(model)
            return model
        if model is not None:
            check_name(model, self.name, self.names)
        return None

    def requests(
        self,
        body: SampledBody,
        prompt: Sequence[int],
        longest: int | None,
        end_ids: frozenset[int],
        first: int,
    ) -> list[SampleRequest]:
        """The sequences that a call asks for of one prompt, the first of them with that number."""
        policy = self.backend.policy
        room = policy.context - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, and the model's context is {policy.context}"
            )
        seed = None if body.seed is None else body.seed % (limits.SEED.most + 1)
        return [
            SampleRequest(
                prompt,
                max_tokens=min(longest or room, room),
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=body.top_k or -1,
                seed=None if seed is None else (seed, number),
                stop_ids=end_ids,
                stop_texts=body.stops,
            )
            for number in range(first, first + (body.n or 1))
        ]

    async def draw(self, request: Request, path: str | None, samples: Sequence[SampleRequest]) -> None:
        """Draw sequences, unless the client hangs up; raises ClientDisconnect then."""
        await unless_gone(request, self.backend.sample(path, samples, owner=OWNER))
        for sample in samples:
            check_finite(sample)

    async def chunks(
        self,
        head: ResponseHead,
        body: SampledBody,
        path: str | None,
        tellings: Sequence[StreamState],
        choices: Callable[[int, StreamDelta], list[dict[str, Any]]],
        usage: Callable[[], Mapping[str, int]],
        first: Mapping[str, Any],
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """A stream's chunks. `choices` makes what is new of an answer, by its number, the choices of a chunk
        each; `first` stands in the first of them."""
        about = {**head._asdict(), **({"usage": None} if body.with_usage else {})}
        told = set[int]()
        samples = [telling.sample for telling in tellings]
        drawing = while_drawn(
            lambda progress: self.backend.sample(path, samples, owner=OWNER, progress=progress)
        )
        async with aclosing(drawing):
            async for _ in drawing:
                for number, telling in enumerate(tellings):
                    if number in told or (news := telling.news()) is None:
                        continue
                    check_finite(telling.sample, news.tokens)
                    if news.ended:
                        told.add(number)
                    for choice in choices(number, news):
                        yield {**about, **first, "choices": [choice]}
                        first = {}
        if body.with_usage:
            yield {**about, "choices": [], "usage": usage()}

    def head(self, kind: str, prefix: str, body: SampledBody) -> ResponseHead:
        """The beginning of an answer."""
        return ResponseHead(f"{prefix}-{uuid.uuid4().hex}", kind, int(time.time()), body.model or self.name)

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Each token's text."""
        return self.backend.policy.decode([[token] for token in tokens])


def usage(prompts: int, samples: Sequence[SampleRequest]) -> dict[str, int]:
    """Tokens read and written."""
    written = sum(len(sample.tokens) for sample in samples)
    return {"prompt_tokens": prompts, "completion_tokens": written, "total_tokens": prompts + written}


def check_finite(sample: SampleRequest, which: slice = slice(None)) -> None:
    """Raises Refused where weights gave no numbers: JSON has no such."""
    if not all(map(math.isfinite, sample.logprobs[which])):
        raise RequestError("these weights give no finite numbers: their training has diverged")
