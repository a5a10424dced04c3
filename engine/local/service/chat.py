"""OpenAI's chat completions, for clients that do not know the Tinker API.

Tools are written by the model's chat template; reasoning is returned as `reasoning_content`. A streamed turn
that may call tools is sent when it is complete, since only then its calls can be recognised.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rolegraph.engine.errors import ModelError
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.endpoints import read_body
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.local_model import LocalModel
from rolegraph.engine.local.service.openai_bodies import ChatBody
from rolegraph.engine.local.service.openai_model import OpenAIBackend
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt
from rolegraph.engine.prompts.tools import answer_message


class ChatService:
    """The endpoint /v1/chat/completions of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = OpenAIBackend(backend)
        self._chat = ChatFormat(backend.model.tokenizer, backend.name)

    async def complete(self, request: Request) -> Response:
        """Answer a chat in the model's own chat format."""
        body = await read_body(request, ChatBody)
        model = self._model.backend.model
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
        return await self._model.respond(request, body, samples, _ChatAnswer(self._chat, model, body, prompt))


class _ChatAnswer:
    """Format of the answers to one chat: parts are reasoning and text."""

    prefix = "chatcmpl"

    def __init__(self, chat: ChatFormat, model: LocalModel, body: ChatBody, prompt: TokenizedPrompt) -> None:
        self._chat, self._model, self._body = chat, model, body
        self._functions, self._thinking = body.functions, prompt.thinking
        self.kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self.marks = (*body.stop_texts, OPEN, CLOSE)
        self.first: Mapping[str, Any] = {"prompt_token_ids": [*prompt.ids]} if body.with_prompt_ids else {}

    def parts(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        thought, text = self._chat.answer(tokens, stop=sample.stop_texts, thinking=self._thinking)
        if not ended and (self._functions or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def choice(self, sample: SampleRequest, delta: StreamDelta) -> dict[str, Any] | None:
        thought, text = delta.parts
        message: dict[str, Any] = {"role": "assistant", "content": text}
        reason: str | None = None
        if delta.ended:
            text, calls = self._chat.calls(text, self._functions)
            # OpenAI's API has no call without a name; such a call remains in the text.
            named = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
            message = {**answer_message(text, calls=named)}
            reason = "tool_calls" if named else sample.reason
        if thought:
            message["reasoning_content"] = thought
        fields = self._token_fields(sample, delta.tokens)
        if not self._body.stream:
            return {"message": message, "finish_reason": reason, **fields}
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        if delta.tokens.start > 0:
            message = {key: value for key, value in message.items() if value and key != "role"}
        if not (message or fields or delta.ended):
            return None
        return {"delta": message, "finish_reason": reason, **fields}

    def _token_fields(self, sample: SampleRequest, positions: slice) -> dict[str, Any]:
        """Return log-probabilities and ids of an answer's tokens at some positions, as far as requested."""
        fields: dict[str, Any] = {}
        tokens, logprobs = sample.tokens[positions], sample.logprobs[positions]
        if self._body.logprobs:
            texts = self._model.decode([[token] for token in tokens])
            fields["logprobs"] = {
                "content": [
                    {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for text, logprob in zip(texts, logprobs, strict=True)
                ]
            }
        if self._body.return_token_ids:
            fields["token_ids"] = tokens
        return fields
