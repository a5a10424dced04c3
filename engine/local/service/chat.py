"""Chat completions, as OpenAI's API has them, beside the Tinker API: for clients that know only those.

Tools are the chat template's; reasoning comes as `reasoning_content`. A stream tells of a turn that may call
tools when it is whole, as only then is it known what of it is a call.
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
from rolegraph.engine.local.service.calls import read
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta, StreamState, events
from rolegraph.engine.local.service.trainer import RequestError
from rolegraph.engine.local.service.v1 import V1, usage
from rolegraph.engine.local.service.v1_bodies import ChatBody
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.vocabulary import Function


class ChatService:
    """The endpoint; `names` are all that clients may call the model."""

    def __init__(self, backend: Backend, name: str, names: frozenset[str]) -> None:
        self._v1 = V1(backend, name, names)
        self._chat = ChatFormat(backend.policy.tokenizer, name)

    async def complete(self, request: Request) -> Response:
        """Answers to a chat, in the model's own format."""
        body = await read(request, ChatBody)
        path = await self._v1.weights(body.model)
        tools = body.offered
        prompt = self._prompt(body, tools)
        ends = self._v1.backend.policy.end_ids | set(self._chat.end_ids)
        samples = self._v1.requests(body, prompt.ids, body.longest, ends, 0)
        if body.stream:
            return self._streamed(body, path, prompt, samples, tools)
        await self._v1.draw(request, path, samples)
        answer: dict[str, Any] = {
            **self._v1.head("chat.completion", "chatcmpl", body)._asdict(),
            "choices": [
                self._choice(body, index, sample, tools, thinking=prompt.thinking)
                for index, sample in enumerate(samples)
            ],
            "usage": usage(len(prompt.ids), samples),
        }
        if body.with_prompt_ids:
            answer["prompt_token_ids"] = list(prompt.ids)
        return JSONResponse(answer)

    def _prompt(self, body: ChatBody, tools: Sequence[Function]) -> TokenizedPrompt:
        body.check_length(body.characters, self._v1.backend.policy.context)
        try:
            return self._chat.prompt([turn.message() for turn in body.messages], tools)
        except ModelError as error:
            raise RequestError(str(error)) from error
        except TypeError as error:  # a template that wants a message otherwise
            raise RequestError(f"the chat template takes no such messages: {error}") from error

    def _choice(
        self, body: ChatBody, index: int, sample: SampleRequest, tools: Sequence[Function], *, thinking: bool
    ) -> dict[str, Any]:
        thought, text = self._chat.answer(sample.tokens, stop=sample.stop_texts, thinking=thinking)
        message, reason = self._message(text, sample, tools)
        if thought:
            message["reasoning_content"] = thought
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": reason}
        return choice | self._tokens(body, sample, slice(None))

    def _message(
        self, text: str, sample: SampleRequest, tools: Sequence[Function]
    ) -> tuple[dict[str, Any], str | None]:
        """A whole answer's message, and why it ended."""
        text, calls = self._chat.calls(text, tools)
        # OpenAI has no call without a name: it stands in the text.
        named = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
        message = dict(answer_message(text, calls=named))
        return message, "tool_calls" if named else sample.reason

    def _tokens(self, body: ChatBody, sample: SampleRequest, which: slice) -> dict[str, Any]:
        """What is said of some of an answer's tokens, if it is asked for."""
        said: dict[str, Any] = {}
        if body.logprobs:
            tokens, logprobs = self._v1.texts(sample.tokens[which]), sample.logprobs[which]
            said["logprobs"] = {
                "content": [
                    {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token, logprob in zip(tokens, logprobs, strict=True)
                ]
            }
        if body.return_token_ids:
            said["token_ids"] = sample.tokens[which]
        return said

    # streamed

    def _streamed(
        self,
        body: ChatBody,
        path: str | None,
        prompt: TokenizedPrompt,
        samples: Sequence[SampleRequest],
        tools: Sequence[Function],
    ) -> Response:
        marks = (*body.stops, OPEN, CLOSE)
        tellings = [
            StreamState(
                sample, partial(self._read, sample, whole=bool(tools), thinking=prompt.thinking), marks
            )
            for sample in samples
        ]
        chunks = self._v1.chunks(
            self._v1.head("chat.completion.chunk", "chatcmpl", body),
            body,
            path,
            tellings,
            lambda number, news: self._deltas(body, number, samples[number], tools, news),
            lambda: usage(len(prompt.ids), samples),
            {"prompt_token_ids": list(prompt.ids)} if body.with_prompt_ids else {},
        )
        return events(chunks)

    def _read(
        self, sample: SampleRequest, tokens: Sequence[int], ended: bool, *, whole: bool, thinking: bool
    ) -> tuple[str, ...]:
        """An answer's reasoning and its text, so far. Where it has to be `whole`, there is no text before."""
        thought, text = self._chat.answer(tokens, stop=sample.stop_texts, thinking=thinking)
        if not ended and (whole or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def _deltas(
        self,
        body: ChatBody,
        number: int,
        sample: SampleRequest,
        tools: Sequence[Function],
        news: StreamDelta,
    ) -> list[dict[str, Any]]:
        """The choices of the chunks that tell what is new."""
        thought, text = news.parts
        reason: str | None = None
        delta: dict[str, Any] = {"reasoning_content": thought} if thought else {}
        if news.ended:
            message, reason = self._message(text, sample, tools)
            text = message["content"]
            if calls := message.get("tool_calls"):
                delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        if text:
            delta["content"] = text
        if news.tokens.start == 0:
            delta = {"role": "assistant", "content": "", **delta}
        said = self._tokens(body, sample, news.tokens)
        if not (delta or said or news.ended):
            return []
        return [{"index": number, "delta": delta, "finish_reason": reason, **said}]
