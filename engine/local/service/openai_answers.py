"""Choices of /v1: the answers to chats and completions, whole or as increments of a stream.

`prefix` begins a response's id and `kind` is its `object`; `marks` are the texts that are never in an
increment: stop texts and tags; `first` has further fields of a whole response, or of a stream's first chunk.

Token ids are returned in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice) on request.
Reasoning is returned as `reasoning_content`. A streamed turn that may call tools is sent when it is complete,
since only then its calls can be recognized.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rolegraph.engine.local.service.local_model import LocalModel
from rolegraph.engine.local.service.openai_bodies import ChatBody, CompletionBody
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.streaming import StreamDelta
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt, cut_at_stop
from rolegraph.engine.prompts.tools import answer_message


class ChatAnswer:
    """Writer of the response to one chat completion request; an answer has two parts, reasoning and text."""

    prefix = "chatcmpl"

    def __init__(self, chat: ChatFormat, model: LocalModel, body: ChatBody, prompt: TokenizedPrompt) -> None:
        self._chat, self._model, self._body = chat, model, body
        self._functions, self._thinking = body.functions, prompt.thinking
        self.kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self.marks = (*body.stop_texts, OPEN, CLOSE)
        self.first: Mapping[str, Any] = {"prompt_token_ids": [*prompt.ids]} if body.with_prompt_ids else {}

    def parts(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        """Return the reasoning and the text of an answer's tokens so far."""
        thought, text = self._chat.answer(tokens, stop=sample.stop_texts, thinking=self._thinking)
        if not ended and (self._functions or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def choice(self, sample: SampleRequest, delta: StreamDelta) -> dict[str, Any] | None:
        """Build one entry of a response's `choices`, without its index; None if there is nothing to send."""
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


class CompletionAnswer:
    """Format of the answers to one request for completions: the only part is the text."""

    prefix, kind = "cmpl", "text_completion"

    def __init__(self, model: LocalModel, body: CompletionBody) -> None:
        self._model, self._body, self.marks = model, body, body.stop_texts
        self.first: Mapping[str, Any] = {}

    def parts(self, sample: SampleRequest, tokens: Sequence[int], ended: bool) -> tuple[str, ...]:
        """Return the text of an answer's tokens so far."""
        kept = tokens[:-1] if tokens and tokens[-1] in sample.stop_ids else tokens
        return (cut_at_stop(self._model.decode([[*kept]])[0], sample.stop_texts),)

    def choice(self, sample: SampleRequest, delta: StreamDelta) -> dict[str, Any] | None:
        """Build one entry of a response's `choices`, without its index; None if there is nothing to send."""
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
