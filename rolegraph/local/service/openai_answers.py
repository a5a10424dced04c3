"""Answers of /v1 while they are sampled: entries of `choices`, whole or as increments of a stream.

Token ids are returned in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice) on request.
Reasoning is returned as `reasoning_content`. A streamed turn that may call tools is sent when it is complete,
since only then its calls can be recognized.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rolegraph.engine.models.tokens import without
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt, cut_at_stop
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.openai_bodies import ChatBody, CompletionBody
from rolegraph.local.service.sampling import SampleRequest


class SampledAnswer(ABC):
    """One sampled answer, and what of it a stream has sent; makes the increments of a response.

    An answer has parts, such as reasoning and text. Parts only grow, except for an end that may be the
    beginning of one of `marks` (a stop text or a tag), which is held back.
    """

    def __init__(self, index: int, sample: SampleRequest, marks: Sequence[str]) -> None:
        self.index, self.sample, self._marks = index, sample, marks
        self._tokens, self._ended = 0, False
        self._sent: list[str] = []

    @abstractmethod
    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Return the texts of the answer's parts, decoded from its first tokens; `ended` if these are all
        tokens."""

    @abstractmethod
    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build one entry of `choices`, without its index; None if there is nothing to send.

        Args:
            parts: New text of each part.
            tokens: Positions of the new tokens.
            ended: True if the answer ends with them.
        """

    def increment(self) -> dict[str, Any] | None:
        """Return the entry for what was sampled since the last call; None if there is nothing to send.

        The compute thread appends meanwhile: a token, its log-probability, then the reason of the end. So the
        reason is read first and the log-probabilities are counted.

        Raises:
            RequestError: log-probabilities are not finite, which JSON cannot express.
        """
        ended = self.sample.reason is not None
        tokens = slice(self._tokens, len(self.sample.logprobs))
        if self._ended or (tokens.stop <= tokens.start and not ended):
            return None
        if not all(map(math.isfinite, self.sample.logprobs[tokens])):
            raise RequestError("these weights give no finite numbers: their training has diverged")
        self._tokens, self._ended = tokens.stop, ended
        parts = self.parts(self.sample.tokens[: tokens.stop], ended)
        settled = parts if ended else [_without_open_end(part, self._marks) for part in parts]
        self._sent = self._sent or [""] * len(parts)
        new = [part[len(sent) :] for part, sent in zip(settled, self._sent, strict=True)]
        self._sent = [sent + more for sent, more in zip(self._sent, new, strict=True)]
        choice = self.choice(new, tokens, ended)
        return None if choice is None else {"index": self.index, **choice}


class ChatAnswer(SampledAnswer):
    """Answer to a chat, in two parts: reasoning and text."""

    def __init__(
        self,
        index: int,
        sample: SampleRequest,
        body: ChatBody,
        model: LocalModel,
        chat: ChatFormat,
        prompt: TokenizedPrompt,
    ) -> None:
        super().__init__(index, sample, (*body.stop_texts, OPEN, CLOSE))
        self._chat, self._model, self._body = chat, model, body
        self._functions, self._thinking = body.functions, prompt.thinking

    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Return the reasoning and the text, which keeps special tokens only where they may write calls."""
        thought, text = self._chat.answer(tokens, stop=self.sample.stop_texts, thinking=self._thinking)
        thought = self._cleaned(thought, tokens)
        if not self._functions:
            text = self._cleaned(text, tokens)
        if not ended and (self._functions or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build an entry with a message, or a `delta` of one."""
        thought, text = parts
        message: dict[str, Any] = {"role": "assistant", "content": text}
        reason: str | None = None
        if ended:
            text, calls = self._chat.calls(text, self._functions)
            text = self._cleaned(text, self.sample.tokens)
            # OpenAI's API has no call without a name; such a call remains in the text.
            named = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
            message = {**answer_message(text, calls=named)}
            reason = "tool_calls" if named else self.sample.reason
        if thought:
            message["reasoning_content"] = thought
        fields = self._token_fields(tokens)
        if not self._body.stream:
            return {"message": message, "finish_reason": reason, **fields}
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        if tokens.start > 0:
            message = {key: value for key, value in message.items() if value and key != "role"}
        if not (message or fields or ended):
            return None
        return {"delta": message, "finish_reason": reason, **fields}

    def _cleaned(self, text: str, tokens: Sequence[int]) -> str:
        """Return `text` without the special tokens that the model sampled inside its answer."""
        return without(text, self._chat.strange_tokens(tokens, text))

    def _token_fields(self, positions: slice) -> dict[str, Any]:
        """Return log-probabilities and ids of the tokens at some positions, as far as requested."""
        fields: dict[str, Any] = {}
        tokens, logprobs = self.sample.tokens[positions], self.sample.logprobs[positions]
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


class CompletionAnswer(SampledAnswer):
    """Answer to a request for completions, whose only part is the text."""

    def __init__(self, index: int, sample: SampleRequest, body: CompletionBody, model: LocalModel) -> None:
        super().__init__(index, sample, body.stop_texts)
        self._model, self._body = model, body

    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Return the decoded text as the only part, without the stop token and cut at a stop text."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.sample.stop_ids else tokens
        return (cut_at_stop(self._model.decode([[*kept]])[0], self.sample.stop_texts),)

    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build an entry with a text."""
        body, sample, (text,) = self._body, self.sample, parts
        with_tokens = body.logprobs is not None or body.return_token_ids
        if not (text or with_tokens or ended):
            return None
        reason = sample.reason if ended else None
        choice: dict[str, Any] = {"text": text, "finish_reason": reason, "logprobs": None}
        if body.logprobs is not None:
            texts = self._model.decode([[token] for token in sample.tokens])
            starts = list(accumulate(map(len, texts), initial=0))[:-1]
            choice["logprobs"] = {
                "tokens": texts[tokens],
                "token_logprobs": sample.logprobs[tokens],
                "top_logprobs": None,
                "text_offset": starts[tokens],
            }
        if body.return_token_ids:
            choice["token_ids"] = sample.tokens[tokens]
        if body.with_prompt_ids:
            choice["prompt_token_ids"] = [*sample.prompt]
        return choice


def _without_open_end(text: str, marks: Sequence[str]) -> str:
    """Return `text` without a final piece that could be the start of a mark or an incomplete character."""
    text = text.rstrip("\ufffd")
    starts = [
        size
        for mark in marks
        for size in range(1, min(len(mark), len(text) + 1))
        if text.endswith(mark[:size])
    ]
    return text[: len(text) - max(starts, default=0)]
