"""Summaries of objects: a few lines for a prompt, a table for a notebook, of bounded length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeVar, cast

CELL = 60
"""Largest number of characters in a cell of a summary's table."""
ROWS = 12
"""Largest number of rows in a summary's table; further rows are only counted."""
COLUMNS = 8
"""Largest number of columns in a summary's table; further columns are only named."""
T = TypeVar("T")


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
        header_cells = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._cells()
        )
        rest_html = "".join(f"<p>{escape(line.strip())}</p>" for line in self._rest())
        return (
            f"<table><caption>{escape(self.title)}</caption>"
            f"<thead><tr>{header_cells}</tr></thead><tbody>{body}</tbody></table>{rest_html}"
        )

    def _cells(self) -> list[list[str]]:
        return [[shortened(value) for value in row] for row in self.rows[:ROWS]]

    def _rest(self) -> list[str]:
        rows_left = len(self.rows) - ROWS
        return [f"  and {rows_left} more"] if rows_left > 0 else []


class Summarized:
    """Object that prints as its summary: a few lines, in a notebook a table."""

    __slots__ = ()

    @abstractmethod
    def summary(self) -> Summary:
        """Return the title, and rows that describe the object."""

    def __repr__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        """Return the summary as a table, for a notebook."""
        return self.summary().html()


class Rows(Summarized, list[T]):
    """List of mappings or tuples that prints as a table of its first rows."""

    def summary(self) -> Summary:
        """Return the number of rows, and the first rows."""
        rows = [_by_column(row) for row in self[:ROWS]]
        columns = [*dict.fromkeys(name for row in rows for name in row)]
        more_columns = f"; further columns: {', '.join(columns[COLUMNS:])}" if len(columns) > COLUMNS else ""
        cells = [[row.get(name) for name in columns[:COLUMNS]] for row in rows]
        cells += [()] * (len(self) - len(cells))
        return Summary(f"{len(self):,} rows{more_columns}"[: CELL * 4], columns[:COLUMNS], cells)


def _by_column(row: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", row if isinstance(row, Mapping) else cast("Any", row)._asdict())


def shortened(value: object) -> str:
    """Return a value as a short text of one line: numbers with three decimals, a dash for None."""
    if value is None:
        return "–"
    text = f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
