"""Thoughts of a model in its answer, in the forms that models and their servers write.

A parser reads the text without the thoughts: an answer that was only considered is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection

TAGS = (
    "think",
    "thinking",
    "thought",
    "thoughts",
    "reasoning",
    "reflection",
    "scratchpad",
    "cot",
    "analysis",
)
"""Names of tags around thoughts."""
_NAMES = "|".join(TAGS)
# Each alternative begins with one character, so that the search passes over all others.
_MARKS = re.compile(
    rf"""
    < (?:
        (?P<tag>(?:\w+:|inner_)?(?:{_NAMES}))(?:\s[^<>]*)?>  | /(?P<end>(?:\w+:|inner_)?(?:{_NAMES}))\s*>
      | \|(?P<pipe>think|thinking)\|>                       | \|/(?P<pipe_end>think|thinking)\|>
      | \|(?P<bar>begin_of_thought)\|>                      | \|(?P<bar_end>end_of_thought)\|>
      | \|(?P<start>START_THINKING)\|>                      | \|(?P<start_end>END_THINKING)\|>
      | \|(?P<channel>channel\|>(?:analysis|commentary))[^<]*<\|message\|>
      | \|(?P<channel_end>channel\|>final)[^<]*<\|message\|>
    )
    | ◁ (?: (?P<kimi>think)▷       | /(?P<kimi_end>think)▷ )
    | \[ (?: (?P<square>THINK)\]   | /(?P<square_end>THINK)\] )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def without_thoughts(text: str, keep: Collection[str] = ()) -> str:
    """Return an answer without its thoughts.

    A thought without an end extends to the end of the text; an end without a beginning ends a thought that
    began with the text. Inside a thought, only marks of the same kind count, and they may be nested.

    Args:
        text: The answer.
        keep: Names of tags that are no thoughts, because the caller reads them.
    """
    kept_names = [name.lower() for name in keep]
    marks = [mark for mark in map(_Mark, _MARKS.finditer(text)) if mark.name not in kept_names]
    return "".join(_parts(text, marks)) if marks else text


class _Mark:
    """Tag or marker, matched in a text, at which a thought begins or ends."""

    __slots__ = ("end", "is_end", "kind", "name", "start")

    def __init__(self, match: re.Match[str]) -> None:
        group = match.lastgroup or ""
        self.start, self.end = match.span()
        self.name = match[group].lower()
        self.is_end = group.endswith("end")
        self.kind = "tag" if group == "end" else group.removesuffix("_end")


def _parts(text: str, marks: list[_Mark]) -> list[str]:
    """Return the parts of a text outside of thoughts; `marks` are the beginnings and ends of thoughts."""
    texts: list[str] = []
    position, index = 0, 0
    while index < len(marks):
        if marks[index].is_end:
            texts, last_end = [], index  # the prompt or the server began the thought
        else:
            texts.append(text[position : marks[index].start])
            last_end = _last_of(marks, index)
            if last_end is None:
                return texts
        position, index = marks[last_end].end, last_end + 1
    return [*texts, text[position:]]


def _last_of(marks: list[_Mark], first: int) -> int | None:
    """Return the position in `marks` of the mark that ends the thought that begins at `first`; None without
    an end."""
    depth, last_mark = 0, None
    for index in range(first, len(marks)):
        if marks[index].kind != marks[first].kind:
            continue
        depth += -1 if marks[index].is_end else 1
        if marks[index].is_end:
            last_mark = index
        if depth == 0:
            break
    return last_mark
