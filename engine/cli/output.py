"""Output of the verbs: results on standard output, progress and warnings on standard error.

With `--json` standard output has one document, at the end; with `--quiet` only that, warnings and errors are
printed. Colour is rich's and click's: `NO_COLOR` takes it away, `FORCE_COLOR` keeps it in a pipe.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

import rolegraph as rg

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rolegraph import Interval

SHOWN_CHARACTERS = 300
"""Characters of a text in a table or a line, unless the caller shows more."""


class OutputOptions(NamedTuple):
    """`--quiet` and `--json` of a command line, and the stream of the JSON document."""

    quiet: bool = False
    as_json: bool = False
    stream: TextIO | None = None

    def check_single(self, kind: str) -> None:
        """Raise UsageError where either option is given with `-m`, which makes several runs of a kind."""
        if self.quiet or self.as_json:
            raise click.UsageError(f"--json and --quiet go with one {kind}; -m makes several")

    def results(self) -> Console:
        """Return the console for tables and paths."""
        return _console(stderr=self.as_json, quiet=self.quiet, lines=True)

    def line(self, text: str) -> None:
        """Print one line of results, unless quiet; with `--json` it goes to standard error."""
        if not self.quiet:
            click.echo(text, err=self.as_json)

    def progress(self) -> Console:
        """Return the console for progress."""
        return _console(stderr=True, quiet=self.quiet)

    def warnings(self) -> Console:
        """Return the console for warnings, which `--quiet` keeps."""
        return _console(stderr=True, lines=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.warnings().print(rg.printable(f"warning: {text}"), style="yellow", markup=False)

    def next(self, *commands: str) -> None:
        """Print the commands that a user may want to run next."""
        for number, command in enumerate(commands):
            self.line(f"{'next: ' if not number else '      '}{command}")

    def document(self, value: Mapping[str, object]) -> None:
        """Print the JSON document, with `--json` alone."""
        if self.as_json:
            click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str), file=self.stream)


@contextmanager
def own_stream(alone: bool) -> Generator[TextIO]:
    """Yield standard output; if `alone`, all that others print in the block goes to standard error."""
    if not alone:
        yield sys.stdout
        return
    with ExitStack() as stack:
        stream = sys.stdout
        if stream is sys.__stdout__:  # libraries in C print to its number
            stream.flush()
            copy = os.dup(stream.fileno())
            os.dup2(sys.stderr.fileno(), stream.fileno())
            stack.callback(os.dup2, copy, stream.fileno())
            stream = stack.enter_context(
                os.fdopen(os.dup(copy), "w", encoding=stream.encoding, errors=stream.errors)
            )
        stack.enter_context(redirect_stdout(sys.stderr))
        yield stream


def _console(*, stderr: bool, quiet: bool = False, lines: bool = False) -> Console:
    """Return a rich console; with `lines`, it cuts no line and colours no number by itself."""
    from rich.console import Console  # imported here, so that `--help` is fast

    return Console(stderr=stderr, quiet=quiet, soft_wrap=lines, highlight=not lines)


def make_table(*headings: str, right: bool = True) -> Table:
    """Return an empty table with a bold first column; where the console is narrow, no cell is cut.

    Args:
        headings: Column headings; control characters are replaced.
        right: Whether the other columns hold figures, aligned to the right and never folded.
    """
    from rich.box import SIMPLE_HEAD
    from rich.text import Text

    from rolegraph.engine.cli.tables import FigureTable

    table = FigureTable(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for at, heading in enumerate(headings):
        is_figure = bool(at and right)
        table.add_column(
            Text(plain(heading)),
            style="" if at else "bold",
            justify="right" if is_figure else "left",
            overflow="fold",
            no_wrap=is_figure,
        )
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of texts that may come from a model: no cell is markup, control characters are replaced."""
    from rich.text import Text

    table.add_row(*(Text(plain(cell)) for cell in cells), style=style)


def plain(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Return a text with control characters removed, and cut where it is longer than `most` characters."""
    from rolegraph import printable

    kept = printable(text)
    return kept if len(kept) <= most else f"{kept[:most]} …"


def interval_cell(
    interval: Interval | None, *, sign: str = "", mark: str = "", tasks: int | None = None
) -> str:
    """Format a mean with its interval in a second line.

    Args:
        interval: The mean over n tasks; None, or n = 0, is shown as a dash.
        sign: `+` for differences.
        mark: Text behind the mean.
        tasks: The number of all tasks; where n is another, a third line shows n.
    """
    if interval is None or not interval.n:
        return "–"
    form = f"{sign},.3f" if abs(interval.mean) < 10 else f"{sign},.1f"
    n = "" if tasks in (None, interval.n) else f"\nn {interval.n} of {tasks}"
    return f"{interval.mean:{form}}{mark}\n[{interval.low:{form}}, {interval.high:{form}}]{n}"


def colour(environment: Mapping[str, str] = os.environ) -> bool | None:
    """Read NO_COLOR and FORCE_COLOR: False, True, or None, which means colours on a terminal only."""
    if environment.get("NO_COLOR"):
        return False
    return True if environment.get("FORCE_COLOR") else None
