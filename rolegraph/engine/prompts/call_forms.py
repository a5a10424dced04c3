"""Syntax of tool calls in the text of answers: one form for each family of chat templates.

`ChatFormat` picks the form by the text that a model's template makes of a call, never by the model's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from rolegraph.engine.vocabulary import Function, ToolCall

Functions = Sequence[Function]


@dataclass(frozen=True, slots=True)
class CallForm:
    """Syntax in which one family of models writes tool calls."""

    name: str
    """Name of the family, for messages."""
    split: Callable[[str, Functions], tuple[str, Sequence[ToolCall]]]
    """Function from an answer and the offered functions to its text without calls, and its calls. A malformed
    call has no name and stays in the text."""
    ids: Callable[[str, int], str] | None = None
    """Function from a call's name and its number in the answer, from 1, to the call's id, for a model that
    writes no ids; None where templates require no id."""
    ends: tuple[int, ...] = ()
    """Tokens that end a turn besides those that the template writes after an answer."""
    text_arguments: bool = False
    """True where templates take arguments as JSON text, not as a mapping."""
    in_messages: bool = False
    """True where the list of tools, calls and results are texts of messages, for templates without them."""

    def find(self, text: str, functions: Functions = ()) -> tuple[str, tuple[ToolCall, ...]]:
        """Return (text without calls, calls) of an answer; malformed calls stay in the text."""
        text_left, calls = self.split(text, functions)
        if not calls:
            return text, ()
        if self.ids is not None:
            calls = [
                call._replace(id=call.id or self.ids(call.name, number))
                for number, call in enumerate(calls, 1)
            ]
        return text_left.strip(), tuple(calls)


class CallSyntax(NamedTuple):
    """Texts that a template writes around the names and the arguments (JSON) of an answer's calls."""

    before: str
    """Text before the first call's name."""
    between: str
    """Text between a call's name and its arguments."""
    joint: str | None
    """Text between a call's arguments and the next call's name; None where an answer can hold only one
    call."""
    after: str
    """Text after the last call's arguments."""


def call_syntax(one: str, two: str, name: str, arguments: str) -> CallSyntax | None:
    """Return the syntax of calls, found in answers that a template has rendered.

    Args:
        one: Answer with one call.
        two: Answer with the same call twice; empty where the template refuses it.
        name: The call's name.
        arguments: Pattern of the call's arguments as JSON.

    Returns:
        The syntax; None where the answer does not hold the name once, and after it the arguments as JSON.
    """
    match = re.fullmatch(f"(?s)(.*?){name}(.*?){arguments}(.*)", one)
    if match is None or name in match[3]:
        return None
    text_before, text_between, text_after = match.groups()
    call = f"{name}{re.escape(text_between)}{arguments}"
    pair = re.fullmatch(f"(?s){re.escape(text_before)}{call}(.*){call}{re.escape(text_after)}", two)
    return CallSyntax(text_before.lstrip(), text_between, pair[1] if pair else None, text_after.rstrip())


Read = Callable[[re.Match[str], Functions], Sequence[ToolCall]]
"""Function from a match and the offered functions to the calls in the match; a malformed call has no name."""


def _by_pattern(begins: str, pattern: re.Pattern[str], read: Read) -> Callable[..., Any]:
    """Return a function, for `CallForm.split`, that finds calls by a pattern of one call or of a list of
    calls.

    Args:
        begins: Text that every call contains.
        pattern: The pattern.
        read: Function that reads the calls from a match.
    """

    def split(text: str, functions: Functions) -> tuple[str, Sequence[ToolCall]]:
        if begins not in text:
            return text, ()
        calls: list[ToolCall] = []

        def taken(match: re.Match[str]) -> str:
            block = read(match, functions)
            calls.extend(block)
            return "" if block and all(call.name for call in block) else match[0]

        return pattern.sub(taken, text), calls

    return split


def _nine_characters(name: str, number: int) -> str:
    """Return the id of an answer's call: its number, from 1, in nine characters."""
    return f"call{number:05}"


def tool_call(name: str, written: str, id: str = "") -> ToolCall:
    """Return the ToolCall with this name and these arguments, parsed from JSON text.

    Text that is not a JSON object is kept in `malformed`.
    """
    try:
        value = _json(written.strip() or "{}")
    except ValueError:
        return ToolCall(name, {}, id, malformed=written)
    arguments: object = (
        dict[str, Any]() if value is None else value
    )  # `null`, as models write a call without arguments
    if name and isinstance(arguments, dict):
        return ToolCall(name, cast("dict[str, Any]", arguments), id)
    return ToolCall(name, {}, id, malformed=written)


def _json(text: str) -> object:
    """Parse JSON that can be written out again, so no NaN or lone surrogate; raises ValueError."""
    try:
        value: object = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _unread(body: str) -> ToolCall:
    return ToolCall("", {}, malformed=body.strip() or "nothing")


