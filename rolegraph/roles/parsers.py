"""Parsers: functions from a response's text to an action.

A parser is a place and a reading: the place finds a text in the response (`tag`, `tags`, `fence`, `boxed`,
`regex`, the whole answer), and the reading (`text`, `number`, words, `json`, or another parser) makes the
action from it. Of several matches, the last counts. A parser raises `ParseFailure` with the failure's name,
and no other error. Response text is data from a model: it is never evaluated, and a spec's patterns run in
linear time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, FiniteFloat, WithJsonSchema

from rolegraph.engine.limits.answers import ANSWER_WORDS
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import (
    ACTION_OF,
    NUMBER,
    TEXT,
    BadOptions,
    BadParts,
    ItemCall,
    ParseFailure,
    Parser,
    Shape,
    UnknownName,
    Upstream,
    View,
    parsers,
    with_word,
)
from rolegraph.engine.vocabulary.registry import NAMES_ITEMS_OF
from rolegraph.roles.boxes import last_box
from rolegraph.roles.fences import last_block
from rolegraph.roles.json_text import WAYS, example_of, find_json, required_keys, schema_check
from rolegraph.roles.numbers import find_number
from rolegraph.roles.patterns import compile_pattern, last_match
from rolegraph.roles.tags import tag_finder
from rolegraph.roles.thoughts import TAGS as THOUGHTS
from rolegraph.roles.thoughts import without_thoughts
from rolegraph.roles.verdicts import Negated, WordFinder

# readings


def _call(written: object) -> ItemCall:
    """Parse a reading from its YAML form, a list of words or a parser; raises ValueError for another form."""
    if isinstance(written, list):
        words = cast("list[object]", written)
        for word in words:
            if not isinstance(word, str):
                raise ValueError(f'{word!r:.40} is no text; quote it: "{word!s:.40}"')
        _spellings(cast("list[str]", words))
        return ItemCall("words", written, has_value=True, is_bare=True)
    return ItemCall.parse(written)


_FORMS = [
    {"type": "array", "items": {"type": "string"}},
    {"anyOf": [{"type": "string"}, {"type": "object"}], NAMES_ITEMS_OF: parsers.group},
]
Reading = Annotated[ItemCall, BeforeValidator(_call), WithJsonSchema({"anyOf": _FORMS})]
"""Parser of the text that a place holds: an item's call, or the list of the words that the text may be."""
_TEXT = ItemCall("text")
_SCHEMA: dict[str, Any] = {}


def _parser_of(reading: ItemCall, *place: int | str) -> Parser:
    """Return the parser that reads the text of a place.

    Args:
        reading: The parser, as the spec calls it.
        place: Path of the reading in the spec's call, for faults.

    Raises:
        BadParts: The parser cannot be made.
    """
    if reading == _TEXT:
        return Parser(lambda text, upstream: text, examples=("…",), gives=TEXT)
    if reading.is_bare:
        return _exact_words(reading.value)
    try:
        return parsers.build(reading)
    except (UnknownName, BadOptions) as error:
        raise BadParts({place: error}) from error


def _exact_words(written: list[str]) -> Parser:
    spellings = _spellings(written)

    def parse(text: str, upstream: Upstream) -> str:
        word = spellings.get(text.strip().lower())
        if word is None:
            raise _malformed(f"{_short(text)} is not one of {', '.join(spellings.values())}")
        return word

    words = tuple(spellings.values())
    return Parser(parse, examples=words, expects=(words,), gives={"enum": [*words]})


def _spellings(words: list[str]) -> Mapping[str, str]:
    """Return the words by their lower-case form; raises ValueError for empty words, and for words that differ
    only by case."""
    spellings = {word.strip().lower(): word.strip() for word in words}
    if not spellings or "" in spellings:
        raise ValueError("expected at least one word, and no empty one")
    if len(spellings) < len(words):
        raise ValueError("a word stands twice; case does not count")
    if len(words) > ANSWER_WORDS.most:
        raise ValueError(f"{len(words):,} words; at most {ANSWER_WORDS}")
    return spellings


