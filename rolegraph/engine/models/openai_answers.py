"""Chat completions as servers give them: OpenAI's fields, and the forms in which other servers write them.

A response may also be a stream of events, which is joined first.

`content` may be a list of parts, and reasoning one of them; the arguments of a call may be an object or
missing. Beyond OpenAI's own fields: vLLM answers `return_token_ids` with `prompt_token_ids` on the answer and
`token_ids` on the choice, and gives reasoning as `reasoning` (formerly `reasoning_content`); SGLang answers
it with `response_token_ids` or `token_ids`, and `prompt_token_ids` on the choice; llama.cpp's server gives an
id with each log-probability; LiteLLM's proxy moves fields of a choice that it does not know into
`provider_specific_fields`. A text of any other form is an error that names the field. Numbers are not checked
here: `Completion.checked` does that for all models. A response is decoded in one pass: no object is made of a
field that no record here has, such as the bytes of each token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec import Struct, field

from rolegraph.engine.models.openai_stream import (
    decode_leniently,
    fields_in,
    is_stream,
    items_in,
    joined,
)
from rolegraph.engine.models.typed_json import converted, decode
from rolegraph.engine.records.metadata import UsageMetadata

_LENGTH = ("length", "max_tokens", "model_length")
"""Words, in lower case, by which servers say that an answer was cut off."""
_BROKEN_OFF = ("abort", "error", "insufficient_system_resource")
"""Words by which servers say that they did not finish an answer."""
_THOUGHTS = ("thinking", "reasoning", "reasoning_content", "summary_text")
"""Types of the parts of `content` that are reasoning, and names of the fields that hold it."""
_SILENT = ("redacted_thinking", "reference")
"""Types of the parts of `content` that have no text."""
_REFUSED = re.compile("^(400|422)$|invalid|unsupported|bad_?request|unprocessable", re.IGNORECASE)
"""Words in the codes and types of refusals."""
_KEY_REFUSED = re.compile("^401$|api_?key|auth", re.IGNORECASE)
"""Words in the codes and types of errors about a key."""
_CODE_CHARS = 100
"""Number of characters of a code that are read."""
_OF_THE_PROTOCOL = ("choices", "error", "object")


class UnreadableAnswer(ValueError):
    """Error of a response that is no chat completion; `is_foreign` if it has nothing of the protocol."""

    def __init__(self, fault: str, *, is_foreign: bool) -> None:
        self.is_foreign = is_foreign
        super().__init__(fault)


class Content(NamedTuple):
    """Text, reasoning and refusal in a message of an answer."""

    text: str = ""
    thought: str = ""
    refusal: str = ""

    @property
    def whole(self) -> str:
        """Reasoning and text joined, for a field that holds only one of them."""
        return self.thought + self.text


def _content(value: object) -> Content:
    """Parse a message's `content` (text, null, or a list of parts); raises ValueError for any other value."""
    match value:
        case None:
            return Content()
        case str():
            return Content(value)
        case list():
            contents = [_content(part) for part in cast("list[object]", value)]
            return Content(*("".join(kind) for kind in zip(*contents, strict=True)))
        case dict():
            return _part(cast("dict[str, object]", value))
        case _:
            raise ValueError("content: expected a text or a list of parts")


def _part(part: Mapping[str, object]) -> Content:
    match part:
        case {"type": "refusal"}:
            return Content(refusal=_content(part.get("refusal")).whole)
        case {"type": str(kind)} if kind in _THOUGHTS:
            part_values = (part.get(key) for key in (kind, "text", "content", "summary"))
            return Content(thought=next((_content(v).whole for v in part_values if v is not None), ""))
        case {"type": str(kind)} if kind in _SILENT:
            return Content()
        case {"text": str(text) | {"value": str(text)}}:
            return Content(text)
        case {"text": None}:
            return Content()
        case {"type": str(kind)}:
            raise ValueError(f"content: a part has the type {kind[:40]!r}, which is no text")
        case _:
            raise ValueError("content: expected a text or a list of parts, got an object")


def _thought(value: object) -> str:
    """Return the text in a message's field of reasoning; empty where the field has an unknown form."""
    try:
        return _content(value).whole
    except ValueError:
        return ""


class FunctionBody(Struct):
    """The function of a call."""

    name: str | None = None
    written: Any = field(default=None, name="arguments")

    @property
    def arguments(self) -> str:
        """Arguments as JSON text: a text unchanged, an object dumped, null as empty text."""
        value: object = self.written
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)


