"""Explanations of YAML that cannot be parsed: the line of the mistake, and the text to write there.

Each rule changes one line in a way that corrects one kind of mistake. The change that lets the parser read
furthest names the mistake, so the advice is never text that YAML refuses as well.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise, product
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
    expected: str = ""
    hint: str = ""


class _Repair(NamedTuple):
    """Change of one line that may correct a mistake in the line."""

    line: int
    text: str
    """The changed line."""
    column: int
    """Column of the mistake, from 0."""
    width: int
    message: str
    expected: str = ""
    hint: str = ""
    """Advice for the message; if empty, the changed line is quoted."""


class _Lines(NamedTuple):
    """Lines of a text, with the mistake that the parser reported."""

    lines: Sequence[str]
    problem: int
    """Index of the line at which the parser stopped."""
    column: int
    opened: int | None
    """Index of the line with the quote, bracket or key that is not closed; None if the parser was reading a
    block."""
    opening: int
    """Column of that quote, bracket or key, from 0."""
    in_brackets: bool
    """True where the parser was reading a list or mapping in brackets."""
    quote: int | None
    """Index of the line in which the last quoted text of several lines begins; None without one."""

    def following(self, index: int) -> str:
        """Return the next line that is neither empty nor a comment; empty without such a line."""
        return next(filter(_is_code, self.lines[index + 1 :]), "")

    @property
    def suspects(self) -> list[int]:
        """Indices of the lines that may hold the mistake, the likeliest first."""
        before = (index for index in range(self.problem - 1, -1, -1) if _is_code(self.lines[index]))
        likely = (self.quote, self.opened, next(before, None), self.problem)
        return [index for index in dict.fromkeys(likely) if index is not None]


def explain(text: str, error: yaml.MarkedYAMLError) -> Mistake:
    """Return the mistake behind an error of the YAML parser.

    Args:
        text: The whole text.
        error: The parser's error; without a mark, the mistake is placed at the beginning.
    """
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines[:-1])]
    mark = error.problem_mark or error.context_mark
    position = mark.index if mark else 0
    is_syntax = isinstance(error, ScannerError | ParserError)
    if is_syntax and len(text) <= _LONGEST and (repair := _best(text, lines, starts, position, error)):
        hint = repair.hint
        if not hint and len(written := repair.text.strip()) <= _SHOWN:
            hint = f"write {written}"
        hint = without_secrets(hint)
        return Mistake(
            starts[repair.line] + repair.column, repair.width, repair.message, repair.expected, hint
        )
    if error.context_mark and (error.context or "").endswith("quoted scalar"):
        quote = text[error.context_mark.index]
        return Mistake(error.context_mark.index, 1, f"the quote {quote} that opens here is not closed")
    return Mistake(position, 1, *_in_words(error))


def _best(
    text: str, lines: Sequence[str], starts: Sequence[int], position: int, error: yaml.MarkedYAMLError
) -> _Repair | None:
    """Return the repair with which the parser reads furthest; None if no repair lets it read further."""
    problem = bisect_right(starts, position) - 1
    context = error.context_mark
    opened, opening = None, 0
    if context and not (error.context or "").startswith("while parsing a block"):
        opened = bisect_right(starts, context.index) - 1
        opening = context.index - starts[opened]
    quote = _quote_before(text, position)
    in_brackets = "flow" in (error.context or "")
    around = _Lines(lines, problem, position - starts[problem], opened, opening, in_brackets, quote)
    is_at_end = not any(map(_is_code, lines[problem + 1 :])) and opened not in (None, problem)
    best, reached = None, 0
    for repair in _repairs(around):
        if repair.text == lines[repair.line]:
            continue
        changed = "\n".join((*lines[: repair.line], repair.text, *lines[repair.line + 1 :]))
        reach = _reach(changed)
        if reach > reached and reach > (repair.line if is_at_end else problem):
            best, reached = repair, reach
    return best


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
"""Line with a key and a value on it."""
_FLOW_KEY = re.compile(r"([{,]\s*)([^\s:#'\"{}\[\],]+)(:\s+)")
"""Key in a mapping in braces."""
_COMMENT = re.compile(r"\s+#(?=\s).*$")
_FIRST = {
    "{{": "`{{` begins a mapping of YAML",
    "{%": "`{%` is nothing that YAML can read",
    "{#": "`{#` is nothing that YAML can read",
    "%": "no text begins with `%` in YAML",
    "@": "no text begins with `@` in YAML",
    "`": "no text begins with a backtick in YAML",
    "*": "`*` at the beginning of a text is an alias of YAML",
    "&": "`&` at the beginning of a text is an anchor of YAML",
    "!": "`!` at the beginning of a text is a tag of YAML",
    ">": "`>` at the beginning of a text announces lines of text in YAML",
    "|": "`|` at the beginning of a text announces lines of text in YAML",
}
"""Messages for a value that begins with a special character of YAML, by that character."""


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
        pieces = [it.start() for it in re.finditer(re.escape(value[0]), value)]
        if len(pieces) == 1:
            return 0, 1, f"the quote {value[0]} that opens here is not closed"
        if len(pieces) == 3 and pieces[1:] == [len(value) - 2, len(value) - 1]:
            return pieces[2], 1, f"the quote {value[0]} is one too many"
        return pieces[1], 1, f"the text ends at this quote {value[0]}, and more follows"
    if start := next((it for it in _FIRST if value.startswith(it)), None):
        return 0, len(start), f"{_FIRST[start]}: a text that begins so needs quotes"
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
"""Value that is followed by the next key and its value in the same line."""


def _quotings(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line that quote its value, or a value in its braces."""
    line = around.lines[index]
    for match in _FLOW_KEY.finditer(line):
        rest = line[match.end() :]
        for closing in _closings(rest):
            value = rest[:closing].rstrip()
            if value and (reason := _reason(value)):
                offset, width, message = reason
                written = f"{line[: match.end()]}{quoted(_bare(value))}{rest[closing:]}"
                yield _Repair(index, written, match.end() + offset, width, message)
    if match := _KEYED.match(line):
        value, start = _COMMENT.sub("", match[4]), match.start(4)
        if reason := _reason(value):
            offset, width, message = reason
            hint = ""
            if keys := _TWO_KEYS.match(value):
                hint = f"write `{match[2]}: {keys[1]}` and `{keys[2]}` in two lines, or the text in quotes"
            written = line[:start] + quoted(_bare(value))
            yield _Repair(index, written, start + offset, width, message, hint=hint)


