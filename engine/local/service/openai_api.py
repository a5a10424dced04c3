"""OpenAI's API, for clients that do not know the Tinker API: chats, completions and the list of models."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.errors import ModelError
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.endpoints import read_body, run_while_connected
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.local_model import LocalModel
from rolegraph.engine.local.service.openai_answers import ChatAnswer, CompletionAnswer
from rolegraph.engine.local.service.openai_bodies import ChatBody, CompletionBody, SampledBody
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events, ticks_while_sampling
from rolegraph.engine.prompts import ChatFormat

OWNER = "/v1"
"""Owner of all requests of /v1, which have no session: together they take turns with the sessions."""
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""


class OpenAIService:
    """The endpoints below /v1 of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatFormat(backend.model.tokenizer, backend.name)
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
        ]

    async def models(self, request: Request) -> Response:
        """List the served model."""
        return JSONResponse({"object": "list", "data": [self._card(self._backend.name)]})

    async def model(self, request: Request) -> Response:
        """Describe a model, or a checkpoint by its path."""
        name = str(request.path_params["name"])
        await self._checkpoint(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rolegraph"}

    async def chat(self, request: Request) -> Response:
        """Answer a chat in the model's own chat format."""
        body = await read_body(request, ChatBody)
        model = self._backend.model
        body.check_length(body.characters, model.context)
        try:
            messages = [message.message() for message in body.messages]
            prompt = self._chat.prompt(messages, body.functions)
        except ModelError as error:
            raise RequestError(str(error)) from error
        except TypeError as error:  # the template expects messages of another form
            raise RequestError(f"the chat template rejects these messages: {error}") from error
        samples = body.requests(
            prompt.ids,
            model.context,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop_ids=model.end_ids | set(self._chat.end_ids),
            count=body.n or 1,
        )
        return await self._respond(request, body, samples, ChatAnswer(self._chat, model, body, prompt))

    async def complete(self, request: Request) -> Response:
        """Complete prompts."""
        body = await read_body(request, CompletionBody)
        model = self._backend.model
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
        return await self._respond(request, body, samples, CompletionAnswer(model, body))

    async def _respond(
        self,
        request: Request,
        body: SampledBody,
        samples: Sequence[SampleRequest],
        form: ChatAnswer | CompletionAnswer,
    ) -> Response:
        """Sample sequences, `n` for each prompt, and return the response, a stream if the body asks for one.

        Raises:
            ClientDisconnect: the client has disconnected.
            RequestError: there is no such checkpoint or model, or its weights give no finite numbers.
        """
        job = SampleJob(await self._checkpoint(body.model), samples, owner=OWNER)
        head = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}",
            "object": form.kind,
            "created": int(time.time()),
            "model": body.model or self._backend.name,
        }
        if body.stream:
            return events(self._chunks(head, body, job, form))
        await run_while_connected(request, self._backend.sample(job))
        choices: list[dict[str, Any]] = []
        for number, sample in enumerate(samples):
            _check_finite(sample)
            whole = StreamDelta(form.parts(sample, sample.tokens, True), slice(0, None), True)
            choices.append({"index": number, **(form.choice(sample, whole) or {})})
        return JSONResponse({**head, "choices": choices, "usage": _usage(body, samples), **form.first})

    async def _checkpoint(self, model: str | None) -> str | None:
        """Return the checkpoint path that a request names as its model; None for the served model itself.

        Raises:
            NotFoundError: no such checkpoint or model.
            RequestError: the checkpoint cannot be loaded.
        """
        if model is not None and model.startswith("tinker://"):
            await self._backend.shape(model)
            return model
        if model is not None:
            self._backend.check_name(model)
        return None

    async def _chunks(
        self, head: dict[str, Any], body: SampledBody, job: SampleJob, form: ChatAnswer | CompletionAnswer
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Sample a job and yield the chunks of the streamed response."""
        head |= {"usage": None} if body.with_usage else {}
        first = form.first
        states = [StreamState(sample, form.parts, form.marks) for sample in job.requests]
        async with aclosing(ticks_while_sampling(self._backend.sample, job)) as ticks:
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


def _token_ids(model: LocalModel, body: CompletionBody, prompt: str | list[int]) -> list[int]:
    """Return a prompt's token ids. Raises RequestError if the model cannot read the prompt."""
    ids = prompt
    if isinstance(ids, str):
        body.check_length(len(ids), model.context)
        try:
            ids = [*model.tokenizer.encode(ids, add_special_tokens=True)]
        except ModelError as error:
            raise RequestError(str(error)) from error
    if not ids or max(ids) >= model.vocabulary:
        raise RequestError("a prompt is empty, or has a token that the model does not know")
    return ids