class AnswerCall(Struct):
    """A tool call in a model's answer."""

    id: str | int | bool | None = None
    function: FunctionBody | None = None
    """The called function; None for calls of other kinds."""


class AnswerMessage(Struct):
    """Assistant message of one of a completion's choices."""

    written: Any = field(default=None, name="content")
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[AnswerCall] | None = None

    def __post_init__(self) -> None:
        """Check `content`; msgspec converts a ValueError to a ValidationError with the place."""
        _content(self.written)

    @property
    def content(self) -> Content:
        """Text, reasoning and refusal of the field `content`."""
        return _content(self.written)

    @property
    def thought(self) -> str:
        """Reasoning in a field of its own, else in a part of `content`."""
        return _thought(self.reasoning) or _thought(self.reasoning_content) or self.content.thought


class TokenScore(Struct, gc=False):
    """Log-probability of a token, and the id that llama.cpp's server adds; both unchecked."""

    logprob: Any = None
    id: Any = None


class _Scores(Struct):
    content: list[TokenScore] | None = None


class Choice(Struct):
    """One of a completion's answers."""

    message: AnswerMessage | None = None
    stated: Any = field(default=None, name="finish_reason")
    error: Any = None
    logprobs: _Scores | None = None
    token_ids: Any = None
    response_token_ids: Any = None
    prompt_token_ids: Any = None
    provider_specific_fields: Any = None
    """Fields that LiteLLM's proxy does not know, and moves here."""

    @property
    def finish_reason(self) -> str:
        """Reason why the answer ended, in lower case; empty if the server gives no reason."""
        return self.stated.lower() if isinstance(self.stated, str) else ""

    @property
    def scores(self) -> Sequence[TokenScore]:
        """A TokenScore for each sampled token; empty if the server gives no log-probabilities."""
        return (self.logprobs and self.logprobs.content) or ()

    @property
    def ids(self) -> list[Any]:
        """Ids of the sampled tokens, unchecked; empty if the server gives no ids."""
        moved_ids = fields_in(self.provider_specific_fields).get("token_ids")
        stated_ids = items_in(self.token_ids) or items_in(self.response_token_ids) or items_in(moved_ids)
        score_ids = [] if stated_ids else [score.id for score in self.scores]
        return stated_ids or ([] if None in score_ids else score_ids)

    @property
    def is_cut(self) -> bool:
        """True for an answer that was cut at a length limit, by its `finish_reason`."""
        return self.finish_reason in _LENGTH

    @property
    def is_broken_off(self) -> bool:
        """True for an answer that the server broke off with an error."""
        return self.finish_reason in _BROKEN_OFF or bool(self.error)


class ServerCompletion(Struct):
    """Fields of a completion that are read. The client's own types lack other servers' fields, and check
    nothing."""

    object: Any = None
    choices: list[Choice] | None = None
    error: Any = None
    counts: Any = field(default=None, name="usage")
    prompt_token_ids: Any = None

    @property
    def usage(self) -> UsageMetadata:
        """Token counts of the call, unchecked, without missing ones; OpenRouter adds dollars."""
        counts = fields_in(self.counts)
        named_counts = ((key, counts.get(key)) for key in ("prompt_tokens", "completion_tokens", "cost"))
        return cast("UsageMetadata", {key: count for key, count in named_counts if count is not None})

    @property
    def prompt_ids(self) -> list[Any]:
        """Ids of the prompt, unchecked; empty if the server gives no ids."""
        choice_ids = self.choices[0].prompt_token_ids if self.choices else None
        return items_in(self.prompt_token_ids) or items_in(choice_ids)

    @property
    def fault(self) -> object:
        """Error in place of an answer, or of its first choice; None without an error."""
        return self.choices[0].error if self.choices else self.error


def read_answer(content: bytes) -> ServerCompletion:
    """Read a response; raises UnreadableAnswer. An unpaired surrogate in a text becomes U+FFFD."""
    try:
        answer = decode(content, ServerCompletion)
    except ValueError:  # broken, events, JSON with an unpaired surrogate, or a field of another type
        answer = ServerCompletion()
    if not answer.choices or answer.object == "error":
        answer = _answer_of(_parsed(content))
    if answer.choices and answer.choices[0].message is None and not answer.error:
        first_choice = answer.choices[0]
        if not (first_choice.is_cut or first_choice.error or first_choice.finish_reason == "content_filter"):
            raise UnreadableAnswer("choices.0 has no message", is_foreign=False)
    return answer


