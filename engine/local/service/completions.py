"""OpenAI's completions of plain prompts (texts or token ids), and its list of models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.endpoints import read_body
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.local_model import LocalModel
from rolegraph.engine.local.service.openai_bodies import CompletionBody
from rolegraph.engine.local.service.openai_model import OpenAIBackend
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta
from rolegraph.engine.prompts.chat import cut_at_stop

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""


class CompletionService:
    """The endpoints /v1/completions and /v1/models of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = OpenAIBackend(backend)
        self._started = int(time.time())

    async def models(self, request: Request) -> Response:
        """List the served model."""
        return JSONResponse({"object": "list", "data": [self._card(self._model.backend.name)]})

    async def model(self, request: Request) -> Response:
        """Describe a model, or a checkpoint by its path."""
        name = str(request.path_params["name"])
        await self._model.checkpoint(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rolegraph"}

    async def complete(self, request: Request) -> Response:
        """Complete prompts."""
        body = await read_body(request, CompletionBody)
        model = self._model.backend.model
        samples: list[SampleRequest] = []
        for prompt in body.prompts:
            samples += body.requests(
                _token_ids(model, body, prompt),
                model.context,
                max_tokens=body.max_tokens or _DEFAULT_MAX_TOKENS,
                stop_ids=model.end_ids,
                count=body.n or 1,
                first=len(samples),
            )
            await asyncio.sleep(0)  # lets other requests run between two prompts
        return await self._model.respond(request, body, samples, _CompletionAnswer(model, body))


def _token_ids(model: LocalModel, body: CompletionBody, prompt: str | list[int]) -> list[int]:
    """Return a prompt's token ids. Raises RequestError if the model cannot read the prompt."""
    ids = prompt
    if isinstance(ids, str):
        body.check_length(len(ids), model.context)
        ids = [*model.tokenizer.encode(ids, add_special_tokens=True)]
    if not ids or max(ids) >= model.vocabulary:
        raise RequestError("a prompt is empty, or has a token that the model does not know")
    return ids


class _CompletionAnswer:
    """Format of the answers to one request for completions: the only part is the text."""

    prefix, kind = "cmpl", "text_completion"

    def __init__(self, model: LocalModel, body: CompletionBody) -> None:
        self._model, self._body, self.marks = model, body, body.stop_texts
        self.first: Mapping[str, Any] = {}

    def parts(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        kept = tokens[:-1] if tokens and tokens[-1] in sample.stop_ids else tokens
        return (cut_at_stop(self._model.decode([[*kept]])[0], sample.stop_texts),)

    def choice(self, sample: SampleRequest, delta: StreamDelta) -> dict[str, Any] | None:
        body, positions, (text,) = self._body, delta.tokens, delta.parts
        with_tokens = body.logprobs is not None or body.return_token_ids
        if not (text or with_tokens or delta.ended):
            return None
        reason = sample.reason if delta.ended else None
        choice: dict[str, Any] = {"text": text, "finish_reason": reason, "logprobs": None}
        if body.logprobs is not None:
            texts = self._model.decode([[token] for token in sample.tokens])
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
            choice["prompt_token_ids"] = [*sample.prompt]
        return choice
