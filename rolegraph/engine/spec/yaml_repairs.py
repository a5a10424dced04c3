"""Explanations of YAML that cannot be parsed: the line of the mistake, and the text to write there.

Each rule changes one line in a way that corrects one kind of mistake. The change that lets the parser read
furthest names the mistake, so the advice is never text that YAML refuses as well.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise, product, takewhile
from operator import itemgetter
from typing import NamedTuple

import yaml
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from rolegraph.engine.secrets import without_secrets

_LONGEST = 60_000
"""Number of characters of the longest text whose repairs are tried: each try takes as long as a parse."""
_SHOWN = 160
"""Number of characters of the longest line that a hint quotes."""


class Mistake(NamedTuple):
    """Mistake in a text of YAML; `position` counts characters from 0."""

    position: int
    width: int
    message: str
    hint: str = ""


class _Repair(NamedTuple):
    """Change of one line that may correct a mistake in the line."""

    line: int
    text: str
    """Text of the line after the change."""
    column: int
    """Column of the mistake, from 0."""
    width: int
    message: str
    hint: str = ""
    """Advice for the message; if empty, the changed line is quoted."""


class _Lines(NamedTuple):
    """Lines of a text, with the mistake that the parser reported."""

    lines: Sequence[str]
    problem: int
    """Index of the line at which the parser stopped."""
    column: int
    opened: int | None
    """Index of the line with the quote, bracket, key or block that the parser could not finish."""
    opening: int
    """Column of that quote, bracket or key, from 0."""
    in_brackets: bool
    """True where the parser was reading a list or mapping in brackets."""
    quote: int | None
    """Index of the line in which the last quoted text of several lines begins; None without one."""

    @property
    def suspects(self) -> list[int]:
        """Indices of the lines that may hold the mistake, the likeliest first."""
        line_before = next((it for it in range(self.problem - 1, -1, -1) if _is_code(self.lines[it])), None)
        likely = (self.quote, self.opened, line_before, self.problem)
        return [index for index in dict.fromkeys(likely) if index is not None]


def explain(text: str, error: yaml.MarkedYAMLError) -> Mistake:
    """Return the mistake behind an error of the YAML parser.

    Args:
        text: The whole text.
        error: The parser's error; without a mark, the mistake is placed at the beginning.
    """
    lines = text.split("\n")
    line_starts = [0, *accumulate(len(line) + 1 for line in lines[:-1])]
    mark = error.problem_mark or error.context_mark
    position = mark.index if mark else 0
    is_syntax = isinstance(error, ScannerError | ParserError)
    if is_syntax and len(text) <= _LONGEST and (repair := _best(text, lines, line_starts, position, error)):
        hint = repair.hint
        if not hint and len(repaired_line := repair.text.strip()) <= _SHOWN:
            hint = f"write {repaired_line}"
        hint = without_secrets(hint)
        return Mistake(line_starts[repair.line] + repair.column, repair.width, repair.message, hint)
    if error.context_mark and (error.context or "").endswith("quoted scalar"):
        quote = text[error.context_mark.index]
        return Mistake(error.context_mark.index, 1, f"the quote {quote} that opens here is not closed")
    return Mistake(position, 1, *_in_words(error))


def _best(
    text: str, lines: Sequence[str], starts: Sequence[int], position: int, error: yaml.MarkedYAMLError
) -> _Repair | None:
    """Return the repair with which the parser reads furthest; None if no repair lets it read further."""
    problem = bisect_right(starts, position) - 1
    context, opened_line, opening = error.context_mark, None, 0
    if context:
        opened_line = bisect_right(starts, context.index) - 1
        opening = context.index - starts[opened_line]
    quote = _quote_before(text, position)
    is_in_brackets = "flow" in (error.context or "")
    around = _Lines(lines, problem, position - starts[problem], opened_line, opening, is_in_brackets, quote)
    is_at_end = not any(map(_is_code, lines[problem + 1 :])) and opened_line not in (None, problem)
    best_repair, reached = None, 0
    for repair in _repairs(around):
        if repair.text == lines[repair.line]:
            continue
        changed_text = "\n".join((*lines[: repair.line], repair.text, *lines[repair.line + 1 :]))
        reach = _reach(changed_text)
        if reach > reached and reach > (repair.line if is_at_end else problem):
            best_repair, reached = repair, reach
    return best_repair


def _reach(text: str) -> int:
    """Return the index of the line at which a text stops being valid YAML; the number of lines for a valid
    text."""
    try:
        for _ in yaml.parse(text, Loader=yaml.SafeLoader):  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]  # untyped in the stubs
            pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        index = mark.index if mark else 0
        if error.context_mark and (error.context or "").endswith("quoted scalar"):
            index = error.context_mark.index  # the mistake is where the quote opens
        return text.count("\n", 0, index)
    return text.count("\n") + 1


def _quote_before(text: str, position: int) -> int | None:
    """Return the index of the line in which the last quoted text of several lines before a position begins;
    None without one.

    A quote that is not closed includes the text up to the next quote, where the parser stops.
    """
    line = None
    with suppress(yaml.MarkedYAMLError):
        for token in yaml.scan(text, Loader=yaml.SafeLoader):  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]  # untyped in the stubs
            if isinstance(token, yaml.ScalarToken) and token.start_mark.index < position and not token.plain:
                is_long = token.style in ("'", '"') and token.start_mark.line != token.end_mark.line
                line = text.count("\n", 0, token.start_mark.index) if is_long else line
    return line


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


# texts that need quotes


_KEYED = re.compile(r"^(\s*(?:- +)*)([^\s:#'\"{}\[\],]+)( *: +)(\S.*?)\s*$")
"""Pattern of a line with a key and its value."""
_FLOW_KEY = re.compile(r"([{,]\s*)([^\s:#'\"{}\[\],]+)(:\s+)")
"""Pattern of a key in a mapping in braces."""
_COMMENT = re.compile(r"\s+#(?=\s).*$")
_FIRST = re.compile(r"\{[{%#]|[%@`*&!>|]")
"""Pattern of a value's first characters that are special in YAML."""


