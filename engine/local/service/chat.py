"""OpenAI's chat completions, for clients that do not know the Tinker API.

Tools are written by the model's chat template; reasoning is returned as `reasoning_content`. A streamed turn
that may call tools is sent when it is complete, since only then its calls can be recognised.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.errors import ModelError
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.endpoints import read_body
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.openai_bodies import ChatBody
from rolegraph.engine.local.service.openai_model import OpenAIBackend, usage
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.vocabulary import Function


class ChatService:
    """The endpoint /v1/chat/completions of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = OpenAIBackend(backend)
        self._chat = ChatFormat(backend.model.tokenizer, backend.name)

    async def complete(self, request: Request) -> Response:
        """Answer a chat in the model's own chat format."""
        body = await read_body(request, ChatBody)
        path = await self._model.checkpoint(body.model)
        functions = body.functions
        prompt = self._prompt(body, functions)
        model = self._model.backend.model
        samples = body.requests(
            prompt.ids,
            model.context,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop_ids=model.end_ids | set(self._chat.end_ids),
            count=body.n or 1,
        )
        if body.stream:
            return self._stream(body, path, prompt, samples, functions)
        await self._model.sample(request, path, samples)
        answer: dict[str, Any] = {
            **self._model.head("chat.completion", "chatcmpl", body),
            "choices": [
                self._choice(body, index, sample, functions, thinking=prompt.thinking)
                for index, sample in enumerate(samples)
            ],
            "usage": usage(len(prompt.ids), samples),
        }
        if body.with_prompt_ids:
            answer["prompt_token_ids"] = list(prompt.ids)
        return JSONResponse(answer)

    def _prompt(self, body: ChatBody, functions: Sequence[Function]) -> TokenizedPrompt:
        body.check_length(body.characters, self._model.backend.model.context)
        try:
            return self._chat.prompt([message.message() for message in body.messages], functions)
        except ModelError as error:
            raise RequestError(str(error)) from error
        except TypeError as error:  # the template expects messages of another form
            raise RequestError(f"the chat template rejects these messages: {error}") from error

    def _choice(
        self,
        body: ChatBody,
        index: int,
        sample: SampleRequest,
        functions: Sequence[Function],
        *,
        thinking: bool,
    ) -> dict[str, Any]:
        thought, text = self._chat.answer(sample.tokens, stop=sample.stop_texts, thinking=thinking)
        message, reason = self._message(text, sample, functions)
        if thought:
            message["reasoning_content"] = thought
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": reason}
        return choice | self._token_fields(body, sample, slice(None))

    def _message(
        self, text: str, sample: SampleRequest, functions: Sequence[Function]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the message of a complete answer and its finish_reason."""
        text, calls = self._chat.calls(text, functions)
        # OpenAI's API has no call without a name; such a call remains in the text.
        named = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
        message = dict(answer_message(text, calls=named))
        return message, "tool_calls" if named else sample.reason

    def _token_fields(self, body: ChatBody, sample: SampleRequest, positions: slice) -> dict[str, Any]:
        """Return log-probabilities and ids of an answer's tokens at some positions, as far as requested."""
        fields: dict[str, Any] = {}
        if body.logprobs:
            tokens, logprobs = self._model.texts(sample.tokens[positions]), sample.logprobs[positions]
            fields["logprobs"] = {
                "content": [
                    {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token, logprob in zip(tokens, logprobs, strict=True)
                ]
            }
        if body.return_token_ids:
            fields["token_ids"] = sample.tokens[positions]
        return fields

    # streaming

    def _stream(
        self,
        body: ChatBody,
        path: str | None,
        prompt: TokenizedPrompt,
        samples: Sequence[SampleRequest],
        functions: Sequence[Function],
    ) -> Response:
        marks = (*body.stop_texts, OPEN, CLOSE)
        read = partial(self._read, whole=bool(functions), thinking=prompt.thinking)
        states = [StreamState(sample, partial(read, sample), marks) for sample in samples]
        chunks = self._model.stream(
            self._model.head("chat.completion.chunk", "chatcmpl", body),
            body,
            path,
            states,
            lambda number, delta: self._delta_choices(body, number, samples[number], functions, delta),
            lambda: usage(len(prompt.ids), samples),
            {"prompt_token_ids": list(prompt.ids)} if body.with_prompt_ids else {},
        )
        return events(chunks)

    def _read(
        self, sample: SampleRequest, tokens: Sequence[int], ended: bool, *, whole: bool, thinking: bool
    ) -> tuple[str, ...]:
        """Return an answer's reasoning and text so far; with `whole`, the text is empty until the end."""
        thought, text = self._chat.answer(tokens, stop=sample.stop_texts, thinking=thinking)
        if not ended and (whole or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def _delta_choices(
        self,
        body: ChatBody,
        number: int,
        sample: SampleRequest,
        functions: Sequence[Function],
        increment: StreamDelta,
    ) -> list[dict[str, Any]]:
        """Return the `choices` of the chunks for an increment of an answer."""
        thought, text = increment.parts
        reason: str | None = None
        delta: dict[str, Any] = {"reasoning_content": thought} if thought else {}
        if increment.ended:
            message, reason = self._message(text, sample, functions)
            text = message["content"]
            if calls := message.get("tool_calls"):
                delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        if text:
            delta["content"] = text
        if increment.tokens.start == 0:
            delta = {"role": "assistant", "content": "", **delta}
        fields = self._token_fields(body, sample, increment.tokens)
        if not (delta or fields or increment.ended):
            return []
        return [{"index": number, "delta": delta, "finish_reason": reason, **fields}]
