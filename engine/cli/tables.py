"""Tables of figures, which are never cut: columns that do not fit continue in a table below."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

_GAP = 2
"""Width between two columns, and of both edges of a table."""
_NAME_WIDTH, _TEXT_WIDTH = 32, 20
"""Width that the first column and other texts keep, if they are as long; they are folded beyond it."""


class FigureTable(Table):
    """Table whose columns, where the console is too narrow, go into several tables below one another.

    Each of the tables begins with the first column. Columns with `no_wrap` hold figures and keep their width;
    the others are folded.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one table for as many columns as fit beside the first, then the next."""
        blocks = list(_blocks(self.columns, options.max_width))
        for block in blocks:
            columns, edges = [column.copy() for column in block], self.pad_edge
            part = Table(*columns, box=self.box, pad_edge=edges, collapse_padding=self.collapse_padding)
            rows = zip(*(column.cells for column in block), strict=True)
            for row, cells in zip(self.rows, rows, strict=True):
                part.add_row(*cells, style=row.style)
            if block is blocks[-1]:
                part.caption, part.caption_justify = self.caption, self.caption_justify
            yield part


def _blocks(columns: list[Column], width: int) -> Iterator[list[Column]]:
    first, *others = columns
    start = _GAP + _width(first, _NAME_WIDTH)
    block, used = [first], start
    for column in others:
        needed = _GAP + _width(column, _TEXT_WIDTH)
        if len(block) > 1 and used + needed > width:
            yield block
            block, used = [first], start
        block.append(column)
        used += needed
    yield block


def _width(column: Column, most_of_text: int) -> int:
    """Return the width that a column needs: its longest line, or less for a text, which can be folded."""
    lines = (line for cell in (column.header, *column.cells) for line in str(cell).splitlines())
    longest = max(map(cell_len, lines), default=0)
    return longest if column.no_wrap else min(longest, most_of_text)