def quoted(text: str) -> str:
    """Return a text of one line in YAML's single or double quotes, whichever need fewer escapes."""
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text and "\\" not in text:
        return f'"{text}"'
    return "'{}'".format(text.replace("'", "''"))


def _bare(text: str) -> str:
    """Return a text without mismatched quotes around it."""
    quote = text[0]
    if quote not in "'\"":
        return text
    count = text.count(quote)
    if count % 2:  # `'a == 0` lacks a quote, `'a''` has one too many
        return text[1:].rstrip(quote) if text.endswith(quote) else text[1:]
    second = text.index(quote, 1)
    is_inner = text[second - 1].isspace() or text[-2] == quote or text[second + 1 : second + 2].isalnum()
    return text[1:-1] if text[-1] == quote and is_inner else text


def _reason(value: str) -> tuple[int, int, str] | None:
    """Return (column, width, message) of the part because of which a value needs quotes in YAML; None if it
    needs none."""
    if value[0] in "'\"":
        end = value.find(value[0], 1)
        if end < 0:
            return 0, 1, f"the quote {value[0]} that opens here is not closed"
        return end, 1, f"the text ends at this quote {value[0]}, and more follows"
    if start := _FIRST.match(value):
        return 0, len(start[0]), f"a text that begins with {start[0]} needs quotes"
    if value[0] in _PAIRS:
        is_text = re.search(r"[]}]\s+[^\s\]},]", value)
        return (0, 1, f"`{value[0]}` begins a list or mapping: a text needs quotes") if is_text else None
    if match := re.search(r":(?=\s|$)", value):
        return match.start(), 1, "a text with a colon and a space needs quotes"
    if match := re.search(r"(?<=\s)#", value):
        return match.start(), 1, "a space and `#` begin a comment: a text with them needs quotes"
    if match := re.search(r"\{[{%#]|[\[\]{},]", value):
        return match.start(), len(match[0]), f"a text with `{match[0]}` needs quotes here"
    return None


_PAIRS = {"[": "]", "{": "}"}
_TWO_KEYS = re.compile(r"^([^\s:]+) +([a-z_]+: +[^\s:{]+)$")
"""Pattern of a value that is followed by the next key and the key's value in the same line."""