def _with_default(parser: Parser, default: Any) -> Parser:
    """Return the parser with a default; raises ValueError for a default of another type than the parser's.

    Beside a list of words, the default may be another word. None keeps the parser's own default.
    """
    if default is None:
        return parser
    if parser.gives and not _fits(parser.gives, default):
        raise ValueError(f"the default {default!r:.40} is not of the type that the parser gives")
    return replace(parser, default=default, gives=with_word(parser.gives, default))


def _fits(shape: Shape, value: object) -> bool:
    if "enum" in shape or shape == TEXT:
        return isinstance(value, str)
    if shape.get("type") == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    try:
        schema_check(dict(shape))(value)
    except ValueError:
        return False
    return True


# the whole answer


def text() -> Parser:
    """Take the whole answer, without thoughts and the space around it."""

    def parse(response: str, upstream: Upstream) -> str:
        answer = without_thoughts(response).strip()
        if not answer:
            raise _malformed("the answer is empty")
        return answer

    return Parser(parse, examples=("…",), gives=TEXT)


def number(
    *,
    min: FiniteFloat | None = None,
    max: FiniteFloat | None = None,
    clip: bool = False,
    fractions: bool = False,
    default: Any = None,
) -> Parser:
    """Take the last number of the answer: `-1,234.5`, `$40`, `6e-3`; whole where it is written whole.

    A number that can be read in several ways, such as `1,23`, `7-2` or `5 million`, is malformed.

    min: the smallest number; one below it is malformed
    max: the largest number; one above it is malformed
    clip: take `min` for a smaller number, and `max` for a larger one
    fractions: take 3/4 for 0.75
    default: the action that later roles see where nothing can be read
    """
    low = -math.inf if min is None else int(min) if min.is_integer() else min
    high = math.inf if max is None else int(max) if max.is_integer() else max
    if low > high:
        raise ValueError(f"min is {low} and max {high}: no number lies between them")

    def parse(response: str, upstream: Upstream) -> int | float:
        try:
            value = find_number(without_thoughts(response), fractions=fractions)
        except ValueError as error:
            raise _malformed(str(error)) from None
        clipped_value = low if value < low else high if value > high else value
        if clipped_value != value and not clip:
            raise _malformed(f"{value:.9g} is {'below' if value < low else 'above'} {clipped_value}")
        return clipped_value

    numbers = dict.fromkeys(sorted((low, it, high))[1] for it in range(1, WAYS + 1))
    return _with_default(Parser(parse, None, examples=tuple(map(str, numbers)), gives=NUMBER), default)


def json_value(schema: dict[str, Any] = _SCHEMA, /, *, default: Any = None) -> Parser:
    """Take the JSON value in the answer: all of it, a fenced block, or the last object or list in it.

    A block of JSON comes before other blocks.

    schema: a JSON Schema that the value must meet; the last value that meets it counts
    default: the action that later roles see where nothing can be read
    """
    check = schema_check(schema) if schema else None

    def parse(response: str, upstream: Upstream) -> Any:
        try:
            return find_json(without_thoughts(response), check)
        except ValueError as error:
            raise _malformed(str(error)) from None

    expects = tuple((key,) for key in required_keys(schema))
    ways = (json.dumps(example_of(schema, way=way, like=default)) for way in range(WAYS))
    examples = tuple(dict.fromkeys(ways))
    parser = Parser(parse, None, examples=examples, expects=expects, marks=("}", "]"), gives=schema)
    return _with_default(parser, default)


def one_of(words: list[str], /, *, default: Any = None) -> Parser:
    """Take the only word of a list that the answer affirms, whatever its case; `not correct` is malformed.

    words: the words to look for
    default: the action that later roles see where none or several are there
    """
    spellings = _spellings(words)
    finder = WordFinder(spellings)

    def parse(response: str, upstream: Upstream) -> str:
        try:
            affirmed_words = finder.affirmed(without_thoughts(response))
        except Negated as error:
            raise _malformed(str(error)) from None
        if len(affirmed_words) != 1:
            listed_words = ", ".join(sorted(affirmed_words)) or "none"
            raise _malformed(f"expected one of {', '.join(words)}; found {listed_words}")
        return affirmed_words.pop()

    known_words = tuple(spellings.values())
    parser = Parser(parse, examples=known_words, expects=(known_words,), gives={"enum": [*known_words]})
    return _with_default(parser, default)


# places


