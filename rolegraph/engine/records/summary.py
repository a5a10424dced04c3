"""Short summaries of objects: a few lines for a prompt, a table for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

CELL = 60
"""Characters of a cell at most."""
ROWS = 12
"""Rows at most; the others are counted."""


class Summary(NamedTuple):
    """Title, columns and rows that describe an object."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def text(self) -> str:
        """Return the title and aligned rows as lines of text."""
        cells = [[*self.columns], *self._cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = (
            "".join(f"  {cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells
        )
        return "\n".join([self.title, *map(str.rstrip, rows), *self._rest()])

    def html(self) -> str:
        """Return the title and the rows as an HTML table; texts are escaped."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._cells()
        )
        rest = "".join(f"<p>{escape(line.strip())}</p>" for line in self._rest())
        return (
            f"<table><caption>{escape(self.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
        )

    def _cells(self) -> list[list[str]]:
        return [[_cell(value) for value in row] for row in self.rows[:ROWS]]

    def _rest(self) -> list[str]:
        more = len(self.rows) - ROWS
        return [f"  and {more} more"] if more > 0 else []


def _cell(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
