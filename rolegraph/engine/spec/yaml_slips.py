"""Valid YAML that does not mean what its author intended, such as a text that YAML ends early.

The reader asks for the slips of each node. A slip that certainly changes the meaning is a fault; a comment
that may be part of the text is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.engine.spec.yaml_repairs import quoted

_TEXTS = {"prompt", "system", "text"}
"""Keys of a spec whose values are texts for a model."""
EXPRESSIONS = {"when", "until", "gate", "value", "reward", "right", "correct", "by"}
"""Keys of a spec whose values are expressions, which need no braces."""
_CALL = re.compile(r"\w\(")


class Slip(NamedTuple):
    """Part of a text that YAML reads differently from how it looks."""

    start: int
    end: int
    message: str
    hint: str = ""
    severity: Severity = "error"


def slips_in(node: yaml.Node, key: object, text: str) -> Iterator[Slip]:
    """Yield the slips of a value, but not the slips of values inside it.

    Args:
        node: The value, as PyYAML's node.
        key: Key of the value, or its index in a list.
        text: Text of the file.
    """
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        slip = _cut(node, key, text) or _unbracketed(node, key) if node.style is None else None
        yield from [slip] if slip else ()
    elif isinstance(node, yaml.MappingNode | yaml.SequenceNode) and node.flow_style:
        if text.startswith("{{", start):
            text_ = text[start:end]
            bare = text_.removeprefix("{{").removesuffix("}}").strip() if key in EXPRESSIONS else text_
            message = "a text that begins with {{ needs quotes"
            yield Slip(start, end, message, _written(key, bare))
        else:
            yield from _split(_pieces(node), text)
            yield from _joined(node, key, text)


_NAMES = {"roles", "needs", "players", "sees", "hidden", "correct", "as"}
"""Keys whose values may be lists of names or words."""


def _joined(node: yaml.Node, key: object, text: str) -> Iterator[Slip]:
    """Yield the slips of list items that are several names without a comma between them.

    Under `as`, whose words may have spaces, they are slips only if the list has a single item.
    """
    item_nodes: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) and key in _NAMES else []
    for item in item_nodes if key != "as" or len(item_nodes) == 1 else ():
        written = text[item.start_mark.index : item.end_mark.index]
        if _is_plain(item) and re.fullmatch(r"[A-Za-z_]\w*(?: +[A-Za-z_]\w*)+", written):
            message = f"a comma is missing in `{written}`"
            yield Slip(item.start_mark.index, item.end_mark.index, message, _hint(", ".join(written.split())))


def _unbracketed(node: yaml.ScalarNode, key: object) -> Slip | None:
    """Return the slip of a list that lacks one or both of its brackets."""
    if key not in _NAMES or not re.fullmatch(r"\[?\w+(?: *, *\w+)+\]?", node.value):
        return None
    start, end = node.start_mark.index, node.end_mark.index
    written_list = f"{key}: [{node.value.strip('[]')}]"
    return Slip(start, end, "a list stands in brackets", _hint(written_list))


class _Piece(NamedTuple):
    """Entry of a list or mapping in brackets."""

    key: yaml.Node | None
    """Key with a value; None for an item of a list, and for a key without a value."""
    value: yaml.Node
    is_keyless: bool

    @property
    def end(self) -> int:
        return self.value.end_mark.index


def _pieces(node: yaml.MappingNode | yaml.SequenceNode) -> list[_Piece]:
    if isinstance(node, yaml.SequenceNode):
        return [_Piece(None, item, is_keyless=False) for item in node.value]
    return [
        _Piece(None, key, is_keyless=True) if _is_absent(value) else _Piece(key, value, is_keyless=False)
        for key, value in node.value
    ]


def _is_absent(value: yaml.Node) -> bool:
    """Return True if a value is the null of a key without a colon."""
    is_null = isinstance(value, yaml.ScalarNode) and not value.value
    return is_null and value.start_mark.index == value.end_mark.index


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


def _split(pieces: list[_Piece], text: str) -> Iterator[Slip]:
    """Yield the slips of texts in brackets that a comma splits, and of keys in braces without a colon."""
    for index, piece in enumerate(pieces):
        start = piece.value.start_mark.index
        if not _is_plain(piece.value):
            continue
        written = text[start : piece.end]
        name = piece.key.value if isinstance(piece.key, yaml.ScalarNode) else ""
        if _CALL.search(written) and _open(written) > 0:
            for other_piece in pieces[index + 1 :]:
                whole_text = text[start : other_piece.end]
                if other_piece.key is not None:
                    break
                if _open(whole_text) == 0:
                    message = (
                        f"the comma ends the value `{written}`: an expression with a comma needs quotes here"
                    )
                    yield Slip(start, other_piece.end, message, _written(name, whole_text))
                    break
        elif not piece.is_keyless and (" " in written or written.isdigit()) and piece.key is not None:
            key_ends = [it.end for it in _keyless_after(pieces, index)]
            number = text[start : key_ends[-1]] if key_ends else ""
            if re.fullmatch(r"[\d,]+", number):
                message = f"the comma ends the number `{written}`"
                yield Slip(start, key_ends[-1], message, _hint(f"{name}: {number.replace(',', '.')}"))
            elif key_ends and " " in written:
                message = f"the comma ends the text `{written}`: a text with a comma needs quotes here"
                yield Slip(start, key_ends[-1], message, _written(name, text[start : key_ends[-1]]))
        elif piece.is_keyless and (match := re.match(r"([A-Za-z_][\w.-]*)(:|\s+)(\S.*)$", written)):
            missing = (
                "a space is missing after the colon of" if match[2] == ":" else "a colon is missing after"
            )
            yield Slip(start, piece.end, f"{missing} `{match[1]}`", _hint(f"{match[1]}: {match[3]}"))


def _keyless_after(pieces: list[_Piece], index: int) -> Iterator[_Piece]:
    for piece in pieces[index + 1 :]:
        if not piece.is_keyless:
            return
        yield piece


def _open(text: str) -> int:
    return text.count("(") - text.count(")")


def _cut(node: yaml.ScalarNode, key: object, text: str) -> Slip | None:
    """Return the slip of an unquoted text that a comment ends early, or whose lines look like list items;
    None without one."""
    start, end = node.start_mark.index, node.end_mark.index
    cut_text = text[start:end]
    lines = [line.strip() for line in cut_text.split("\n") if line.strip()]
    if len(lines) > 1 and all(re.fullmatch(r"(?:- *)?\w+", line) for line in lines) and "-" in cut_text:
        wrong_line = next(line for line in lines if not line.startswith("- "))
        item_at = start + cut_text.index(wrong_line)
        message = "a list item without its dash: without one before each, the lines are a single text"
        if wrong_line.startswith("-"):
            message = "a space is missing after the dash of a list item"
        return Slip(item_at, item_at + len(wrong_line), message, _hint(f"- {wrong_line.removeprefix('-')}"))
    line_end = text.find("\n", end)
    line_rest = text[end : line_end if line_end >= 0 else len(text)].rstrip()
    if not re.match(r"\s+#", line_rest) or " " not in cut_text or not node.tag.endswith(":str"):
        return None
    is_tight = re.match(r"\s+#[^\s#!]", line_rest) is not None
    is_open = any(cut_text.count(it) % 2 and line_rest.count(it) % 2 for it in "'\"") or _open(cut_text) > 0
    if not (is_tight or is_open or key in _TEXTS):
        return None
    cut_at = end + len(line_rest) - len(line_rest.lstrip())
    message = "a space and `#` begin a comment: the text ends before them"
    return Slip(cut_at, end + len(line_rest), message, _written(key, cut_text + line_rest), "warning")


def _written(key: object, text: str) -> str:
    """Return the hint to put a text in quotes."""
    one_line = " ".join(text.split())
    return _hint(f"{key}: {quoted(one_line)}" if isinstance(key, str) and key else quoted(one_line))


def _hint(written: str) -> str:
    return f"write {written}"
