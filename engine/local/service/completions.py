"""OpenAI's completions of plain prompts (texts or token ids), and its list of models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.endpoints import read_body
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.openai_bodies import CompletionBody
from rolegraph.engine.local.service.openai_model import OpenAIBackend, usage
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events
from rolegraph.engine.prompts.chat import cut_at_stop

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""


class CompletionService:
    """The endpoints /v1/completions and /v1/models of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = OpenAIBackend(backend)

    async def models(self, request: Request) -> Response:
        """List the served model."""
        return JSONResponse({"object": "list", "data": [self._card(self._model.backend.name)]})

    async def model(self, request: Request) -> Response:
        """Describe a model, or a checkpoint by its path."""
        name = str(request.path_params["name"])
        await self._model.checkpoint(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._model.started, "owned_by": "rolegraph"}

    async def complete(self, request: Request) -> Response:
        """Complete prompts."""
        body = await read_body(request, CompletionBody)
        path = await self._model.checkpoint(body.model)
        samples: list[SampleRequest] = []
        prompt_tokens, model = 0, self._model.backend.model
        for prompt in body.prompts:
            ids = self._ids(body, prompt)
            samples += body.requests(
                ids,
                model.context,
                max_tokens=body.max_tokens or _DEFAULT_MAX_TOKENS,
                stop_ids=model.end_ids,
                count=body.n or 1,
                first=len(samples),
            )
            prompt_tokens += len(ids)
            await asyncio.sleep(0)  # lets other requests run between two prompts
        head = self._model.head("text_completion", "cmpl", body)
        if body.stream:
            states = [StreamState(sample, partial(self._read, sample), body.stop_texts) for sample in samples]
            chunks = self._model.stream(
                head,
                body,
                path,
                states,
                lambda number, delta: self._delta_choices(body, number, samples[number], delta),
                lambda: usage(prompt_tokens, samples),
                {},
            )
            return events(chunks)
        await self._model.sample(request, path, samples)
        choices = [
            self._choice(
                body, number, sample, self._read(sample, sample.tokens, True)[0], slice(None), sample.reason
            )
            for number, sample in enumerate(samples)
        ]
        return JSONResponse({**head, "choices": choices, "usage": usage(prompt_tokens, samples)})

    def _ids(self, body: CompletionBody, prompt: str | list[int]) -> list[int]:
        model = self._model.backend.model
        ids: list[int]
        if isinstance(prompt, str):
            body.check_length(len(prompt), model.context)
            ids = model.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            ids = prompt
        if not ids or max(ids) >= model.vocabulary:
            raise RequestError("a prompt is empty, or has a token that the model does not know")
        return ids

    def _read(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        """Return an answer's text without the stop text or token that ended it."""
        kept = tokens[:-1] if tokens and tokens[-1] in sample.stop_ids else tokens
        return (cut_at_stop(self._model.backend.model.decode([list(kept)])[0], sample.stop_texts),)

    def _delta_choices(
        self, body: CompletionBody, number: int, sample: SampleRequest, delta: StreamDelta
    ) -> list[dict[str, Any]]:
        """Return the `choices` of the chunks for an increment of an answer."""
        with_tokens = body.logprobs is not None or body.return_token_ids
        if not (delta.parts[0] or with_tokens or delta.ended):
            return []
        reason = sample.reason if delta.ended else None
        return [self._choice(body, number, sample, delta.parts[0], delta.tokens, reason)]

    def _choice(
        self,
        body: CompletionBody,
        number: int,
        sample: SampleRequest,
        text: str,
        positions: slice,
        reason: str | None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "text": text, "finish_reason": reason, "logprobs": None}
        if body.logprobs is not None:
            texts = self._model.texts(sample.tokens)
            starts = list(accumulate(map(len, texts), initial=0))[:-1]
            choice["logprobs"] = {
                "tokens": texts[positions],
                "token_logprobs": sample.logprobs[positions],
                "top_logprobs": None,
                "text_offset": starts[positions],
            }
        if body.return_token_ids:
            choice["token_ids"] = sample.tokens[positions]
        if body.with_prompt_ids:
            choice["prompt_token_ids"] = list(sample.prompt)
        return choice
