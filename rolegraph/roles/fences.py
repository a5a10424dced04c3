"""Blocks of a model's text between lines that begin with three backticks."""

from __future__ import annotations

from typing import NamedTuple

_FENCE = "```"


class FencedBlock(NamedTuple):
    """Code block in a text between Markdown fences, with its language."""

    language: str
    """Word after the opening fence in lower case, such as `json`; empty without a word."""
    text: str


def fenced_blocks(text: str, *, glued: bool = False) -> tuple[list[FencedBlock], bool]:
    """Return the fenced blocks of a text, and True if the last block has no end.

    Args:
        text: The text.
        glued: True to let a fence at the end of a line end a block as well, as models write it after JSON.
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


_SAME = {"py": "python", "python3": "python", "js": "javascript", "sh": "bash", "yml": "yaml"}
"""Names of languages, by other words for them."""


def last_block(text: str, language: str) -> str:
    """Return the last fenced block of a language, else the last block without a language; without any block,
    the whole text.

    Args:
        text: The text.
        language: Word for the language in lower case; empty for a block of any language.

    Raises:
        ValueError: The last block has no end, all blocks are of other languages, or there is no text.
    """
    blocks, is_open = fenced_blocks(text)
    if is_open:
        raise ValueError("a fenced block has no end")
    name = _SAME.get(language, language)
    language_blocks = [
        block for block in blocks if not name or _SAME.get(block.language, block.language) == name
    ]
    usable_blocks = language_blocks or [block for block in blocks if not block.language]
    if blocks and not usable_blocks:
        raise ValueError(f"no fenced block of {language}")
    block = usable_blocks[-1].text if usable_blocks else text.strip()
    if not block.strip():
        raise ValueError("the block is empty" if blocks else "the answer is empty")
    return block
