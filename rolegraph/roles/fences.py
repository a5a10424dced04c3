"""Blocks of a model's text between lines that begin with three backticks."""

from __future__ import annotations

from typing import NamedTuple

_FENCE = "```"


class FencedBlock(NamedTuple):
    """Code block in a text between Markdown fences, with its language."""

    language: str
    """Word behind the opening fence in small letters, such as `json`; empty without a word."""
    text: str


def fenced_blocks(text: str, *, glued: bool = False) -> tuple[list[FencedBlock], bool]:
    """Return the fenced blocks of a text, and whether the last block has no end.

    Args:
        text: The text.
        glued: Let a fence at the end of a line end a block, too, as models write it behind JSON.
    """
    blocks: list[FencedBlock] = []
    language, lines = "", None
    for line in text.splitlines():
        mark = line.strip()
        if lines is None:
            if mark.startswith(_FENCE):
                language, lines = mark.strip("`").strip().lower(), list[str]()
            continue
        is_end = mark.endswith(_FENCE) if glued else mark == _FENCE
        if not is_end:
            lines.append(line)
            continue
        blocks.append(FencedBlock(language, "\n".join([*lines, *filter(None, [mark.removesuffix(_FENCE)])])))
        lines = None
    return blocks, lines is not None