def _answer_of(value: object) -> ServerCompletion:
    """Return the completion of a JSON value; raises UnreadableAnswer.

    Log-probabilities in another form than OpenAI's are left out.
    """
    if not isinstance(value, dict):
        raise UnreadableAnswer("the response is no JSON object", is_foreign=True)
    fields = cast("dict[str, object]", value)
    if not any(key in fields for key in _OF_THE_PROTOCOL):
        raise UnreadableAnswer(f"the response has no {' or '.join(_OF_THE_PROTOCOL)}", is_foreign=True)
    if fields.get("object") == "error" and not fields.get("error"):
        fields = {**fields, "error": fields}
    for choice in map(fields_in, items_in(fields.get("choices"))):
        if "logprobs" in choice:
            scores = items_in(fields_in(choice["logprobs"]).get("content"))
            choice["logprobs"] = {"content": [*map(fields_in, scores)]}
    try:
        return converted(fields, ServerCompletion)
    except ValueError as error:
        raise UnreadableAnswer(str(error), is_foreign=False) from error


def message_of(error: object) -> str:
    """Return the message of an error object in a response, or the object as text."""
    words = fields_in(error).get("message") or error
    return words if isinstance(words, str) else str(error)


def says_refused(error: object) -> bool:
    """Return True for an error in a response that says, by its code or type, that the request is at fault."""
    return _has_code(error, _REFUSED) and not says_key_refused(error)


def says_key_refused(error: object) -> bool:
    """Return True for an error in a response that says, by its code or type, that the key is at fault."""
    return _has_code(error, _KEY_REFUSED)


def _has_code(error: object, words: re.Pattern[str]) -> bool:
    codes = (fields_in(error).get(name) for name in ("code", "status", "type"))
    return any(words.search(str(code)[:_CODE_CHARS]) for code in codes)


def _parsed(content: bytes) -> object:
    is_events = is_stream(content)
    is_foreign = not (is_events or content.lstrip().startswith(b"{"))
    try:
        return joined(content) if is_events else decode_leniently(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UnreadableAnswer("the response is not UTF-8 text", is_foreign=is_foreign) from error
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswer("the response is not valid JSON", is_foreign=is_foreign) from error


_CODES = ("context_length_exceeded", "exceed_context_size_error", "context_window_exceeded")
_CONTEXT = r"context[ _-]?(length|size|window|limit)"
_MORE = r"(exceed|maximum|longer|greater|too (large|long)|overflow|only|not enough|reduce)"
_FULL = re.compile(
    "|".join(
        (
            # OpenAI, vLLM, SGLang, DeepSeek, llama.cpp, Mistral, Anthropic's `exceed context limit`
            rf"{_MORE}.{{0,120}}{_CONTEXT}|{_CONTEXT}.{{0,120}}{_MORE}",
            r"(prompt|input)\w* (is|are) too long",  # Anthropic, Bedrock
            r"longer than the maximum model length|max_model_len",  # vLLM
            r"maximum (prompt|input) length",  # xAI
            r"(input|prompt) tokens? count.{0,40}exceeds|exceed\w* model token limit",  # Gemini, Moonshot
            r"(input|prompt)\b.{0,30} exceeds (the )?max\w*( allowed)?( input)? length",  # SGLang, Z.ai
            r"input tokens exceed|reduce the length of the (messages|prompt)",  # OpenAI, Groq, Cerebras
            r"range of input length should be",  # DashScope
            r"model's context is \d",  # rolegraph serve up to 0.2, of which LiteLLM passes on the words alone
            r"`?inputs`? (tokens \+ `?max_new_tokens`? must be <=|must have less than)",  # TGI
        )
    ),
    re.IGNORECASE | re.DOTALL,
)
"""Words by which servers say that a prompt, or a prompt with its answer, exceeds the model's context."""


def says_context_full(message: str, *codes: object) -> bool:
    """Return True for a server's error which says that the request is longer than the model's context.

    Args:
        message: The server's message.
        codes: The code and the type of the error; None for a missing one.
    """
    return any(code in _CODES for code in codes) or _FULL.search(message[:2000]) is not None
