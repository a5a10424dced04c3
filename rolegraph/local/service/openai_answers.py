"""Answers of /v1 while they are sampled: entries of `choices`, whole or as increments of a stream.

Token ids are returned in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice) on request.
Reasoning is returned as `reasoning_content`. A streamed turn that may call tools is sent when it is complete,
since only then its calls can be recognized.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from rolegraph.engine.models.tokens import without
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE, OPEN, TokenizedPrompt, cut_at_stop
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import LocalModel, TopTokens
from rolegraph.local.service.openai_bodies import ChatBody, CompletionBody

_NO_TOP = TopTokens((), ())
_BYTES_OF_CHARACTER = 4
"""Largest number of tokens that a character of UTF-8 can be split into."""


class SampledAnswer(ABC):
    """One sampled answer, with the part of it that a stream has already sent; makes the increments of a
    response.

    An answer has parts, such as reasoning and text. Parts only grow: an end that may become one of `marks` (a
    stop text or a tag) is held back. `index` is the answer's number in `choices`.
    """

    def __init__(self, index: int, job: SampleJob, marks: Sequence[str]) -> None:
        self.index, self._marks, self._job = index, marks, job
        self.sample = job.requests[index % len(job.requests)]
        self._tokens, self._ended = 0, False
        self._sent: list[str] = []

    @abstractmethod
    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Decode the first tokens of the answer into the texts of its parts; `ended` is True if these are all
        tokens."""

    @abstractmethod
    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build one entry of `choices`, without its index; None if there is nothing to send.

        Args:
            parts: New text of each part.
            tokens: Positions of the new tokens in the answer.
            ended: True if the answer ends with these tokens.
        """

    def increment(self) -> dict[str, Any] | None:
        """Return the entry of `choices` for the tokens sampled since the last call; None if there is nothing
        to send.

        Meanwhile the compute thread appends a token, then its log-probability, then the reason of the end. So
        this method reads the reason first, and counts the log-probabilities.

        Raises:
            RequestError: Log-probabilities are not finite, which JSON cannot express.
        """
        is_ended = self.sample.reason is not None
        tokens = slice(self._tokens, len(self.sample.logprobs))
        if self._ended or self._job.is_unscored or (tokens.stop <= tokens.start and not is_ended):
            return None
        prompt_logprobs = self._job.prompt_logprobs[1:] if tokens.start == 0 else ()
        if not all(map(math.isfinite, (*prompt_logprobs, *self.sample.logprobs[tokens]))):
            raise RequestError("these weights give no finite numbers: their training has diverged")
        self._tokens, self._ended = tokens.stop, is_ended
        parts = self.parts(self.sample.tokens[: tokens.stop], is_ended)
        settled_parts = parts if is_ended else [_without_open_end(part, self._marks) for part in parts]
        self._sent = self._sent or [""] * len(parts)
        new_parts = [part[len(sent) :] for part, sent in zip(settled_parts, self._sent, strict=True)]
        self._sent = [sent + addition for sent, addition in zip(self._sent, new_parts, strict=True)]
        choice = self.choice(new_parts, tokens, is_ended)
        return None if choice is None else {"index": self.index, **choice}


class ChatAnswer(SampledAnswer):
    """Answer to a chat, in two parts: reasoning and text."""

    def __init__(
        self,
        index: int,
        job: SampleJob,
        body: ChatBody,
        model: LocalModel,
        chat: ChatFormat,
        prompt: TokenizedPrompt,
    ) -> None:
        super().__init__(index, job, (*body.stop_texts, OPEN, CLOSE))
        self._chat, self._model, self._body = chat, model, body
        self._functions, self._thinking = body.functions, prompt.thinking

    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Return the reasoning and the text; the text keeps special tokens only if they may write calls."""
        thought, text = self._chat.answer(tokens, stop=self.sample.stop_texts, thinking=self._thinking)
        thought = self._cleaned(thought, tokens)
        if not self._functions:
            text = self._cleaned(text, tokens)
        if not ended and (self._functions or (not thought and OPEN.startswith(text.lstrip()))):
            text = ""
        return thought, text

    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build an entry with a message or, in a stream, its `delta`."""
        thought, text = parts
        message: dict[str, Any] = {"role": "assistant", "content": text}
        reason: str | None = None
        if ended:
            text, calls = self._chat.calls(text, self._functions)
            text = self._cleaned(text, self.sample.tokens)
            # OpenAI's API has no call without a name; such a call remains in the text.
            named_calls = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
            message = {**answer_message(text, calls=named_calls)}
            reason = "tool_calls" if named_calls else self.sample.reason
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
        """Return log-probabilities and ids of the tokens at some positions, if the request asks for them."""
        fields: dict[str, Any] = {}
        tokens, logprobs = self.sample.tokens[positions], self.sample.logprobs[positions]
        if self._body.logprobs:
            likeliest = self.sample.top_tokens[positions] or repeat(_NO_TOP, len(tokens))
            fields["logprobs"] = {
                "content": [
                    {**entry, "top_logprobs": self._entries(*top_tokens)}
                    for entry, top_tokens in zip(self._entries(tokens, logprobs), likeliest, strict=True)
                ]
            }
        if self._body.return_token_ids:
            fields["token_ids"] = tokens
        return fields

    def _entries(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
        texts = self._model.decode([[token] for token in tokens])
        return [
            {"token": text, "logprob": logprob, "bytes": None}
            for text, logprob in zip(texts, logprobs, strict=True)
        ]


class CompletionAnswer(SampledAnswer):
    """Answer to a request for completions, whose only part is the text; `prompt` is as the client sent it."""

    def __init__(
        self, index: int, job: SampleJob, body: CompletionBody, model: LocalModel, prompt: str | list[int]
    ) -> None:
        super().__init__(index, job, body.stop_texts)
        self._model, self._body, self._prompt = model, body, prompt
        self._start, self._part, self._whole = 0, list[int](), ""
        """(Offset of the last character, its tokens, their text); the text may be a part of a character."""

    def parts(self, tokens: Sequence[int], ended: bool) -> Sequence[str]:
        """Return the decoded text as the only part, without the stop token and cut at a stop text."""
        kept_tokens = tokens[:-1] if tokens and tokens[-1] in self.sample.stop_ids else tokens
        return (cut_at_stop(self._model.decode([[*kept_tokens]])[0], self.sample.stop_texts),)

    def choice(self, parts: Sequence[str], tokens: slice, ended: bool) -> dict[str, Any] | None:
        """Build an entry with a text."""
        body, sample, (text,) = self._body, self.sample, parts
        has_tokens = body.logprobs is not None or body.return_token_ids
        echoes = bool(body.echo) and tokens.start == 0
        if not (text or has_tokens or ended or echoes):
            return None
        if echoes:
            prompt = self._prompt
            text = (prompt if isinstance(prompt, str) else self._model.decode([prompt])[0]) + text
        reason = sample.reason if ended else None
        choice: dict[str, Any] = {"text": text, "finish_reason": reason, "logprobs": None}
        if body.logprobs is not None:
            choice["logprobs"] = self._logprobs(body.logprobs, tokens)
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._job, self._model, body.prompt_logprobs)
        if body.return_token_ids:
            choice["token_ids"] = sample.tokens[tokens]
        if body.with_prompt_ids:
            choice["prompt_token_ids"] = [*sample.prompt]
        return choice

    def _logprobs(self, count: int, positions: slice) -> dict[str, Any]:
        """Return log-probabilities in the form of OpenAI's completions.

        Args:
            count: Number of likeliest tokens at each position.
            positions: Positions of the new tokens in the answer; an echoed prompt comes before the first.
        """
        sample = self.sample
        ids: list[int] = sample.tokens[positions]
        logprobs: list[float | None] = [*sample.logprobs[positions]]
        likeliest: list[TopTokens] = sample.top_tokens[positions]
        echoes = bool(self._body.echo) and positions.start == 0
        if echoes:
            ids = [*sample.prompt, *ids]
            logprobs = [None, *self._job.prompt_logprobs[1:], *logprobs]
            likeliest = [_NO_TOP, *self._job.top_prompt, *likeliest]
        texts = self._model.decode([[token] for token in ids])
        top_by_text: list[dict[str, float] | None] | None = None
        if count:
            new_tokens = zip(ids, logprobs, likeliest, strict=False)
            top_by_text = [
                None if logprob is None else self._by_text(_with_own(top_row, count, token, logprob))
                for token, logprob, top_row in new_tokens
            ]
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": top_by_text,
            "text_offset": self._offsets(ids, texts, echoes=echoes),
        }

    def _by_text(self, logprobs: Mapping[int, float]) -> dict[str, float]:
        """Return log-probabilities by text; if several tokens have the same text, such as a part of a
        character, the first counts."""
        by_text: dict[str, float] = {}
        for text, logprob in zip(
            self._model.decode([[token] for token in logprobs]), logprobs.values(), strict=True
        ):
            by_text.setdefault(text, logprob)
        return by_text

    def _offsets(self, ids: Sequence[int], texts: Sequence[str], *, echoes: bool) -> list[int]:
        """Return the position in the answer's text, in characters, at which each of the next tokens begins.

        A beginning-of-text token that the tokenizer adds to a prompt has no characters. Tokens that are parts
        of one character begin where the character begins.
        """
        prompt, bos = self._prompt, self._model.tokenizer.bos_token_id
        if echoes and isinstance(prompt, str) and ids[0] == bos and not prompt.startswith(texts[0]):
            texts = ["", *texts[1:]]
        offsets: list[int] = []
        for token, text in zip(ids, texts, strict=True):
            is_open = self._whole.endswith("\ufffd") and len(self._part) < _BYTES_OF_CHARACTER
            if not ("\ufffd" in text and is_open):
                self._start, self._part = self._start + len(self._whole), []
            offsets.append(self._start)
            self._part.append(token)
            self._whole = text if len(self._part) == 1 else self._model.decode([self._part])[0]
        return offsets


def prompt_logprobs(
    job: SampleJob, model: LocalModel, count: int
) -> list[dict[str, dict[str, float | str | None]] | None]:
    """Return the log-probabilities of a scored job's prompt in vLLM's form.

    Args:
        job: The job.
        model: The model.
        count: Number of likeliest tokens at each position, beside the prompt's own token.

    Returns:
        A list with an entry for each token: by token id, the log-probability, the text and the `rank`, which
            is None for a token that is not among the likeliest. The first token has None instead.
    """
    rows = [
        _with_own(ranking, count, token, logprob)
        for token, logprob, ranking in zip(
            job.requests[0].prompt[1:],
            job.prompt_logprobs[1:],
            job.top_prompt or repeat(_NO_TOP),
            strict=False,
        )
    ]
    ids = sorted({token for ranking in rows for token in ranking})
    texts = dict(zip(ids, model.decode([[token] for token in ids]), strict=True))
    return [
        None,
        *(
            {
                str(token): {
                    "logprob": logprob,
                    "rank": rank if rank <= count else None,
                    "decoded_token": texts[token],
                }
                for rank, (token, logprob) in enumerate(ranking.items(), start=1)
            }
            for ranking in rows
        ),
    ]


def _with_own(top: TopTokens, count: int, token: int, logprob: float) -> dict[int, float]:
    """Return the log-probabilities, by id, of the `count` likeliest tokens at a position and of the prompt's
    or answer's `token`."""
    # The own value replaces one of another pass over the prompt, so that clients can compare the two.
    return {**dict(zip(top.ids[:count], top.logprobs[:count], strict=True)), token: logprob}


def _without_open_end(text: str, marks: Sequence[str]) -> str:
    """Return `text` without an end that may be the start of one of `marks` or an incomplete character."""
    text = text.rstrip("\ufffd")
    open_ends = [
        size
        for mark in marks
        for size in range(1, min(len(mark), len(text) + 1))
        if text.endswith(mark[:size])
    ]
    return text[: len(text) - max(open_ends, default=0)]