def _of_value(value: object, key: str) -> ToolCall | None:
    """Return the call that a JSON object with `name` and arguments under `key` describes; None for any other
    value."""
    if not isinstance(value, dict):
        return None
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get(key, {})
    if not isinstance(name, str) or not name:
        return None
    arguments_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return tool_call(name, arguments_text, str(call.get("id") or ""))


def _one(key: str, match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """Return the call in a match whose body is one JSON object, with a `name` and arguments under `key`."""
    call = None
    with suppress(ValueError):
        call = _of_value(_json(match["body"]), key)
    return [call or _unread(match["body"])]


def _list(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """Return the calls in a match whose body is a JSON list of objects with `name` and `arguments`."""
    values: object = None
    with suppress(ValueError):
        values = _json(match["body"])
    items = cast("list[object]", values) if isinstance(values, list) else []
    calls = [call for item in items if (call := _of_value(item, "arguments")) is not None]
    return calls if calls and len(calls) == len(items) else [_unread(match["body"])]


def _parts(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """Return the call in a match whose groups are its name, its arguments as JSON and an optional id."""
    groups = match.groupdict()
    return [tool_call(groups["name"].strip(), groups["arguments"].strip(), (groups.get("id") or "").strip())]


def _fields(match: re.Match[str], functions: Functions) -> Sequence[ToolCall]:
    """Return the call in a match of a form with one tag per argument; the types of the arguments follow the
    function's JSON Schema."""
    function = _FUNCTION.fullmatch(match["body"].strip())
    if function is None:
        return [_unread(match["body"])]
    schemas = {tool.name: tool.parameters for tool in functions}
    properties: Mapping[str, Any] = schemas.get(function["name"], {}).get("properties") or {}
    fields = [_FIELD.search(part) for part in function["fields"].split("</parameter>")[:-1]]
    arguments = {field[1]: _valued(field[2], properties.get(field[1])) for field in fields if field}
    return [ToolCall(function["name"], arguments)]


def _valued(text: str, schema: object) -> object:
    kind = cast("Mapping[str, Any]", schema).get("type", "string") if isinstance(schema, dict) else "string"
    with suppress(ValueError):
        return text if kind == "string" else _json(text)
    return text


# An answer may be 400,000 line ends, or one marker again and again. No search below passes over a text more
# than once: a pattern begins with a marker, not with spaces; nothing that a name or a run of spaces may hold
# begins a marker; and what has no end is not looked for again from each beginning.
_FUNCTION = re.compile(r"<function=(?P<name>[^>\s]+)>(?P<fields>.*)</function>", re.DOTALL)
_FIELD = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?\Z", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(?P<body>.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LLAMA = re.compile(r'(?s)\A\s*+(?:<\|python_tag\|>\s*+)?(?P<body>\{\s*"name"\s*:[^{}]*"parameters"\s*:.*)\Z')
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\]\s*(?P<body>\[.*)\Z", re.DOTALL)
_MISTRAL = re.compile(
    r"(?s)\[TOOL_CALLS\](?P<name>[^\[\]]*)(?:\[CALL_ID\](?P<id>\w*))?\[ARGS\]"
    r"(?P<arguments>.*?)(?=\[TOOL_CALLS\]|\Z)"
)
_DEEPSEEK = re.compile(
    r"(?s)(?:<｜tool▁calls▁begin｜>\s*+)?<｜tool▁call▁begin｜>(?P<name>[^<]*)<｜tool▁sep｜>"
    r"(?P<arguments>.*?)(?:<｜tool▁call▁end｜>|\Z)\s*(?:<｜tool▁calls▁end｜>)?"
)

HERMES = CallForm("Qwen", _by_pattern("<tool_call>", _TAGGED, partial(_one, "arguments")))
"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, also used by many other families."""
FORMS = (
    HERMES,
    CallForm("Qwen Coder", _by_pattern("<tool_call>", _TAGGED, _fields)),
    CallForm("Llama", _by_pattern('"parameters"', _LLAMA, partial(_one, "parameters"))),
    CallForm("Mistral", _by_pattern("[TOOL_CALLS]", _MISTRAL_LIST, _list), ids=_nine_characters),
    CallForm("Mistral", _by_pattern("[ARGS]", _MISTRAL, _parts), ids=_nine_characters),
    CallForm("DeepSeek", _by_pattern("<｜tool▁call▁begin｜>", _DEEPSEEK, _parts), text_arguments=True),
)
"""Forms of calls in the order in which they are tried; other packages' forms follow (`rolegraph.call_forms`).
"""
IN_MESSAGES = replace(HERMES, name="text of messages", in_messages=True)
"""Form for a template that takes no tools, or writes calls in an unknown form."""
