"""Chat completions as servers give them: OpenAI's fields, and the forms in which other servers write them.

A response may also be a stream of events, which is joined first.

`content` may be a list of parts, and reasoning one of them; the arguments of a call may be an object or
missing. Beyond OpenAI's own fields: vLLM answers `return_token_ids` with `prompt_token_ids` on the answer and
`token_ids` on the choice, and gives reasoning as `reasoning` (formerly `reasoning_content`); SGLang answers
it with `response_token_ids` or `token_ids`, and `prompt_token_ids` on the choice; llama.cpp's server gives an
id with each log-probability; LiteLLM's proxy moves fields of a choice that it does not know into
`provider_specific_fields`. A text of any other form is an error that names the field. Numbers are not checked
here: `Completion.checked` does that for all models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic_core import from_json

from rolegraph.engine.models.openai_stream import fields_in, is_stream, items_in, joined
from rolegraph.engine.records.jsonl import reason
from rolegraph.engine.records.metadata import UsageMetadata

_LENGTH = ("length", "max_tokens", "model_length")
"""Words of servers for an answer that was cut off, in lower case."""
_BROKEN_OFF = ("abort", "error", "insufficient_system_resource")
"""Words of servers for an answer that they did not finish."""
_THOUGHTS = ("thinking", "reasoning", "reasoning_content", "summary_text")
"""Types of parts of `content` that are reasoning, and the fields with its text."""
_SILENT = ("redacted_thinking", "reference")
"""Types of parts of `content` without text."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REFUSED = re.compile("^(400|422)$|invalid|unsupported|bad_?request|unprocessable", re.IGNORECASE)
"""Words in the codes and types of refusals."""
_KEY_REFUSED = re.compile("^401$|api_?key|auth", re.IGNORECASE)
"""Words in the codes and types of errors about a key."""
_CODE_CHARS = 100
"""Length of the beginning of a code that is read."""
_OF_THE_PROTOCOL = ("choices", "error", "object")


class UnreadableAnswer(ValueError):
    """Error of a response that is no chat completion; `is_foreign` where nothing of the protocol is in it."""

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
            parts = [_content(part) for part in cast("list[object]", value)]
            return Content(*("".join(kind) for kind in zip(*parts, strict=True)))
        case dict():
            return _part(cast("dict[str, object]", value))
        case _:
            raise ValueError("expected a text or a list of parts")


def _part(part: Mapping[str, object]) -> Content:
    match part:
        case {"type": "refusal"}:
            return Content(refusal=_content(part.get("refusal")).whole)
        case {"type": str(kind)} if kind in _THOUGHTS:
            written = (part.get(key) for key in (kind, "text", "content", "summary"))
            return Content(thought=next((_content(it).whole for it in written if it is not None), ""))
        case {"type": str(kind)} if kind in _SILENT:
            return Content()
        case {"text": str(text) | {"value": str(text)}}:
            return Content(text)
        case {"text": None}:
            return Content()
        case {"type": str(kind)}:
            raise ValueError(f"a part has the type {kind[:40]!r}, which is no text")
        case _:
            raise ValueError("expected a text or a list of parts, got an object")


def _thought(value: object) -> str:
    """Return the text in a message's field of reasoning; empty where the field has an unknown form."""
    try:
        return _content(value).whole
    except ValueError:
        return ""


def _arguments(value: object) -> str:
    """Return a call's arguments as JSON text: a text unchanged, an object dumped, null as empty text."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _counts(value: object) -> UsageMetadata:
    """Return the counts of a call's usage, unchecked; a missing one is left out. OpenRouter gives dollars."""
    counts = ((key, fields_in(value).get(key)) for key in ("prompt_tokens", "completion_tokens", "cost"))
    return cast("UsageMetadata", {key: count for key, count in counts if count is not None})


def _scores(value: object) -> list[tuple[Any, Any]]:
    """Return the log-probability and the id of each token, unchecked; None for a missing one."""
    entries = map(fields_in, items_in(fields_in(value).get("content")))
    return [(entry.get("logprob"), entry.get("id")) for entry in entries]


class FunctionBody(BaseModel):
    """The function of a call."""

    name: Annotated[str, BeforeValidator(lambda it: it or "")] = ""
    arguments: Annotated[str, PlainValidator(_arguments)] = ""