def _placed(
    find: Callable[[str], str],
    reading: Parser,
    default: Any,
    where: str,
    form: str = "…",
    marks: tuple[str, ...] = (),
    expects: tuple[tuple[str, ...], ...] = (),
) -> Parser:
    """Return a parser that takes a text from a response with `find`, and reads the text with `reading`.

    Args:
        find: Function from a response to the text; raises ValueError for a response without it.
        reading: Parser of the text.
        default: Default action; None for that of the reading.
        where: Description of the place, for messages.
        form: Form of a response, with `…` for the text.
        marks: Marks of the place, as in `Parser.marks`.
        expects: Words of the place, as in `Parser.expects`.
    """

    def parse(response: str, upstream: Upstream) -> Any:
        try:
            passage = find(response)
        except ValueError as error:
            raise _malformed(str(error)) from None
        try:
            return reading.parse(passage, upstream)
        except ParseFailure as failure:
            raise ParseFailure(failure.name, f"{where}: {failure}") from None

    parser = replace(
        reading,
        parse=parse,
        examples=tuple(form.replace("…", example) for example in reading.examples),
        expects=(*expects, *reading.expects),
        marks=(*marks, *reading.marks),
    )
    return _with_default(parser, default)


def _tagged(name: str, reading: Parser, default: Any = None, *, ignore_case: bool = True) -> Parser:
    """Return the parser of the text between two tags."""
    find, marks = tag_finder(name, ignore_case=ignore_case), (f"<{name}>", f"</{name}>")

    def inside(response: str) -> str:
        passage = find(without_thoughts(response, [name]))
        if passage is None:
            raise ValueError(f"no <{name}>…</{name}>")
        return passage

    form, expects = "…".join(marks), (marks[:1],)
    return replace(_placed(inside, reading, default, marks[0], form, marks, expects), strips=marks)


def tag(
    name: str,
    /,
    *,
    as_: Reading = _TEXT,
    keep_tag: bool = False,
    ignore_case: bool = True,
    default: Any = None,
) -> Parser:
    """Take the text between the last <name> and </name>.

    name: the tag, without angle brackets
    as: what the text is: text, number, json, a list of words, or another parser
    keep_tag: leave the tags on a text
    ignore_case: take <Answer> for <answer>
    default: the action that later roles see where nothing can be read; beside a list of words, also another
    """
    reading = _parser_of(as_, "as")
    if not keep_tag:
        return _tagged(name, reading, default, ignore_case=ignore_case)
    if reading.gives != TEXT:
        raise ValueError("keep_tag goes with a text alone")

    def tagged(passage: str, upstream: Upstream) -> str:
        return f"<{name}>{reading.parse(passage, upstream)}</{name}>"

    parser = _tagged(name, replace(reading, parse=tagged), default, ignore_case=ignore_case)
    return replace(parser, strips=())


def tags(fields: dict[str, Reading], /, *, ignore_case: bool = True, default: Any = None) -> Parser:
    """Take several tags: the action has a field for each, from the last tag of its name.

    fields: each tag, with what its text is: text, number, json, a list of words, or another parser
    ignore_case: take <Answer> for <answer>
    default: the action that later roles see where one of the tags cannot be read
    """
    if not fields:
        raise ValueError("expected at least one tag, such as {answer: text}")
    parsers = {
        name: _tagged(name, _parser_of(reading, 0, name), ignore_case=ignore_case)
        for name, reading in fields.items()
    }

    def parse(response: str, upstream: Upstream) -> dict[str, Any]:
        return {name: part.parse(response, upstream) for name, part in parsers.items()}

    properties = {name: dict(part.gives) for name, part in parsers.items()}
    ways = range(max(len(part.examples) for part in parsers.values()))
    parser = Parser(
        parse,
        None,
        tuple(role for part in parsers.values() for role in part.roles),
        strips=tuple(mark for part in parsers.values() for mark in part.strips),
        examples=tuple(
            "\n".join((*part.examples, *part.examples[-1:] * way)[way] for part in parsers.values())
            for way in ways
        ),
        expects=tuple(words for part in parsers.values() for words in part.expects),
        marks=tuple(mark for part in parsers.values() for mark in part.marks),
        gives={
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        },
    )
    return _with_default(parser, default)


