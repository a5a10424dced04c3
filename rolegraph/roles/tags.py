"""Text between two tags in a model's answer.

A tag may be mentioned: "I put it in `<answer></answer>`". An opening tag counts only with the closing tag
that follows, so a mention or a doubled tag takes nothing into the answer. A pair that is empty, in quotes, or
has dots or `and` inside counts only if there is no other pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_PLACEHOLDER = re.compile(r"\s*(?:[.,…]*|and|or|to|your answer(?: here)?)\s*", re.IGNORECASE)
_QUOTES = ("`", '"', "'")


def tag_finder(name: str, *, ignore_case: bool) -> Callable[[str], str | None]:
    """Return a function from a text to the stripped text between two tags; None without both tags.

    Of several pairs the last counts; a pair that is only quoted counts only if there is no other.

    Args:
        name: The tag, without angle brackets.
        ignore_case: True to accept `<Answer>` for `<answer>`.

    Raises:
        ValueError: The name is no valid tag.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(f"{name!r} is not a tag's name; write it without the angle brackets")
    marks = re.compile(f"<(/?){name}>", re.IGNORECASE if ignore_case else 0)

    def find(text: str) -> str | None:
        mark_pairs = [*_pairs(marks, text)]
        meant_pairs = [pair for pair in mark_pairs if not _is_mention(text, *pair)] or mark_pairs
        if not meant_pairs:
            return None
        opening, closing = meant_pairs[-1]
        return text[opening.end() : closing.start()].strip()

    return find


def _pairs(marks: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield (opening tag, closing tag) for each closing tag: the last opening tag after the previous closing
    tag."""
    opening: re.Match[str] | None = None
    for mark in marks.finditer(text):
        if not mark[1]:
            opening = mark
        elif opening is not None:
            yield opening, mark
            opening = None


def _is_mention(text: str, opening: re.Match[str], closing: re.Match[str]) -> bool:
    before, after = text[opening.start() - 1 : opening.start()], text[closing.end() : closing.end() + 1]
    is_quoted = before == after and before in _QUOTES
    return is_quoted or _PLACEHOLDER.fullmatch(text, opening.end(), closing.start()) is not None