def _closings(rest: str) -> Iterator[int]:
    """Yield the positions in the rest of a line at which a value may end: at brackets, the last bracket
    first."""
    end = len(rest.rstrip())
    while end and rest[end - 1] in "}]":
        end -= 1
    last = len(rest.rstrip())
    yield from range(last - 1, end - 1, -1)
    if end == last:
        yield last


def _escapes(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repair of a line whose double quotes contain a backslash that is no escape."""
    line = around.lines[index]
    level = r"0abtnvfre\"/\\N_LPxuU "
    if (match := re.search(rf"\\([^{level}])", line)) and '"' in line[: match.start()]:
        written = re.sub(rf"\\(\\|[^{level}])", r"\\\\\1", line)
        message = f"`{match[0]}` is no escape of YAML in double quotes"
        expected = "`\\\\` for a backslash, or single quotes"
        yield _Repair(index, written, match.start(), 2, message, expected)


# keys, lists and blocks


_PIECE = r"[A-Za-z_][\w.-]*"


def _colons(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line that lacks a colon, or the space after it."""
    line = around.lines[index]
    code = _COMMENT.sub("", line).rstrip()
    if match := re.match(rf"^(\s*(?:- +)*)({_PIECE}):([^\s:].*)$", code):
        message = f"a space is missing after the colon of `{match[2]}`"
        yield _Repair(index, f"{match[1]}{match[2]}: {match[3]}", match.end(2), 1, message)
    elif match := re.match(rf"^(\s*(?:- +)*)({_PIECE})\s*=\s*(\S.*)$", code):
        message = f"`{match[2]}` has `=` in place of a colon"
        yield _Repair(index, f"{match[1]}{match[2]}: {match[3]}", code.index("="), 1, message)
    elif match := re.match(rf"^(\s*(?:- +)*)({_PIECE})(?:\s+([^\s:=].*))?$", code):
        message = f"a colon is missing after `{match[2]}`"
        written = f"{match[1]}{match[2]}: {match[3] or ''}".rstrip()
        yield _Repair(index, written, match.start(2), len(match[2]), message)


def _dashes(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a list whose items do not all begin with a dash."""
    line = around.lines[index]
    depth = _indent(line)
    dashless = line[:depth] + line[depth:].removeprefix("- ").lstrip()
    rows = range(index - 1, -1, -1)
    item = next(
        (it for it in rows if _is_code(around.lines[it]) and _indent(around.lines[it]) <= depth), None
    )
    following = next((it for it in around.lines[index + 1 :] if _is_code(it) and _indent(it) <= depth), "")
    if (
        line[depth:].startswith("- ")
        and _indent(following) == depth
        and not following[depth:].startswith("-")
    ):
        message = "a list item among keys: the key below has no dash"
        yield _Repair(index, dashless, depth, 1, message, "a dash before each item, or before no key")
    if item is None or _indent(around.lines[item]) != depth:
        return
    above = around.lines[item].lstrip().startswith("- ")
    if above and not line.lstrip().startswith("-"):
        message = (
            f"a list item without its dash: the block is a list from line {_first_of(around, item) + 1} on"
        )
        hint = ""
        if re.match(rf"\s*{_PIECE}:", line):
            more = line.strip()
            hint = f"write `- {more}`, `  {more}` as part of the item above, or no dash in line {item + 1}"
        yield _Repair(index, f"{line[:depth]}- {line[depth:]}", depth, 1, message, hint=hint)
    elif not above and line.lstrip().startswith("- "):
        message = f"a list item among keys: line {item + 1} begins without a dash"
        yield _Repair(index, dashless, depth, 1, message)


def _first_of(around: _Lines, item: int) -> int:
    """Return the index of the first line of the list that holds the item in a line."""
    depth = _indent(around.lines[item])
    for index in range(item, -1, -1):
        line = around.lines[index]
        if _is_code(line) and (_indent(line) < depth or (_indent(line) == depth and line[depth] != "-")):
            return item
        if _is_code(line) and _indent(line) == depth:
            item = index
    return item


def _blocks(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of lines of text after `|` or `>`."""
    line = around.lines[index]
    if match := re.match(r"^(.*: *)([|>][-+]?\d?) +([^\s#].*)$", line):
        following = next(filter(str.strip, around.lines[index + 1 :]), "")
        if _indent(following) > _indent(line):
            message = f"the text after `{match[2]}` begins in the next line"
            hint = f"write `{match[2]}` alone, and the text below it"
            yield _Repair(index, match[1] + match[2], match.start(3), len(match[3]), message, hint=hint)
    header = next(
        (it for it in range(index - 1, -1, -1) if re.search(r"(?:: *|- +)[|>][-+\d]*\s*$", around.lines[it])),
        None,
    )
    if (
        header is None
        or re.fullmatch(r"\s*[a-z_]+(?: +\S+)?", line)
        or not (block := [it for it in around.lines[header + 1 : index] if it.strip()])
    ):
        return
    depth = min(map(_indent, block))
    if _indent(around.lines[header]) < depth and _indent(line) < depth:
        message = f"this line is not indented as the text that begins in line {header + 2}"
        hint = f"{_spaces(depth)} before each line of the text"
        offset = _indent(line)
        yield _Repair(index, " " * depth + line.lstrip(), offset, len(line.strip()), message, hint=hint)


def _spaces(count: int) -> str:
    return f"{count} space{'' if count == 1 else 's'}" if count else "no space"


_OPENER = re.compile(r":(?: +&\S+)?\s*(?: #.*)?$")
"""End of a line whose value is the block below it."""


def _outliers(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line above whose indentation differs from that of the lines around it.

    The parser stops at the next line of the block. The line above is wrong if it interrupts the block, or if
    it is the first line of the block and the next line has the usual distance from the block's key.
    """
    lines, depth = around.lines, _indent(around.lines[index])
    above = next((it for it in range(index - 1, -1, -1) if _is_within(lines[it], depth)), None)
    if above is None:
        return
    below = next(it for it in range(above + 1, index + 1) if _is_code(lines[it]))
    pairs = list(pairwise(it for it in lines if _is_code(it)))
    steps = Counter(_indent(line) - _indent(key) for key, line in pairs if _OPENER.search(key))
    for wrong in (below, above):
        line, indent = lines[wrong], _indent(lines[wrong])
        before = next((it for it in reversed(lines[:wrong]) if _is_code(it)), "")
        if _OPENER.search(before):
            outer = _indent(before)
            is_usual = steps[depth - outer] > steps[indent - outer]
            is_wrong = outer < depth and (indent <= outer or is_usual)
        else:
            inner, is_block = _indent(lines[below]), sum(map(_is_code, lines[above:index])) > 2
            fits = is_block and steps[inner - depth] > steps[inner - indent]
            is_wrong = depth in _levels(lines, wrong) and (fits or not _OPENER.search(line))
        if is_wrong and indent != depth:
            name = f"`{_name_in(lines[index])}` in line {index + 1}"
            message = f"wrong indentation: {name} is in the same block"
            hint = f"{_spaces(depth)}, as {name}"
            yield _Repair(wrong, " " * depth + line.lstrip(), 0, max(indent, 1), message, hint=hint)


def _levels(lines: Sequence[str], index: int) -> Mapping[int, int]:
    """Return by indentation the nearest line above with it, for each block that is open at a line."""
    levels: dict[int, int] = {}
    for above in range(index - 1, -1, -1):
        depth = _indent(lines[above])
        if _is_code(lines[above]) and all(depth < level for level in levels):
            levels[depth] = above
    return levels


def _is_within(line: str, depth: int) -> bool:
    return _is_code(line) and _indent(line) < depth


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
    line, indent = lines[index], _indent(lines[index])
    above = [it for it in range(index - 1, -1, -1) if _is_code(lines[it])]
    levels = _levels(lines, index)
    if above and lines[above[0]].rstrip().endswith(":"):
        levels = {_indent(lines[above[0]]) + 2: above[0], **levels}
    end = next((it for it in range(index + 1, len(lines)) if _is_within(lines[it], indent + 1)), len(lines))
    start = sum(len(it) + 1 for it in lines[:index])
    for depth, shown in sorted(levels.items(), key=lambda level: abs(level[0] - indent)):
        owner = next((_name_in(lines[it]) for it in above if _is_within(lines[it], depth)), "")
        message = f"`{_name_in(line)}` belongs to {f'`{owner}`' if owner else 'the top of the spec'}"
        hint = _spaces(depth)
        if _indent(lines[shown]) == depth:
            hint += f", as `{_name_in(lines[shown])}` in line {shown + 1}"
        mistake = Mistake(start, max(indent, 1), f"wrong indentation: {message}", hint=hint)
        for last in (index + 1, end) if depth != indent else ():
            block = [" " * depth + it[indent:] if _is_code(it) else it for it in lines[index:last]]
            yield mistake, "\n".join((*lines[:index], *block, *lines[last:]))


def _indents(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs that give a line the indentation of an earlier line, the nearest indentation
    first."""
    line = around.lines[index]
    indent = _indent(line)
    levels = _levels(around.lines, index)
    following = around.following(index)
    if (deeper := _indent(following)) != indent and _is_code(following):
        levels = {deeper: around.lines.index(following, index), **levels}
    for depth in sorted(levels, key=lambda depth: (abs(depth - indent), -depth)):
        if line.rstrip().endswith(":") and _indent(following) <= depth:
            continue  # the keys below would be beside it
        name = around.lines[levels[depth]].strip().split(":")[0].removeprefix("- ")
        message = f"wrong indentation: no block around has {_spaces(indent)}"
        if indent > depth and levels[depth] < index and ": " in around.lines[levels[depth]]:
            message = (
                f"wrong indentation: `{name}` in line {levels[depth] + 1} has its value and takes no keys"
            )
        hint = f"{_spaces(depth)}, as `{name}` in line {levels[depth] + 1}"
        yield _Repair(index, " " * depth + line.lstrip(), 0, max(indent, 1), message, hint=hint)


def _characters(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line with characters that look like others: tabs, spaces of another width."""
    line = around.lines[index]
    spaces = line[: len(line) - len(line.lstrip())]
    if strange := next((it for it in spaces if it not in " \t\r"), None):
        message = f"the line begins with U+{ord(strange):04X}, a space of another kind"
        written = " " * len(spaces) + line.lstrip()
        yield _Repair(index, written, line.index(strange), 1, message, hint="write common spaces")
    if around.problem == index and line[around.column : around.column + 1] == "\t":
        is_indent = not line[: around.column].strip()
        message = "a tab cannot indent a line of YAML" if is_indent else "a tab cannot stand before a value"
        offset = around.column
        width = len(line[offset:]) - len(line[offset:].lstrip("\t"))
        before = next((it for it in reversed(around.lines[:index]) if _is_code(it)), "")
        depth = _indent(before) + (2 if before.rstrip().endswith(":") else 0)
        expected = _spaces(depth) if is_indent else "a space"
        written = " " * depth + line.strip() if is_indent else line.replace("\t", " ")
        yield _Repair(
            index, written, offset, width, message, expected, "set your editor to write spaces in YAML"
        )


# brackets


def _brackets(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line whose brackets do not match, or that lacks a comma in brackets."""
    line = around.lines[index]
    code = _COMMENT.sub("", line).rstrip()
    column = around.column if index == around.problem else len(code)
    character = line[column : column + 1]
    if index == around.opened and line[around.opening : around.opening + 1] in _PAIRS:
        start = line[around.opening]
        if index == around.problem and character in "]}" and character and character != _PAIRS[start]:
            message = f"`{character}` closes what `{start}` opened"
            yield _Repair(index, f"{line[:column]}{_PAIRS[start]}{line[column + 1 :]}", column, 1, message)
        message = f"the bracket `{start}` that opens here is not closed"
        yield _Repair(index, code.removesuffix(",") + _PAIRS[start], around.opening, 1, message)
    words = [it.span() for it in re.finditer(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^\s,:{}\[\]]+", code)]
    for match in re.finditer(r"(?<=[\w\"'\]}])\s+(?=[{\[])", code if around.in_brackets else ""):
        written = f"{code[: match.start()]},{code[match.start() :]}"
        yield _Repair(index, written, match.start() - 1, 1, "a comma is missing here")
    for (_, end), (start, _) in pairwise(words if around.in_brackets else ()):
        if code[end:start].isspace() and start <= column + 1:
            quote = code[end - 1] in "'\"" and not re.search(r"[{,]\s*$", code[:start])
            if quote and code[start] in "'\"":
                yield _Repair(index, f"{code[:end]}:{code[end:]}", end - 1, 1, "a colon is missing here")
            message = "a comma is missing here"
            yield _Repair(index, f"{code[:end]},{code[end:]}", end - 1, 1, message)
    if around.in_brackets and index != around.problem and code and code[-1] not in "{[,":
        message = "a comma is missing at the end of this line"
        yield _Repair(index, f"{code},", len(code) - 1, 1, message)


def _extras(around: _Lines, index: int) -> Iterator[_Repair]:
    """Yield the repairs of a line that remove something: a bracket, or the beginning of a document."""
    line, offset = around.lines[index], around.column
    if index == around.problem and line[offset : offset + 1] in ("]", "}"):
        yield _Repair(
            index,
            line[:offset] + line[offset + 1 :],
            offset,
            1,
            f"the bracket `{line[offset]}` closes nothing",
        )
    if around.in_brackets and (match := re.search(r"[{,] *\S+: +[^\s,:{}]+( +)[a-z_]+: +[^\s:{]+$", line)):
        written = f"{line[: match.start(1)]},{line[match.start(1) :]}"
        yield _Repair(index, written, match.start(1), 1, "a comma is missing here")


_RULES = (_characters, _extras, _outliers, _dashes, _escapes, _quotings, _blocks, _colons, _brackets)


def _repairs(around: _Lines) -> Iterator[_Repair]:
    """Yield all repairs of the lines that may hold the mistake, the likeliest first."""
    suspects = around.suspects
    for rule, index in product(_RULES, suspects):
        yield from rule(around, index)
    for index in reversed(suspects):  # of two lines the later one is likelier to be indented wrongly
        yield from _indents(around, index)


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


def _in_words(error: yaml.MarkedYAMLError) -> tuple[str, str, str]:
    """Return (message, expected value, hint) for a problem of the YAML parser that no repair corrects."""
    problem = error.problem or error.context or ""
    for part, message, hint in _WORDS:
        if part in problem:
            return message, "", hint
    return problem, "", ""