class AnswerCall(BaseModel):
    """A tool call in a model's answer."""

    id: str | int | None = None
    function: FunctionBody | None = None
    """The called function; None for calls of other kinds."""


class AnswerMessage(BaseModel):
    """Assistant message of one of a completion's choices."""

    content: Annotated[Content, PlainValidator(_content)] = Content()
    refusal: str | None = None
    reasoning: Annotated[str, PlainValidator(_thought)] = ""
    reasoning_content: Annotated[str, PlainValidator(_thought)] = ""
    tool_calls: list[AnswerCall] | None = None


_Numbers = Annotated[list[Any], PlainValidator(items_in)]


class Choice(BaseModel):
    """One of a completion's answers."""

    message: AnswerMessage | None = None
    finish_reason: Annotated[str, PlainValidator(lambda it: it.lower() if isinstance(it, str) else "")] = ""
    error: Any = None
    scores: Annotated[list[tuple[Any, Any]], PlainValidator(_scores), Field(alias="logprobs")] = []
    """Log-probability of each token, and the id that llama.cpp's server gives beside it."""
    token_ids: _Numbers = []
    response_token_ids: _Numbers = []
    prompt_token_ids: _Numbers = []
    provider_specific_fields: Any = None
    """Fields that LiteLLM's proxy does not know and moves here."""

    @property
    def ids(self) -> list[Any]:
        """Ids of the sampled tokens, unchecked; empty where the server gives none."""
        scored = [id for _, id in self.scores if id is not None]
        scored = scored if len(scored) == len(self.scores) else []
        moved = items_in(fields_in(self.provider_specific_fields).get("token_ids"))
        return self.token_ids or self.response_token_ids or moved or scored

    @property
    def is_cut(self) -> bool:
        """True for an answer that was cut at a length limit, by its `finish_reason`."""
        return self.finish_reason in _LENGTH

    @property
    def is_broken_off(self) -> bool:
        """True for an answer that the server broke off with an error."""
        return self.finish_reason in _BROKEN_OFF or bool(self.error)


class ServerCompletion(BaseModel):
    """Fields of a completion that are read: the client's own types lack vendors' fields and check none."""

    choices: list[Choice] | None = None
    error: Any = None
    usage: Annotated[UsageMetadata, PlainValidator(_counts)] = UsageMetadata()
    prompt_token_ids: _Numbers = []

    @property
    def fault(self) -> object:
        """Error in the place of an answer, or of its first choice; None for an answer."""
        return self.choices[0].error if self.choices else self.error


def read_answer(content: bytes) -> ServerCompletion:
    """Read a response; raises UnreadableAnswer. An unpaired surrogate in a text becomes U+FFFD."""
    value = _parsed(content)
    if not isinstance(value, dict):
        raise UnreadableAnswer("the response is no JSON object", is_foreign=True)
    fields = cast("dict[str, object]", value)
    if fields.get("object") == "error" and not fields.get("error"):
        fields = {**fields, "error": fields}
    try:
        answer = ServerCompletion.model_validate(fields)
    except ValidationError as error:
        raise UnreadableAnswer(reason(error), is_foreign=False) from error
    if answer.choices and answer.choices[0].message is None and not answer.error:
        first = answer.choices[0]
        if not (first.is_cut or first.error or first.finish_reason == "content_filter"):
            raise UnreadableAnswer("choices.0 has no message", is_foreign=False)
    if not any(key in fields for key in _OF_THE_PROTOCOL):
        raise UnreadableAnswer(f"the response has no {' or '.join(_OF_THE_PROTOCOL)}", is_foreign=True)
    return answer


def message_of(error: object) -> str:
    """Return the message of an error object in a response, or the object as text."""
    whole: object = error
    words = cast("dict[str, object]", error).get("message") if isinstance(error, dict) else error
    return words if isinstance(words, str) and words else str(whole)


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
    try:
        return from_json(content)
    except ValueError:  # broken, events, or JSON with an unpaired surrogate
        is_events = is_stream(content)
        is_foreign = not (is_events or content.lstrip().startswith(b"{"))
    try:
        value: object = joined(content) if is_events else json.loads(content.decode("utf-8-sig"))
        return from_json(_LONE_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
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
    """Return True for an error of a server whose model's context is too short for the request.

    Args:
        message: The server's message.
        codes: The code and the type of the error, where it has them.
    """
    return any(code in _CODES for code in codes) or _FULL.search(message[:2000]) is not None
