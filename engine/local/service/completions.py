"""Completions of plain prompts, texts or token ids, as OpenAI's API has them, and the list of models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.calls import read
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events
from rolegraph.engine.local.service.trainer import RequestError
from rolegraph.engine.local.service.v1 import V1, usage
from rolegraph.engine.local.service.v1_bodies import CompletionBody
from rolegraph.engine.prompts.chat import cut_at_stop

_USUAL_LENGTH = 16
"""Tokens of an answer where nothing is said, as OpenAI has it."""


class CompletionService:
    """The endpoints; `names` are all that clients may call the model."""

    def __init__(self, backend: Backend, name: str, names: frozenset[str]) -> None:
        self._v1 = V1(backend, name, names)

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [self._card(self._v1.name)]})

    async def model(self, request: Request) -> Response:
        """What is known of a model, or of a checkpoint by its path."""
        name = str(request.path_params["name"])
        await self._v1.weights(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._v1.started, "owned_by": "rolegraph"}

    async def complete(self, request: Request) -> Response:
        """What follows prompts."""
        body = await read(request, CompletionBody)
        path = await self._v1.weights(body.model)
        samples: list[SampleRequest] = []
        read_tokens, ends = 0, self._v1.backend.policy.end_ids
        for prompt in body.prompts:
            ids = self._ids(body, prompt)
            samples += self._v1.requests(body, ids, body.max_tokens or _USUAL_LENGTH, ends, len(samples))
            read_tokens += len(ids)
            await asyncio.sleep(0)  # others are answered between two prompts
        head = self._v1.head("text_completion", "cmpl", body)
        if body.stream:
            tellings = [StreamState(sample, partial(self._read, sample), body.stops) for sample in samples]
            chunks = self._v1.chunks(
                head,
                body,
                path,
                tellings,
                lambda number, news: self._pieces(body, number, samples[number], news),
                lambda: usage(read_tokens, samples),
                {},
            )
            return events(chunks)
        await self._v1.draw(request, path, samples)
        choices = [
            self._choice(
                body, number, sample, self._read(sample, sample.tokens, True)[0], slice(None), sample.reason
            )
            for number, sample in enumerate(samples)
        ]
        return JSONResponse({**head._asdict(), "choices": choices, "usage": usage(read_tokens, samples)})

    def _ids(self, body: CompletionBody, prompt: str | list[int]) -> list[int]:
        policy = self._v1.backend.policy
        ids: list[int]
        if isinstance(prompt, str):
            body.check_length(len(prompt), policy.context)
            ids = policy.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            ids = prompt
        if not ids or max(ids) >= policy.vocabulary:
            raise RequestError("a prompt is empty, or has a token that the model does not know")
        return ids

    def _read(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        """An answer's text, without what ended it."""
        kept = tokens[:-1] if tokens and tokens[-1] in sample.stop_ids else tokens
        return (cut_at_stop(self._v1.backend.policy.decode([list(kept)])[0], sample.stop_texts),)

    def _pieces(
        self,
        body: CompletionBody,
        number: int,
        sample: SampleRequest,
        news: StreamDelta,
    ) -> list[dict[str, Any]]:
        """The choices of the chunks that tell what is new."""
        asked = body.logprobs is not None or body.return_token_ids
        if not (news.parts[0] or asked or news.ended):
            return []
        reason = sample.reason if news.ended else None
        return [self._choice(body, number, sample, news.parts[0], news.tokens, reason)]

    def _choice(
        self,
        body: CompletionBody,
        number: int,
        sample: SampleRequest,
        text: str,
        which: slice,
        reason: str | None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "text": text, "finish_reason": reason, "logprobs": None}
        if body.logprobs is not None:
            texts = self._v1.texts(sample.tokens)
            starts = list(accumulate(map(len, texts), initial=0))[:-1]
            choice["logprobs"] = {
                "tokens": texts[which],
                "token_logprobs": sample.logprobs[which],
                "top_logprobs": None,
                "text_offset": starts[which],
            }
        if body.return_token_ids:
            choice["token_ids"] = sample.tokens[which]
        if body.with_prompt_ids:
            choice["prompt_token_ids"] = list(sample.prompt)
        return choice
