"""Rows of plain data that a command prints: as its table, or with `--json` and `--csv` for other programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import click

from rolegraph.cli import options

Row = TypeVar("Row", bound=Mapping[str, Any])


class RowOutput(NamedTuple):
    """Values of `--json` and `--csv` on the command line of a command that prints rows."""

    form: Literal["table", "json", "csv"] = "table"

    def write(self, rows: Iterable[Row], show: Callable[[Iterator[Row]], object]) -> None:
        """Print rows in the form that the command line asks for.

        Args:
            rows: The rows, with values that JSON can hold; they need not have the same columns.
            show: Function that prints the rows for a reader if neither option is given.
        """
        if self.form == "json":
            for row in rows:
                click.echo(json.dumps(row, ensure_ascii=False))
        elif self.form == "csv":
            _write_csv([*rows])
        else:
            show(iter(rows))


def _write_csv(rows: list[Row]) -> None:
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, [*columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _with_rows(command: Callable[..., Any], *, as_json: bool, as_csv: bool, **words: Any) -> Any:
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    return command(output=RowOutput("json" if as_json else "csv" if as_csv else "table"), **words)


row_output = options.bundle(
    _with_rows,
    click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row, one a line."),
    click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values."),
)
"""Decorator that adds `--json` and `--csv`, which are passed as one RowOutput, `output`."""
