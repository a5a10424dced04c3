"""Parsers: functions from a response's text to an action.

Each factory makes a `Parser`. A parser raises `ParseFailure` with the failure's name, and no other error.
Response text is data from a model: it is never evaluated, and a spec's patterns run in linear time.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from rolegraph.engine.limits.answers import ANSWER_WORDS
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import ACTION_OF, NUMBER, TEXT, ParseFailure, Parser, Upstream
from rolegraph.roles.json_text import example_of, find_json, required_keys, schema_check
from rolegraph.roles.numbers import Which, find_number
from rolegraph.roles.patterns import TooMuchText, compile_pattern, last_match, pay


def text() -> Parser:
    """Take the whole answer, without the space around it."""

    def parse(response: str, upstream: Upstream) -> str:
        answer = response.strip()
        if not answer:
            raise _malformed("the answer is empty")
        return answer

    return Parser(parse, examples=("…",), gives=TEXT)


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
    """Take the text between <name> and </name>.

    name: the tag, without angle brackets
    keep_tag: leave the tags on
    which: of several, the first in the answer or the last
    ignore_case: take <Answer> for <answer>
    one_of: the only words that it may hold, whatever their case
    default: the action that later roles see where nothing can be read
    """
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

    inside = ("…",) if words is None else tuple(words.values())
    expects = ((f"<{name}>",), *([inside] if words else []))
    tagged, strips = _tagged(name, inside), () if keep_tag else _tags(name)
    gives = TEXT if words is None else {"enum": tagged if keep_tag else inside}
    return Parser(parse, default, strips=strips, examples=tagged, expects=expects, gives=gives)


def choice(role: str, /, *, tag: str = "answer", default: str = "") -> Parser:
    """Choose an instance of a role by its number in <answer>, from 1; the action is that instance's.

    role: the role to choose from, one of those that this one needs
    tag: the tag around the number, without angle brackets
    default: the action that later roles see where nothing can be read
    """
    find = _tag_finder(tag, "first", ignore_case=True)

    def parse(response: str, upstream: Upstream) -> Any:
        picked = find(response)
        candidates = upstream[role]
        # Compared as text, because `int` reads "+2", "0_2" and the digits of other scripts, too.
        number = picked.lstrip("0")
        for candidate in candidates:
            if str(candidate.index) == number:
                return candidate.action
        message = f"{_short(picked)} names none of the {len(candidates)} candidates"
        raise ParseFailure(FailureName.UNPARSEABLE_CHOICE, message)

    examples, expects = _tagged(tag, ("1",)), ((f"<{tag}>",),)
    return Parser(parse, default, (role,), examples=examples, expects=expects, gives={ACTION_OF: role})


def pattern(
    pattern: str, /, *, which: Which = "first", ignore_case: bool = False, default: str = ""
) -> Parser:
    """Take the match of a pattern: its group `action`, else its first group, else the whole match.

    pattern: a regular expression of RE2, without lookarounds; `.` matches line ends too
    which: of several matches, the first in the answer or the last
    ignore_case: take capitals for small letters
    default: the action that later roles see where nothing can be read
    """
    compiled = compile_pattern(pattern, ignore_case=ignore_case)
    group: str | int = "action" if "action" in compiled.groupindex else min(1, compiled.groups)
    has_choice = re.search(r"\||\)[?*{]", pattern)  # then a match may do without a tag
    tags = [] if has_choice else re.findall(r"(?<!\?)(?<!\?P)<[A-Za-z_]\w*>", pattern)

    def parse(response: str, upstream: Upstream) -> str:
        try:
            if which == "last":
                match = last_match(compiled, response)
            else:
                pay(compiled, response)
                match = compiled.search(response)
        except (UnicodeEncodeError, TooMuchText) as error:
            is_work = isinstance(error, TooMuchText)
            raise _malformed(str(error) if is_work else "the answer is not valid Unicode") from None
        action = None if match is None else match.group(group)
        if action is None:
            raise _malformed(f"nothing matches {pattern!r}")
        return action.strip()

    return Parser(parse, default, expects=tuple((tag,) for tag in tags), gives=TEXT)


def number(
    *, tag: str | None = None, which: Which = "last", fractions: bool = False, default: Any = None
) -> Parser:
    """Take the last number of the answer: `-1,234.5`, `$40`, `6e-3`; whole where it is written whole.

    tag: the tag around the number, without angle brackets; null takes it from anywhere in the answer
    which: of several, the first in the answer or the last; of several tags, too
    fractions: take 3/4 for 0.75
    default: the action that later roles see where nothing can be read
    """
    find = None if tag is None else _tag_finder(tag, which, ignore_case=True)

    def parse(response: str, upstream: Upstream) -> int | float:
        where = response if find is None else find(response)
        try:
            return find_number(where, which=which, fractions=fractions)
        except ValueError as error:
            raise _malformed(str(error)) from None

    if tag is None:
        return Parser(parse, default, examples=("1",), gives=NUMBER)
    examples, expects = _tagged(tag, ("1",)), ((f"<{tag}>",),)
    return Parser(parse, default, strips=_tags(tag), examples=examples, expects=expects, gives=NUMBER)


def json_value(*, schema: dict[str, Any] | None = None, default: Any = None) -> Parser:
    """Take the JSON value in the answer: all of it, a fenced block, or the first object or list in it.

    schema: a JSON Schema that the value must meet
    default: the action that later roles see where nothing can be read
    """
    check = schema_check(schema) if schema is not None else None

    def parse(response: str, upstream: Upstream) -> Any:
        try:
            value = find_json(response)
            if check is not None:
                check(value)
        except ValueError as error:
            raise _malformed(str(error)) from None
        return value

    examples = (json.dumps({} if schema is None else example_of(schema)),)
    expects = tuple((key,) for key in required_keys(schema))
    return Parser(parse, default, examples=examples, expects=expects, gives=schema or {})


def code(*, which: Which = "last", default: str = "") -> Parser:
    """Take the program in the answer: its last fenced block, or the whole answer without such a block.

    which: of several blocks, the first in the answer or the last
    default: the action that later roles see where nothing can be read
    """

    def parse(response: str, upstream: Upstream) -> str:
        blocks, is_open = _fenced(response)
        if is_open:
            raise _malformed("a fenced block has no end")
        program = blocks[0 if which == "first" else -1] if blocks else response.strip()
        if not program.strip():
            raise _malformed("there is no program")
        return program

    return Parser(parse, default, examples=("```\n…\n```",), gives=TEXT)


def _fenced(text: str) -> tuple[list[str], bool]:
    """Return the blocks between lines that begin with ```, and whether the last block has no end."""
    blocks: list[str] = []
    block: list[str] | None = None
    for line in text.splitlines():
        if line.strip() == "```" and block is not None:
            blocks.append("\n".join(block))
            block = None
        elif block is not None:
            block.append(line)
        elif line.lstrip().startswith("```"):
            block = []
    return blocks, block is not None


