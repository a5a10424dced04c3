"""Parsers: functions from a response's text to an action.

Each factory makes a `Parser`. A parser raises `ParseFailure` with the failure's name, and no other error.
Response text is data from a model: it is never evaluated, and a spec's patterns run in linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from rolegraph.engine.limits.answers import ANSWER_WORDS
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import ACTION_OF, NUMBER, TEXT, ParseFailure, Parser, Upstream
from rolegraph.roles.boxes import last_box
from rolegraph.roles.fences import fenced_blocks
from rolegraph.roles.json_text import example_of, find_json, required_keys, schema_check
from rolegraph.roles.numbers import find_number
from rolegraph.roles.patterns import TooMuchText, compile_pattern, last_match, pay
from rolegraph.roles.tags import Which, tag_finder
from rolegraph.roles.thoughts import TAGS as THOUGHTS
from rolegraph.roles.thoughts import without_thoughts
from rolegraph.roles.verdicts import Negated, WordFinder


def text() -> Parser:
    """Take the whole answer, without thoughts and the space around it."""

    def parse(response: str, upstream: Upstream) -> str:
        answer = without_thoughts(response).strip()
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
    marks = _tags(name)
    return Parser(parse, default, strips=strips, examples=tagged, expects=expects, marks=marks, gives=gives)


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
    gives = {ACTION_OF: role}
    return Parser(parse, default, (role,), examples=examples, expects=expects, marks=_tags(tag), gives=gives)


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
    kept = [name for name in THOUGHTS if re.search(rf"</?{name}\b", pattern, re.IGNORECASE)]
    group: str | int = "action" if "action" in compiled.groupindex else min(1, compiled.groups)
    has_choice = re.search(r"\||\)[?*{]", pattern)  # then a match may do without a tag
    tags = [] if has_choice else re.findall(r"(?<!\?)(?<!\?P)<[A-Za-z_]\w*>", pattern)

    def parse(response: str, upstream: Upstream) -> str:
        response = without_thoughts(response, kept)
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

    expects = tuple((tag,) for tag in tags)
    return Parser(
        parse, default, expects=expects, marks=(*tags, *re.findall(r"</[A-Za-z_]\w*>", pattern)), gives=TEXT
    )


def number(
    *, tag: str | None = None, which: Which = "last", fractions: bool = False, default: Any = None
) -> Parser:
    """Take the last number of the answer: `-1,234.5`, `$40`, `6e-3`; whole where it is written whole.

    A number that can be read in several ways, such as `1,23`, `7-2` or `5 million`, is malformed.

    tag: the tag around the number, without angle brackets; null takes it from anywhere in the answer
    which: of several, the first in the answer or the last; of several tags, too
    fractions: take 3/4 for 0.75
    default: the action that later roles see where nothing can be read
    """
    find = None if tag is None else _tag_finder(tag, which, ignore_case=True)

    def parse(response: str, upstream: Upstream) -> int | float:
        where = without_thoughts(response) if find is None else find(response)
        try:
            return find_number(where, which=which, fractions=fractions)
        except ValueError as error:
            raise _malformed(str(error)) from None

    if tag is None:
        return Parser(parse, default, examples=("1",), gives=NUMBER)
    examples, expects = _tagged(tag, ("1",)), ((f"<{tag}>",),)
    tags = _tags(tag)
    return Parser(parse, default, strips=tags, examples=examples, expects=expects, marks=tags, gives=NUMBER)


def json_value(*, schema: dict[str, Any] | None = None, default: Any = None) -> Parser:
    """Take the JSON value in the answer: all of it, a fenced block, or the first object or list in it.

    A block of JSON comes before other blocks.

    schema: a JSON Schema that the value must meet; the first value that meets it counts
    default: the action that later roles see where nothing can be read
    """
    check = schema_check(schema) if schema is not None else None

    def parse(response: str, upstream: Upstream) -> Any:
        try:
            return find_json(without_thoughts(response), check)
        except ValueError as error:
            raise _malformed(str(error)) from None

    examples = (json.dumps({} if schema is None else example_of(schema)),)
    expects = tuple((key,) for key in required_keys(schema))
    return Parser(parse, default, examples=examples, expects=expects, marks=("}", "]"), gives=schema or {})


def code(*, which: Which = "last", default: str = "") -> Parser:
    """Take the program in the answer: its last fenced block, or the whole answer without such a block.

    which: of several blocks, the first in the answer or the last
    default: the action that later roles see where nothing can be read
    """

    def parse(response: str, upstream: Upstream) -> str:
        response = without_thoughts(response)
        blocks, is_open = fenced_blocks(response)
        if is_open:
            raise _malformed("a fenced block has no end")
        program = blocks[0 if which == "first" else -1].text if blocks else response.strip()
        if not program.strip():
            raise _malformed("there is no program")
        return program

    return Parser(parse, default, examples=("```\n…\n```",), marks=("```",), gives=TEXT)


def boxed(*, default: str = "") -> Parser:
    r"""Take what stands in the last \boxed{…} or \fbox{…} of the answer, with nested braces.

    default: the action that later roles see where nothing can be read
    """

    def parse(response: str, upstream: Upstream) -> str:
        try:
            box = last_box(without_thoughts(response))
        except ValueError as error:
            raise _malformed(str(error)) from None
        if box is None:
            raise _malformed(r"no \boxed{…}")
        return box

    expects = (("\\boxed", "\\fbox"),)
    return Parser(parse, default, examples=("\\boxed{…}",), expects=expects, marks=("}",), gives=TEXT)


def one_of(words: list[str], /, *, default: str = "") -> Parser:
    """Take the only word of a list that the answer affirms, whatever its case; `not correct` is malformed.

    words: the words to look for
    default: the action that later roles see where none or several are there
    """
    by_case = _words(words)
    if len(words) > ANSWER_WORDS.most:
        raise ValueError(f"one_of names {len(words):,} words; at most {ANSWER_WORDS}")
    finder = WordFinder(by_case)

    def parse(response: str, upstream: Upstream) -> str:
        try:
            present = finder.affirmed(without_thoughts(response))
        except Negated as error:
            raise _malformed(str(error)) from None
        if len(present) != 1:
            listed = ", ".join(sorted(present)) or "none"
            raise _malformed(f"expected one of {', '.join(words)}; found {listed}")
        return present.pop()

    known_words = tuple(by_case.values())
    return Parser(parse, default, examples=known_words, expects=(known_words,), gives={"enum": known_words})


def _tag_finder(name: str, which: Which, ignore_case: bool) -> Callable[[str], str]:
    """Return a function that finds the text between two tags; it raises ParseFailure for a missing tag."""
    find = tag_finder(name, which, ignore_case=ignore_case)

    def read_tag(response: str) -> str:
        inside = find(without_thoughts(response, [name]))
        if inside is None:
            raise _malformed(f"no <{name}>…</{name}>")
        return inside

    return read_tag


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
