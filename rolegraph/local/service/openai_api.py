"""OpenAI's API, for clients that do not know the Tinker API: chats, completions and the list of models."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolegraph.engine.errors import ModelError
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import encode
from rolegraph.local.service.backend import Backend
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.endpoints import IGNORED, openai_error, read_body, request_error
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.grammars import Grammars
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.openai_answers import (
    ChatAnswer,
    CompletionAnswer,
    SampledAnswer,
    prompt_logprobs,
)
from rolegraph.local.service.openai_bodies import ChatBody, CompletionBody, SampledBody
from rolegraph.serving.chat_bodies import without_effect

_PROMPT_IDS = "prompt_token_ids"
_CONSTRAINED = "x-rolegraph-constrained"
"""Header of an answer that names the fields of its request which restricted the choice of tokens: its
log-probabilities are those among the allowed tokens."""
_logger = logging.getLogger(__name__)
_CHECK_SECONDS = 1.0
"""Seconds between checks that the client of an answer in progress is still connected."""


class OpenAIService:
    """The endpoints below /v1 of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatFormat(backend.model.tokenizer, backend.name)
        self._grammars = Grammars(backend.model, self._chat)
        self._started = int(time.time())
        self._named = set[str]()
        """Names of fields without effect that were already logged."""

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
        ]

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models: the list with the served model."""
        return JSONResponse({"object": "list", "data": [self._card(self._backend.name)]})

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/NAME: a description of the model, or of a checkpoint by its path."""
        name = str(request.path_params["name"])
        await self._checkpoint(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rolegraph"}

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: sample answers in the model's own chat format."""
        body = await read_body(request, ChatBody)
        model = self._backend.model
        body.check_length(body.characters, model.context)
        try:
            messages = [message.message() for message in body.messages]
            prompt = self._chat.prompt(messages, body.functions)
        except ModelError as error:
            raise RequestError(str(error)) from error
        ends, path = model.end_ids | set(self._chat.end_ids), await self._checkpoint(body.model)
        job = body.job(prompt.ids, model, path, ends)
        if body.constraints:
            grammar = await asyncio.to_thread(self._grammars.compile, body, thinking=prompt.thinking)
            for sample in job.requests:
                sample.constraint = grammar.copy()
        answers = [
            ChatAnswer(index, job, body, model, self._chat, prompt) for index in range(len(job.requests))
        ]
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        head: dict[str, Any] = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind}
        if body.with_prompt_ids:
            head[_PROMPT_IDS] = [*prompt.ids]
        return await self._respond(request, body, [job], answers, head)

    async def complete(self, request: Request) -> Response:
        """Answer POST /v1/completions: sample continuations of prompts, or score the prompts."""
        body = await read_body(request, CompletionBody)
        model, path = self._backend.model, await self._checkpoint(body.model)
        jobs: list[SampleJob] = []
        answers: list[CompletionAnswer] = []
        for prompt in body.prompt:
            first_index, ids = len(answers), _token_ids(model, body, prompt)
            job = body.job(ids, model, path, model.end_ids, first_index)
            jobs.append(job)
            answers += [
                CompletionAnswer(first_index + index, job, body, model, prompt)
                for index in range(len(job.requests))
            ]
            await asyncio.sleep(0)  # lets other requests run between two prompts
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion"}
        return await self._respond(request, body, jobs, answers, head)

    async def _respond(
        self,
        request: Request,
        body: SampledBody,
        jobs: Sequence[SampleJob],
        answers: Sequence[SampledAnswer],
        head: Mapping[str, Any],
    ) -> Response:
        """Sample answers, `n` for each prompt, and return the response, a stream if the body asks for one.

        Args:
            request: The request.
            body: Its body.
            jobs: The sampling of each prompt.
            answers: The answers of all jobs.
            head: Fields of the response, or of each chunk of a stream: id, kind, and if requested the
                prompt's token ids.

        Raises:
            ClientDisconnect: The client has disconnected.
            RequestError: The weights give no finite numbers.
        """
        head = {**head, "created": int(time.time()), "model": body.model or self._backend.name}
        ignored_fields = ", ".join(sorted(without_effect(body)))
        fields_by_header = {_CONSTRAINED: ", ".join(body.constraints), IGNORED: ignored_fields}
        headers = {name: fields for name, fields in fields_by_header.items() if fields}
        if ignored_fields and ignored_fields not in self._named:
            self._named.add(ignored_fields)
            _logger.warning("/v1 takes %s without effect", ignored_fields)
        if body.stream:
            events = self._events(body, jobs, answers, head)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        sampling = self._sample(jobs)
        try:
            while not sampling.done():
                await asyncio.wait([sampling], timeout=_CHECK_SECONDS)
                if await request.is_disconnected():
                    raise ClientDisconnect
            sampling.result()
        finally:
            sampling.cancel()
        head |= {"choices": [answer.increment() for answer in answers], "usage": _usage(jobs)}
        if isinstance(body, ChatBody) and body.prompt_logprobs is not None:
            head["prompt_logprobs"] = prompt_logprobs(jobs[0], self._backend.model, body.prompt_logprobs)
        return JSONResponse(head, headers=headers)

    def _sample(
        self, jobs: Sequence[SampleJob], progress: Callable[[], object] | None = None
    ) -> asyncio.Future[list[SampleJob]]:
        """Return the future of all jobs; `progress` is called on the compute thread after every step."""
        for job in jobs:
            job.progress = progress
        return asyncio.gather(*map(self._backend.sample, jobs))

    async def _events(
        self,
        body: SampledBody,
        jobs: Sequence[SampleJob],
        answers: Sequence[SampledAnswer],
        head: dict[str, Any],
    ) -> AsyncGenerator[str, None]:
        """Sample jobs and yield their answers as server-sent events; an error is the last event."""
        if body.with_usage:
            head["usage"] = None
        loop, progress_event = asyncio.get_running_loop(), asyncio.Event()
        sampling = self._sample(jobs, lambda: loop.call_soon_threadsafe(progress_event.set))
        sampling.add_done_callback(lambda _: progress_event.set())
        is_over = False
        try:
            while not is_over:
                await progress_event.wait()
                progress_event.clear()
                if is_over := sampling.done():
                    sampling.result()
                for choice in filter(None, (answer.increment() for answer in answers)):
                    yield _event({**head, "choices": [choice]})
                    head.pop(_PROMPT_IDS, None)  # which only the first chunk has
            if body.with_usage:
                yield _event({**head, "choices": [], "usage": _usage(jobs)})
            yield "data: [DONE]\n\n"
        except Exception as error:
            yield _event({"error": openai_error(request_error(error, "/v1"))})
        finally:
            sampling.cancel()

    async def _checkpoint(self, model: str | None) -> str | None:
        """Return the checkpoint path that a request names as its model; None for the served model itself.

        Raises:
            NotFoundError: No such checkpoint or model.
            RequestError: The checkpoint cannot be loaded.
        """
        if model is not None and model.startswith("tinker://"):
            await self._backend.loadable(model)
            return model
        if model is not None:
            self._backend.check_name(model)
        return None


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n"


def _usage(jobs: Sequence[SampleJob]) -> dict[str, int]:
    """Return the token counts of a request; a prompt counts once for its `n` answers."""
    prompt_tokens = sum(len(job.requests[0].prompt) for job in jobs)
    sampled_tokens = sum(len(sample.tokens) for job in jobs for sample in job.requests)
    total = prompt_tokens + sampled_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": sampled_tokens, "total_tokens": total}


def _token_ids(model: LocalModel, body: CompletionBody, prompt: str | list[int]) -> list[int]:
    """Return a prompt's token ids. Raises RequestError if the model cannot read the prompt."""
    ids = prompt
    if isinstance(ids, str):
        body.check_length(len(ids), model.context)
        try:
            ids = [*encode(model.tokenizer, ids, add_special_tokens=True)]
        except ModelError as error:
            raise RequestError(str(error)) from error
    if not ids or max(ids) >= model.vocabulary:
        raise RequestError("a prompt is empty, or has a token outside the vocabulary of the model")
    return ids