def one_of(words: list[str], /, *, default: str = "") -> Parser:
    """Take the only word of a list that is in the answer, whatever its case.

    words: the words to look for
    default: the action that later roles see where none or several are there
    """
    by_case = _words(words)
    if len(words) > ANSWER_WORDS.most:
        raise ValueError(f"one_of names {len(words):,} words; at most {ANSWER_WORDS}")
    alternatives = sorted(by_case, key=len, reverse=True)  # the longest first: "not sure" over "not"
    # Lower case and no groups: a hundred times as fast as IGNORECASE with a group for each word.
    finder = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, alternatives))})(?!\w)")

    def parse(response: str, upstream: Upstream) -> str:
        present = {by_case[word] for word in finder.findall(response.lower())}
        if len(present) != 1:
            raise _malformed(
                f"expected one of {', '.join(words)}; found {', '.join(sorted(present)) or 'none'}"
            )
        return present.pop()

    known_words = tuple(by_case.values())
    return Parser(parse, default, examples=known_words, expects=(known_words,), gives={"enum": known_words})


def _tag_finder(name: str, which: Which, ignore_case: bool) -> Callable[[str], str]:
    """Return a function that finds the text between two tags, and raises ParseFailure without both."""
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(f"{name!r} is not a tag's name; write it without the angle brackets")
    flags = re.IGNORECASE if ignore_case else 0
    opening, closing = re.compile(f"<{name}>", flags), re.compile(f"</{name}>", flags)

    def find_first(response: str) -> str:
        start = opening.search(response)
        end = closing.search(response, start.end()) if start else None
        if start is None or end is None:
            raise _malformed(f"no <{name}>…</{name}>")
        return response[start.end() : end.start()].strip()

    def find_last(response: str) -> str:
        closings = [match.start() for match in closing.finditer(response)]
        starts = [match.end() for match in opening.finditer(response, 0, closings[-1] if closings else 0)]
        if not starts:
            raise _malformed(f"no <{name}>…</{name}>")
        return response[starts[-1] : closings[bisect_left(closings, starts[-1])]].strip()

    # Nearly every turn parses a first tag: a finder for both took 5 to 7 % of an episode on a stub model.
    return find_first if which == "first" else find_last


def _tags(name: str) -> tuple[str, str]:
    return f"<{name}>", f"</{name}>"


def _tagged(name: str, answers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"<{name}>{answer}</{name}>" for answer in answers)


def _words(words: list[str]) -> Mapping[str, str]:
    spellings = {word.strip().lower(): word.strip() for word in words}
    if not spellings or "" in spellings:
        raise ValueError("one_of needs at least one word, and no empty one")
    if len(spellings) < len(words):
        raise ValueError("one_of names a word twice; case does not count")
    return spellings


def _malformed(message: str) -> ParseFailure:
    return ParseFailure(FailureName.MALFORMED_OUTPUT, message)


def _short(passage: str) -> str:
    return repr(passage if len(passage) <= 40 else passage[:37] + "...")
