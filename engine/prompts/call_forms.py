"""How models write calls of tools in the text of an answer: one form for each family of chat templates.

A form is told by the text that a template makes of a call (`ChatFormat`), never by a model's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from rolegraph.engine.vocabulary import Function, ToolCall

Functions = Sequence[Function]


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family of models writes calls."""

    name: str
    """Whose it is, for messages to the person."""
    begins: str
    """What every call has, without which there is nothing to look for."""
    pattern: re.Pattern[str]
    """A part of an answer that has calls and nothing else."""
    read: Callable[[re.Match[str], Functions], Sequence[ToolCall]]
    """The calls in a match; one that cannot be read has no name."""
    ids: bool = False
    """Whether a template asks for an id of nine characters, which the model may leave to us."""
    text_arguments: bool = False
    """Whether a template takes arguments as text, not as a mapping."""

    def find(self, text: str, functions: Functions = ()) -> tuple[str, tuple[ToolCall, ...]]:
        """What a text says beside its calls, and these; one that cannot be read stays in the text, too."""
        if self.begins not in text:
            return text, ()
        calls: list[ToolCall] = []

        def taken(match: re.Match[str]) -> str:
            found = self.read(match, functions)
            calls.extend(found)
            return "" if found and all(call.name for call in found) else match[0]

        rest = self.pattern.sub(taken, text)
        if not calls:
            return text, ()
        if self.ids:
            calls = [call._replace(id=call.id or id_of(number)) for number, call in enumerate(calls, 1)]
        return rest.strip(), tuple(calls)


def id_of(number: int) -> str:
    """The id of an answer's call, from 1, for templates that ask for nine characters."""
    return f"call{number:05}"


def tool_call(name: str, written: str, id: str = "") -> ToolCall:
    """A call with its arguments as the model wrote them: the JSON of an object."""
    try:
        value = _json(written or "{}")
    except ValueError:
        value = None
    if name and isinstance(value, dict):
        return ToolCall(name, cast("dict[str, Any]", value), id)
    return ToolCall(name, {}, id, malformed=written)


def _json(text: str) -> object:
    """A value that can be written out again; raises ValueError."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unread(body: str) -> ToolCall:
    return ToolCall("", {}, malformed=body.strip() or "nothing")


def _of_value(value: object, key: str) -> ToolCall | None:
    """The call that an object says, its arguments under `key`; None where it says none."""
    if not isinstance(value, dict):
        return None
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get(key, {})
    if not isinstance(name, str) or not name:
        return None
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return tool_call(name, written, str(call.get("id") or ""))


def _one(key: str) -> Callable[[re.Match[str], Functions], Sequence[ToolCall]]:
    """A match is an object with a name and, under `key`, arguments."""

    def read(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
        found = None
        with suppress(ValueError):
            found = _of_value(_json(match["body"]), key)
        return [found or _unread(match["body"])]

    return read


def _list(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """A match is a list of such objects."""
    values: object = None
    with suppress(ValueError):
        values = _json(match["body"])
    items = cast("list[object]", values) if isinstance(values, list) else []
    calls = [_of_value(item, "arguments") for item in items]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else [_unread(match["body"])]


def _parts(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """A match has a name, arguments, and perhaps an id, each in a place of its own."""
    parts = match.groupdict()
    return [tool_call(parts["name"].strip(), parts["arguments"].strip(), (parts.get("id") or "").strip())]


def _fields(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """A match has a tag for each argument, with its text; which are no text is in the function's schema."""
    function = _FUNCTION.fullmatch(match["body"].strip())
    if function is None:
        return [_unread(match["body"])]
    schemas = {known.name: known.parameters for known in functions}
    properties: Mapping[str, Any] = schemas.get(function["name"], {}).get("properties") or {}
    arguments = {
        name: _valued(text, properties.get(name)) for name, text in _FIELD.findall(function["fields"])
    }
    return [ToolCall(function["name"], arguments)]


def _valued(text: str, schema: object) -> object:
    kind = cast("Mapping[str, Any]", schema).get("type", "string") if isinstance(schema, dict) else "string"
    with suppress(ValueError):
        return text if kind == "string" else _json(text)
    return text


_FUNCTION = re.compile(r"<function=(?P<name>[^>\s]+)>(?P<fields>.*)</function>", re.DOTALL)
_FIELD = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(?P<body>.*?)(?:</tool_call>|\Z)", re.DOTALL)

HERMES = CallForm("Qwen", "<tool_call>", _TAGGED, _one("arguments"))
"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which many others took over."""
FORMS = (
    HERMES,
    CallForm("Qwen Coder", "<tool_call>", _TAGGED, _fields),
    CallForm(
        "Llama",
        '"parameters"',
        re.compile(
            r'\A\s*(?:<\|python_tag\|>)?(?P<body>\s*\{\s*"name"\s*:[^{}]*"parameters"\s*:.*)\Z', re.DOTALL
        ),
        _one("parameters"),
    ),
    CallForm(
        "Mistral",
        "[TOOL_CALLS]",
        re.compile(r"\[TOOL_CALLS\]\s*(?P<body>\[.*)\Z", re.DOTALL),
        _list,
        ids=True,
    ),
    CallForm(
        "Mistral",
        "[ARGS]",
        re.compile(
            r"\[TOOL_CALLS\](?P<name>[^\[\]]*)(?:\[CALL_ID\](?P<id>\w*))?\[ARGS\]"
            r"(?P<arguments>.*?)(?=\[TOOL_CALLS\]|\Z)",
            re.DOTALL,
        ),
        _parts,
        ids=True,
    ),
    CallForm(
        "DeepSeek",
        "<｜tool▁call▁begin｜>",
        re.compile(
            r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>(?P<name>[^<]*)<｜tool▁sep｜>"
            r"(?P<arguments>.*?)(?:<｜tool▁call▁end｜>|\Z)\s*(?:<｜tool▁calls▁end｜>)?",
            re.DOTALL,
        ),
        _parts,
        text_arguments=True,
    ),
)
"""All that can be read."""