def _quotings(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line that quote its value, or a value in its braces."""
    line = around.lines[index]
    for match in _FLOW_KEY.finditer(line):
        line_rest = line[match.end() :]
        for closing in _closings(line_rest):
            value = line_rest[:closing].rstrip()
            if value and (reason := _reason(value)):
                offset, width, message = reason
                repaired = f"{line[: match.end()]}{quoted(_bare(value))}{line_rest[closing:]}"
                yield _Repair(index, repaired, match.end() + offset, width, message)
    if match := _KEYED.match(line):
        value, start = _COMMENT.sub("", match[4]), match.start(4)
        if reason := _reason(value):
            offset, width, message = reason
            hint = ""
            if keys := _TWO_KEYS.match(value):
                hint = f"write `{match[2]}: {keys[1]}` and `{keys[2]}` in two lines, or the text in quotes"
            repaired = line[:start] + quoted(_bare(value))
            yield _Repair(index, repaired, start + offset, width, message, hint=hint)


def _closings(rest: str) -> Iterator[int]:
    """Yield the positions in the rest of a line at which a value may end: at brackets, the last bracket
    first."""
    end = len(rest.rstrip())
    while end and rest[end - 1] in "}]":
        end -= 1
    last_index = len(rest.rstrip())
    yield from range(last_index - 1, end - 1, -1)
    if end == last_index:
        yield last_index


# other changes of a line


_LEAD = r"(?P<lead>\s*(?:- +)*)"
_KEY = r"(?P<key>[A-Za-z_][\w.-]*)"
_ESCAPED = r"0abtnvfre\"/\\N_LPxuU "
_Edit = tuple[str, Callable[[re.Match[str]], str], str, str]
"""Pattern of a whole line whose group `at` is the mistake; the line in its place; the message and the hint,
in which `{at}` and `{key}` are groups."""
_SIGNS: Sequence[_Edit] = (
    (
        r"(?P<lead> *)(?P<at>[^\S \t\r]+)(?P<value>.*)",
        lambda it: f"{it['lead']}{' ' * len(it['at'])}{it['value']}",
        "the line begins with a space of another kind",
        "write common spaces",
    ),
    (
        r"(?P<lead>[^\t]*)(?P<at>\t+).*",
        lambda it: it[0].expandtabs(4),
        "YAML takes no tab here",
        "set your editor to write spaces in YAML",
    ),
    (
        r"(?P<lead>.*[{,] *\S+: +[^\s,:{}]+)(?P<at> +)(?P<value>[a-z_]+: +[^\s:{]+)",
        lambda it: f"{it['lead']}, {it['value']}",
        "a comma is missing here",
        "",
    ),
    (
        r"(?P<lead> *)(?P<at>-) +(?P<value>.*)",
        lambda it: it["lead"] + it["value"],
        "a list item among keys, which have no dash",
        "",
    ),
    (
        r"(?P<lead> *)(?P<at>[^\s-])(?P<value>.*)",
        lambda it: f"{it['lead']}- {it['at']}{it['value']}",
        "a list item without its dash",
        "",
    ),
    (
        rf'[^"]*".*?(?P<at>\\[^{_ESCAPED}]).*',
        lambda it: re.sub(rf"\\(\\|[^{_ESCAPED}])", r"\\\\\1", it[0]),
        "`{at}` is no escape of YAML in double quotes",
        "",
    ),
)
"""Edits that are tried before repairs that quote a text."""
_KEYS: Sequence[_Edit] = (
    (
        r"(?P<lead>.*: *)(?P<key>[|>][-+]?\d?) +(?P<at>[^\s#].*)",
        lambda it: it["lead"] + it["key"],
        "the text after `{key}` begins in the next line",
        "write `{key}` alone, and the text below it",
    ),
    (
        rf"{_LEAD}{_KEY}(?P<at>:)(?P<value>[^\s:].*)",
        lambda it: f"{it['lead']}{it['key']}: {it['value']}",
        "a space is missing after the colon of `{key}`",
        "",
    ),
    (
        rf"{_LEAD}{_KEY}\s*(?P<at>=)\s*(?P<value>\S.*)",
        lambda it: f"{it['lead']}{it['key']}: {it['value']}",
        "`{key}` has `=` in place of a colon",
        "",
    ),
    (
        rf"{_LEAD}(?P<at>{_KEY})(?P<value>\s+[^\s:=].*)?",
        lambda it: f"{it['lead']}{it['key']}:{it['value'] or ''}",
        "a colon is missing after `{key}`",
        "",
    ),
)
"""Edits that are tried after repairs that quote a text."""


def _edits(edits: Sequence[_Edit], around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repair of a line by each edit whose pattern matches the line."""
    code = _COMMENT.sub("", around.lines[index]).rstrip()
    for pattern, change, message, hint in edits:
        if match := re.fullmatch(pattern, code):
            words, (start, end) = match.groupdict(), match.span("at")
            yield _Repair(
                index, change(match), start, end - start, message.format(**words), hint.format(**words)
            )


def _indentations(around: _Lines) -> list[_Repair]:
    """Return the repairs that indent a line as another line is, beginning with the usual step below a key."""
    lines, problem = around.lines, around.problem
    line_pairs = pairwise(filter(_is_code, lines))
    steps = Counter(_indent(line) - _indent(key) for key, line in line_pairs if key.rstrip().endswith(":"))
    lines_above = [it for it in range(problem) if _is_code(lines[it])]
    inner = [*takewhile(lambda it: _indent(lines[it]) >= _indent(lines[problem]), reversed(lines_above))]
    repairs: list[tuple[int, _Repair]] = []
    for index in dict.fromkeys((*inner[-1:], *around.suspects)):
        line, following_line = lines[index], next(filter(_is_code, lines[index + 1 :]), "")
        for depth, step, message, hint in _other_indents(lines, index, problem):
            if not (line.rstrip().endswith(":") and _indent(following_line) <= depth):  # keys below it
                repair = _Repair(index, " " * depth + line.lstrip(), 0, max(_indent(line), 1), message, hint)
                repairs.append((-steps[step], repair))
    return [repair for _, repair in sorted(repairs, key=itemgetter(0))]


def _other_indents(lines: Sequence[str], index: int, other: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield other indentations of a line, the nearest first, each with the step from the key above, the
    mistake and the hint.

    A line may be indented as the blocks that are open above it, as a block of the line above, or as line
    `other`.
    """
    indent, levels = _indent(lines[index]), dict[int, int]()
    lines_above = [it for it in range(index - 1, -1, -1) if _is_code(lines[it])]
    for it in lines_above:
        if all(_indent(lines[it]) < level for level in levels):
            levels[_indent(lines[it])] = it
    levels.setdefault(_indent(lines[other]), other)
    if lines_above and lines[lines_above[0]].rstrip().endswith(":"):
        levels.setdefault(_indent(lines[lines_above[0]]) + 2, lines_above[0])
    for depth in sorted(levels.keys() - {indent}, key=lambda depth: (abs(depth - indent), -depth)):
        owner = next((lines[it] for it in lines_above if _indent(lines[it]) < depth), "")
        place = f"`{_name_in(owner)}`" if owner else "the top of the spec"
        hint = f"{depth or 'no'} space{'s' if depth > 1 else ''}"
        if _indent(shown_line := lines[levels[depth]]) == depth:
            hint += f", as `{_name_in(shown_line)}` in line {levels[depth] + 1}"
        message = f"wrong indentation: `{_name_in(lines[index])}` belongs to {place}"
        yield depth, depth - _indent(owner), message, hint


def _name_in(line: str) -> str:
    """Return the key in a line; without a key, the line's text up to a colon."""
    return line.strip().split(":")[0].removeprefix("- ")


def moved(text: str, index: int) -> Iterator[tuple[Mistake, str]]:
    """Yield a line with a key at each of its other possible indentations: (mistake that the change corrects,
    new text).

    The line moves alone, or with the deeper indented lines below it.

    Args:
        text: Text of a file.
        index: Index of the line.
    """
    lines = text.split("\n")
    indent, start = _indent(lines[index]), sum(len(it) + 1 for it in lines[:index])
    lines_below = range(index + 1, len(lines))
    end = next((it for it in lines_below if _is_code(lines[it]) and _indent(lines[it]) <= indent), len(lines))
    for depth, _, message, hint in _other_indents(lines, index, index):
        for last_line in (index + 1, end):
            block = [" " * depth + it[indent:] if _is_code(it) else it for it in lines[index:last_line]]
            changed_text = "\n".join((*lines[:index], *block, *lines[last_line:]))
            yield Mistake(start, max(indent, 1), message, hint), changed_text


# brackets


def _extras(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repair of a line without the bracket at which the parser stopped."""
    line, column = around.lines[index], around.column
    if index == around.problem and (bracket := line[column : column + 1]) in ("]", "}"):
        message = f"the bracket `{bracket}` closes nothing"
        yield _Repair(index, line[:column] + line[column + 1 :], column, 1, message)


def _brackets(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line whose brackets do not match, or that lacks a comma in brackets."""
    line = around.lines[index]
    code = _COMMENT.sub("", line).rstrip()
    column = around.column if index == around.problem else len(code)
    start = line[around.opening : around.opening + 1] if index == around.opened else ""
    if start in _PAIRS:
        if index == around.problem and (wrong_bracket := line[column : column + 1]) in _PAIRS.values():
            changed_line = f"{line[:column]}{_PAIRS[start]}{line[column + 1 :]}"
            yield _Repair(index, changed_line, column, 1, f"`{wrong_bracket}` closes what `{start}` opened")
        message = f"the bracket `{start}` that opens here is not closed"
        yield _Repair(index, code.removesuffix(",") + _PAIRS[start], around.opening, 1, message)
    if not around.in_brackets:
        return
    for gap in re.finditer(r"(?<=[^\s,:{\[])\s+(?=[^\s,:}\]])", code):
        for sign, name in ((":", "colon"), (",", "comma")) if gap.end() <= column + 1 else ():
            if sign == "," or code[gap.start() - 1] == code[gap.end()] == '"':
                changed_line = f"{code[: gap.start()]}{sign}{code[gap.start() :]}"
                yield _Repair(index, changed_line, gap.start() - 1, 1, f"a {name} is missing here")
    if index != around.problem and code and code[-1] not in "{[,":
        message = "a comma is missing at the end of this line"
        yield _Repair(index, f"{code},", len(code) - 1, 1, message)


def _repairs(around: _Lines) -> Iterator[_Repair]:
    """Yield all repairs of the lines that may hold the mistake, the likeliest first."""
    for rule, index in product((_extras, partial(_edits, _SIGNS), _quotings), around.suspects):
        yield from rule(around, index)
    yield from _indentations(around)
    for rule, index in product((partial(_edits, _KEYS), _brackets), around.suspects):
        yield from rule(around, index)


_WORDS = (
    ("mapping values are not allowed", "a second `key: value` in one value", ""),
    ("could not find expected ':'", "neither `key: value` nor `- item`", ""),
    ("expected <block end>", "text that belongs to nothing before it", ""),
    ("expected ',' or", "neither a comma nor a closing bracket", ""),
    ("cannot start any token", "a text that begins with this character needs quotes", ""),
    (
        "expected alphabetic or numeric",
        "`*` and `&` at the beginning of a text are YAML's own",
        "quote the text",
    ),
    ("found another document", "`---` begins another document", "one spec in a file, without `---` inside"),
    (
        "found undefined alias",
        "no anchor `&NAME` stands before this alias `*NAME`",
        "quote it where it is a text",
    ),
    ("expected the node content", "a value is missing, or a bracket is not closed", ""),
    ("found duplicate anchor", "an anchor of this name was there before", ""),
    ("found unknown escape", "this backslash is no escape in double quotes", "write two, or single quotes"),
    ("expected a comment or a line break", "the text after `|` or `>` begins in the next line", ""),
    ("found unexpected end of stream", "the text ends inside of quotes", ""),
)
"""Parts of the parser's problems, each with the message and the hint of this project."""


def _in_words(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return (message, hint) for a problem of the YAML parser that no repair corrects."""
    problem = error.problem or error.context or ""
    for part, message, hint in _WORDS:
        if part in problem:
            return message, hint
    return problem, ""
