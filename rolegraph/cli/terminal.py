"""Tables and progress on a terminal, and a Ctrl-C that does not wait for threads."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from rolegraph import api
from rolegraph.api.progress import NoteProgress
from rolegraph.cli.main import Interrupted
from rolegraph.cli.output import OutputOptions, plain

T = TypeVar("T")
HANGUP: int = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has no SIGHUP
_GAP = 2
"""Width between two columns, and of both edges of a table."""
_NAME_WIDTH, _TEXT_WIDTH = 32, 20
"""Widths up to which the first column, and columns of other texts, are not folded."""


class FigureTable(Table):
    """Table that is split into several, one below the other, if its columns do not fit the console.

    Each of these tables begins with the first column. Columns with `no_wrap` hold numbers and keep their
    width; the others are folded.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a table with as many columns as fit beside the first, then a table with the next columns, and
        so on."""
        blocks = list(_blocks(self.columns, options.max_width))
        for block_columns in blocks:
            columns, has_edges = [column.copy() for column in block_columns], self.pad_edge
            table = Table(*columns, box=self.box, pad_edge=has_edges, collapse_padding=self.collapse_padding)
            rows = zip(*(column.cells for column in block_columns), strict=True)
            for row, cells in zip(self.rows, rows, strict=True):
                table.add_row(*cells, style=row.style)
            if block_columns is blocks[-1]:
                table.caption, table.caption_justify = self.caption, self.caption_justify
            yield table


def _blocks(columns: list[Column], width: int) -> Iterator[list[Column]]:
    first_column, *other_columns = columns
    start = _GAP + _width(first_column, _NAME_WIDTH)
    block, used_width = [first_column], start
    for column in other_columns:
        needed_width = _GAP + _width(column, _TEXT_WIDTH)
        if len(block) > 1 and used_width + needed_width > width:
            yield block
            block, used_width = [first_column], start
        block.append(column)
        used_width += needed_width
    yield block


def _width(column: Column, most_of_text: int) -> int:
    """Return the width in cells that a column needs: its longest line, limited to `most_of_text` if the
    column folds."""
    lines = (line for cell in (column.header, *column.cells) for line in str(cell).splitlines())
    longest_width = max(map(cell_len, lines), default=0)
    return longest_width if column.no_wrap else min(longest_width, most_of_text)


def make_table(*headings: str, right: bool = True, texts: tuple[int, ...] = ()) -> Table:
    """Return an empty table with a bold first column; if the console is narrow, no cell is cut.

    Args:
        headings: Column headings; control characters are replaced.
        right: True if the columns after the first hold numbers, aligned to the right and never folded.
        texts: Positions of columns that hold texts nevertheless.
    """
    table = FigureTable(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, heading in enumerate(headings):
        is_figure = right and column not in (0, *texts)
        table.add_column(
            Text(plain(heading)),
            style="" if column else "bold",
            justify="right" if is_figure else "left",
            overflow="fold",
            no_wrap=is_figure,
        )
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of plain texts to a table, without markup and control characters, because a model may have
    written the cells."""
    table.add_row(*(Text(plain(cell)) for cell in cells), style=style)


def summary_table(summary: api.Summary, *, texts: tuple[int, ...] = (), caption: str | None = None) -> Table:
    """Return what an object prints in Python as a table.

    Args:
        summary: The object's summary.
        texts: Positions of columns that hold texts, as for `make_table`.
        caption: Line below the table.
    """
    table = make_table(*summary.columns, texts=texts)
    table.caption, table.caption_justify = caption, "left"
    for row in summary.rows:
        add_row(table, *("–" if cell is None else str(cell) for cell in row))
    return table


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, and return its result, but end at a signal.

    The first Ctrl-C, SIGTERM or SIGHUP cancels the coroutine, which may save its work; a second Ctrl-C or
    SIGTERM ends at once. Neither waits for threads: a thread in an import or a network call cannot be
    stopped, and `asyncio.run` would wait for it. The caller must end the process next.

    Raises:
        Interrupted: A signal came.
    """
    runner = asyncio.Runner()
    received_signals: list[int] = []
    try:
        result = runner.run(_interruptible(work, received_signals))
        if received_signals:  # the work ended meanwhile, but the points of a sweep that follow must not begin
            raise Interrupted(received_signals[0])
        return result
    except (KeyboardInterrupt, asyncio.CancelledError):
        if received_signals:
            raise Interrupted(received_signals[0]) from None
        raise
    finally:
        if not received_signals:
            runner.close()


async def _interruptible(work: Coroutine[Any, Any, T], received: list[int]) -> T:
    """Await a coroutine and return its result; append the number of each signal that comes to `received`.

    The first signal cancels the coroutine, a second one raises KeyboardInterrupt. A second SIGHUP does
    nothing, because both the kernel and the shell send it when a terminal closes.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        if sum(number_ != HANGUP for number_ in received) > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)

    is_main = threading.current_thread() is threading.main_thread()  # no other can set a handler
    numbers: set[int] = {signal.SIGINT, signal.SIGTERM, HANGUP} if is_main else set()
    # A signal that is ignored, as Ctrl-C is in a script's background and SIGHUP by nohup, stays so.
    handled_signals = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    old_handlers = {number: signal.signal(number, handle) for number in handled_signals}
    try:
        return await work
    finally:
        for number, handler in old_handlers.items():
            # The shell's SIGHUP may come late, and would cut the last lines of output.
            is_over = number == HANGUP and number in received
            signal.signal(number, signal.SIG_IGN if is_over else handler)


@contextmanager
def progress_line(output: OutputOptions, text: str) -> Generator[api.Observer]:
    """Show a progress line during a block, and give an observer that updates the line and prints warnings
    above it."""
    line = NoteProgress(text, output.progress())

    def observe(event: api.Event) -> None:
        if isinstance(event, api.Note) and event.kind == "warning":
            output.warn(event.text, line.progress.console)
        else:
            line.observe(event)

    with line.progress:
        yield observe


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, with hours where it has some.

    >>> clock(42.4), clock(3700)
    ('0:42', '1:01:40')
    """
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"
