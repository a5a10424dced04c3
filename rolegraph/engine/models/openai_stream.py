"""Answers that come as server-sent events, joined into one chat completion. Pure.

Servers differ from OpenAI's: calls without an `index`, or all with index 0; the name of a call in each of its
events; a whole `message` in place of `delta`, or after the deltas; token ids on the choice; an error in
mid-answer. A stream that ends without `finish_reason` and without `[DONE]` was broken off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of the body of a stream of events."""
_DONE = "[DONE]"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LISTS = ("token_ids", "response_token_ids", "prompt_token_ids")
Fields = dict[str, Any]


def is_stream(content: bytes) -> bool:
    """Return True for a response of server-sent events, whatever its Content-Type."""
    return content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_BEGINNINGS)


def joined(content: bytes) -> dict[str, Any]:
    """Join the events of a streamed chat completion into one completion.

    Args:
        content: The body of the response: server-sent events with JSON as data.

    Returns:
        The fields of a chat completion; `error` if an event has one.

    Raises:
        ValueError: The body is not UTF-8, or the data of an event is not a JSON object.
    """
    joined_fields: dict[str, Any] = {}
    choices: dict[int, _Choice] = {}
    is_done = False
    for data in _data(content):
        if data == _DONE:
            is_done = True
            continue
        chunk = _value(data)
        joined_fields.update({name: value for name, value in chunk.items() if value and name != "choices"})
        for choice in map(fields_in, items_in(chunk.get("choices"))):
            index = choice.get("index")
            choices.setdefault(index if isinstance(index, int) else 0, _Choice()).add(choice)
    if choices and "error" not in joined_fields:
        joined_fields["choices"] = [choices[index].whole(is_done=is_done) for index in sorted(choices)]
    return joined_fields


class _Choice:
    """One choice of a completion, collected from the events of a stream."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._texts: dict[str, list[Any]] = {}
        self._streamed = set[str]()
        """Names of the message's fields that arrived in deltas."""
        self._calls: list[_Call] = []
        self._latest: dict[object, _Call] = {}
        """Tool call to which the latest part with an index belongs, by the index; None is the key of the
        latest call of all."""
        self._by_id: dict[tuple[object, object], _Call] = {}
        """Call by index and id."""

    def add(self, choice: Fields) -> None:
        """Add the choice of one event."""
        for name, value in choice.items():
            if name in _LISTS:
                self._lists.setdefault(name, []).extend(items_in(value))
            elif name == "logprobs":
                self._lists.setdefault(name, []).extend(items_in(fields_in(value).get("content")))
            elif name not in ("delta", "message") and value is not None:
                self._fields[name] = value
        delta = {name: it for name, it in fields_in(choice.get("delta")).items() if it}
        self._streamed.update(delta)
        message = fields_in(choice.get("message")).items()
        for name, value in (delta | {name: it for name, it in message if name not in self._streamed}).items():
            if name == "tool_calls":
                for call in map(fields_in, items_in(value)):
                    self._call(call).add(call)
            elif value:
                self._texts.setdefault(name, []).append(value)

    def _call(self, part: Fields) -> _Call:
        """Return the call to which a part belongs: the latest with its index, unless the part has another id.

        A part without an index belongs to the latest call, unless it has a name.
        """
        index, id = _key(part.get("index")), _key(part.get("id"))
        call = self._by_id.get((index, id)) if id else None
        if call is None and not (index is None and fields_in(part.get("function")).get("name")):
            latest_call = self._latest.get(index)
            call = latest_call if latest_call and (not id or latest_call.id in ("", id)) else None
        if call is None:
            call = _Call()
            self._calls.append(call)
        self._latest[index] = self._latest[None] = call
        if id:
            self._by_id[index, id] = call
        return call

    def whole(self, *, is_done: bool) -> dict[str, Any]:
        """Return the choice, joined from its parts."""
        message = {name: _text(parts) for name, parts in self._texts.items()}
        message["role"] = "assistant"
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        fields = {"finish_reason": "stop" if is_done else "error", **self._fields, **self._lists}
        if scores := self._lists.get("logprobs"):
            fields["logprobs"] = {"content": scores}
        return {**fields, "message": message}


class _Call:
    """One tool call, collected from the events of a stream."""

    def __init__(self) -> None:
        self.id, self._name = "", ""
        self._arguments: list[Any] = []

    def add(self, part: Fields) -> None:
        """Add the part of one event."""
        function = fields_in(part.get("function"))
        self.id, self._name = part.get("id") or self.id, function.get("name") or self._name
        if arguments := function.get("arguments"):
            self._arguments.append(arguments)

    def whole(self) -> dict[str, Any]:
        """Return the call, joined from its parts."""
        return {"id": self.id, "function": {"name": self._name, "arguments": _text(self._arguments)}}


def _data(content: bytes) -> Iterator[str]:
    """Yield the data of each event; the lines of an event's data are one text."""
    lines: list[str] = []
    for line in content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines.clear()
    if lines:
        yield "\n".join(lines)


def _value(data: str) -> dict[str, Any]:
    value = decode_leniently(data)
    if not isinstance(value, dict):
        raise ValueError("an event's data is no JSON object")
    return cast("dict[str, Any]", value)


def decode_leniently(text: str) -> object:
    """Decode a JSON text, in which an unpaired surrogate becomes U+FFFD; raises ValueError,
    RecursionError."""
    try:
        return from_json(text)
    except ValueError:  # broken, or with an unpaired surrogate
        json_text = json.dumps(json.loads(text), ensure_ascii=False)
        return from_json(_LONE_SURROGATE.sub("\ufffd", json_text))


def _text(parts: list[Any]) -> Any:
    """Join the values of a field in several events: texts to a text, lists to a list; of other values, return
    the last."""
    if all(isinstance(piece, str) for piece in parts):
        return "".join(parts)
    if not all(isinstance(piece, list | str) for piece in parts):
        return parts[-1]
    return [item for piece in parts for item in (items_in(piece) or [piece])]


def fields_in(value: object) -> Fields:
    """Return a JSON object; an empty one for a value of another type."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _key(value: object) -> str | int | None:
    return value if isinstance(value, str | int) else None


def items_in(value: object) -> list[Any]:
    """Return a list; an empty one for a value of another type."""
    return cast("list[Any]", value) if isinstance(value, list) else []