def choice(role: str, /, *, tag: str = "answer", default: Any = None) -> Parser:
    """Choose an instance of a role by its number in <answer>, from 1; the action is that instance's.

    role: the role to choose from, one of those that this one needs
    tag: the tag around the number, without angle brackets
    default: the action that later roles see where nothing can be read
    """

    def candidate(picked: str, upstream: Upstream) -> View:
        candidates = upstream[role]
        # Compared as text, because `int` reads "+2", "0_2" and the digits of other scripts, too.
        view = next((it for it in candidates if str(it.index) == picked.lstrip("0")), None)
        if view is not None and view.ok is True:
            return view
        message = f"{_short(picked)} names none of the {len(candidates)} candidates"
        if view is not None:
            failure = str(view.failure).replace("_", " ")
            message = f"{role} {view.index} has no answer to choose: {failure}"
        raise ParseFailure(FailureName.UNPARSEABLE_CHOICE, message)

    reading = Parser(candidate, roles=(role,), examples=("1",), gives={ACTION_OF: role})
    parser = replace(_tagged(tag, reading, default), strips=())

    def action(response: str, upstream: Upstream) -> Any:
        return parser.parse(response, upstream).action

    return replace(parser, parse=action, chooses=parser.parse)


def fence(language: str, /, *, as_: Reading = _TEXT, default: Any = None) -> Parser:
    """Take the last fenced block of a language, or the whole answer without such a block.

    A block of no language counts where none has the language.

    language: the word behind the backticks, such as python; any takes a block whatever its language
    as: what the block is: text, number, json, a list of words, or another parser
    default: the action that later roles see where nothing can be read
    """
    language = language.strip().lower()

    def block(response: str) -> str:
        return last_block(without_thoughts(response), "" if language == "any" else language)

    form = f"```{language}\n…\n```".replace("```any", "```")
    return _placed(block, _parser_of(as_, "as"), default, "the block", form, ("```",))


def boxed(*, as_: Reading = _TEXT, default: Any = None) -> Parser:
    r"""Take what stands in the last \boxed{…} or \fbox{…} of the answer, with nested braces.

    as: what that is: text, number, json, a list of words, or another parser
    default: the action that later roles see where nothing can be read
    """

    def inside(response: str) -> str:
        box = last_box(without_thoughts(response))
        if box is None:
            raise ValueError(r"no \boxed{…}")
        return box

    reading, expects = _parser_of(as_, "as"), (("\\boxed", "\\fbox"),)
    return _placed(inside, reading, default, "the box", "\\boxed{…}", ("}",), expects)


def pattern(
    pattern: str, /, *, as_: Reading = _TEXT, ignore_case: bool = False, default: Any = None
) -> Parser:
    """Take the last match of a pattern: its group `action`, else its first group, else the whole match.

    pattern: a regular expression of RE2, without lookarounds; `.` matches line ends too
    as: what that is: text, number, json, a list of words, or another parser
    ignore_case: take capitals for small letters
    default: the action that later roles see where nothing can be read
    """
    compiled = compile_pattern(pattern, ignore_case=ignore_case)
    kept_tags = [name for name in THOUGHTS if re.search(rf"</?{name}\b", pattern, re.IGNORECASE)]
    group: str | int = "action" if "action" in compiled.groupindex else min(1, compiled.groups)
    has_choice = re.search(r"\||\)[?*{]", pattern)  # then a match may do without a tag
    tags = [] if has_choice else re.findall(r"(?<!\?)(?<!\?P)<[A-Za-z_]\w*>", pattern)

    def matched(response: str) -> str:
        try:
            match = last_match(compiled, without_thoughts(response, kept_tags))
        except UnicodeEncodeError:
            raise ValueError("the answer is not valid Unicode") from None
        action = None if match is None else match.group(group)
        if action is None:
            raise ValueError(f"nothing matches {pattern!r}")
        return action.strip()

    marks = (*tags, *re.findall(r"</[A-Za-z_]\w*>", pattern))
    parser = _placed(
        matched, _parser_of(as_, "as"), default, "the match", "…", marks, tuple((tag,) for tag in tags)
    )
    return replace(parser, examples=())


def _malformed(message: str) -> ParseFailure:
    return ParseFailure(FailureName.MALFORMED_OUTPUT, message)


def _short(passage: str) -> str:
    return repr(passage if len(passage) <= 40 else passage[:37] + "...")
