"""Parsers: a response's text to an action.

Each factory makes a `Parser`; what it cannot read raises `ParseFailure` with the failure's name, and nothing
else. Response text is data from a model: it is never evaluated, and patterns run under a time limit.
"""

# jsonschema leaves some of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jsonschema
import regex
from jsonschema.exceptions import best_match

from engine.episode import FailureName
from roles.vocabulary import ParseFailure, Parser, RoleView, Upstream, parsers

PATTERN_SECONDS = 0.5
"""How long a spec's own pattern may search one response."""

Which = Literal["first", "last"]


@parsers.register("text")
def text() -> Parser:
    """The whole answer, without the space around it."""
    return Parser(_text)


def _text(response: str, upstream: Upstream) -> str:
    answer = response.strip()
    if not answer:
        raise _malformed("the answer is empty")
    return answer


@parsers.register("tag")
def tag(
    name: str,
    /,
    *,
    keep_tag: bool = False,
    which: Which = "first",
    ignore_case: bool = True,
    one_of: list[str] | None = None,
    default: str = "",
) -> Parser:
    """What stands between <name> and </name>; one_of restricts it, keep_tag leaves the tags on."""
    find = _tag_finder(name, which, ignore_case)
    words = _words(one_of) if one_of is not None else None

    def parse(response: str, upstream: Upstream) -> str:
        inside = find(response)
        if words is not None:
            if inside.lower() not in words:
                raise _malformed(
                    f"<{name}> holds {_short(inside)}, expected one of {', '.join(words.values())}"
                )
            inside = words[inside.lower()]
        return f"<{name}>{inside}</{name}>" if keep_tag else inside

    return Parser(parse, default)


@parsers.register("choice")
def choice(role: str, /, *, tag: str = "answer", default: str = "") -> Parser:
    """The number inside <answer>, counted from 1: the action is that instance of the role's."""
    find = _tag_finder(tag, "first", ignore_case=True)

    def parse(response: str, upstream: Upstream) -> Any:
        picked = find(response)
        candidates: Sequence[RoleView] = upstream[role]
        try:
            number = int(picked)
        except ValueError:
            number = 0
        if not 1 <= number <= len(candidates):
            message = f"{_short(picked)} names none of the {len(candidates)} candidates"
            raise ParseFailure(FailureName.UNPARSEABLE_CHOICE, message)
        return candidates[number - 1].action

    return Parser(parse, default, (role,))


@parsers.register("regex")
def pattern(
    pattern: str, /, *, which: Which = "first", ignore_case: bool = False, default: str = ""
) -> Parser:
    """What a pattern finds: its group `action`, else its first group, else the whole match."""
    try:
        compiled = regex.compile(pattern, regex.DOTALL | (regex.IGNORECASE if ignore_case else 0))
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    group: str | int = "action" if "action" in compiled.groupindex else min(1, compiled.groups)

    def parse(response: str, upstream: Upstream) -> str:
        try:
            matches = compiled.finditer(response, timeout=PATTERN_SECONDS)
            found = next(matches, None) if which == "first" else next(iter(deque(matches, maxlen=1)), None)
        except TimeoutError:
            raise _malformed(f"the pattern searched for more than {PATTERN_SECONDS} s") from None
        if found is None or found[group] is None:
            raise _malformed(f"nothing matches {pattern!r}")
        return str(found[group]).strip()

    return Parser(parse, default)


@parsers.register("json")
def json_value(*, schema: dict[str, Any] | None = None, default: Any = None) -> Parser:
    """The JSON value in the answer: all of it, a fenced block, or the first object or list in it."""
    if schema is not None:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"schema is not a JSON Schema: {error.message}") from error
    validator = jsonschema.Draft202012Validator(schema) if schema is not None else None
    return Parser(partial(_json, validator), default)


def _json(validator: Any, response: str, upstream: Upstream) -> Any:
    value = _find_json(response)
    if validator is not None:
        problem = best_match(validator.iter_errors(value))
        if problem is not None:
            raise _malformed(
                f"the JSON does not fit the schema at {problem.json_path}: {problem.message[:200]}"
            )
    return value


_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
_MAX_STARTS = 64
"""How many brackets are tried as the start of a value."""


def _find_json(response: str) -> Any:
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    for whole in (response, *_FENCE.findall(response)):
        try:
            return decoder.decode(whole.strip())
        except (ValueError, RecursionError):
            continue
    for start in [match.start() for match in re.finditer(r"[\[{]", response)][:_MAX_STARTS]:
        try:
            return decoder.raw_decode(response, start)[0]
        except (ValueError, RecursionError):
            continue
    raise _malformed("the answer holds no JSON")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@parsers.register("one_of")
def one_of(words: list[str], /, *, default: str = "") -> Parser:
    """The one word of a list that stands in the answer, whatever its case."""
    known = _words(words)
    finder = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, known)) + r")(?!\w)", re.IGNORECASE)

    def parse(response: str, upstream: Upstream) -> str:
        found = {word.lower() for word in finder.findall(response)}
        if len(found) != 1:
            listed = ", ".join(known.values())
            raise _malformed(f"expected one of {listed}; found {', '.join(sorted(found)) or 'none'}")
        return known[found.pop()]

    return Parser(parse, default)


def _tag_finder(name: str, which: Which, ignore_case: bool) -> Callable[[str], str]:
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(f"{name!r} is not a tag's name; write it without the angle brackets")
    flags = re.IGNORECASE if ignore_case else 0
    opening, closing = re.compile(f"<{name}>", flags), re.compile(f"</{name}>", flags)

    def first(response: str) -> str:
        start = opening.search(response)
        end = closing.search(response, start.end()) if start else None
        if start is None or end is None:
            raise _malformed(f"no <{name}>…</{name}>")
        return response[start.end() : end.start()].strip()

    def last(response: str) -> str:
        closings = [match.start() for match in closing.finditer(response)]
        end = closings[-1] if closings else 0
        starts = [match.end() for match in opening.finditer(response, 0, end)]
        if not starts:
            raise _malformed(f"no <{name}>…</{name}>")
        return response[starts[-1] : end].strip()

    return first if which == "first" else last


def _words(words: list[str]) -> Mapping[str, str]:
    known = {word.strip().lower(): word.strip() for word in words}
    if not known or "" in known:
        raise ValueError("one_of needs at least one word, and no empty one")
    return known


def _malformed(message: str) -> ParseFailure:
    return ParseFailure(FailureName.MALFORMED_OUTPUT, message)


def _short(found: str) -> str:
    return repr(found if len(found) <= 40 else found[:37] + "...")
