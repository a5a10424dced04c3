"""`rolegraph compare A B…`: runs, trainings or specs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.plain import in_a_cell, plain

if TYPE_CHECKING:
    from rich.table import Table

    from rolegraph import Comparison, Trajectory

MOST_OF_A_DIFF = 2000
"""Characters of a template's diff; the page has all of it."""


@click.command("compare")
@click.argument("sides", nargs=-1, required=True, metavar="A B…", shell_complete=completion.runs)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write it as one page that opens offline, with more of the tasks that flipped.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Tasks that flipped, each way, whose episodes are shown.",
)
@options.imports
def command(sides: tuple[str, ...], html: Path | None, tasks: int, imports: tuple[Path, ...]) -> int:
    """Hold runs, trainings (their folders) or specs against the first of them.

    Shown are the keys in which the specs differ; every figure with its 95 % interval and the difference,
    paired by task where the tasks are the same; tasks that only one side solves, with an episode of each;
    tokens and time. A training is compared by the validation of its best checkpoint.
    """
    from rich.console import Console

    import rolegraph as rg

    found = rg.compare(*sides, imports=imports, html=html, shown=tasks)
    out = Console(soft_wrap=True)
    for part in _parts(found, tasks):
        out.print(part, highlight=False, markup=False)
    if html is not None:
        out.print(str(html), highlight=False, markup=False)
    return 0


def _parts(found: Comparison, tasks: int) -> Iterator[Table | str]:
    yield from _differences(found)
    if found.rows:
        yield _figures(found)
        yield found.method
        yield from (flips.pairing for flips in found.flips)
        yield from _flips(found, tasks)
    if found.measured:
        yield _cost(found)


def _differences(found: Comparison) -> Iterator[Table | str]:
    if found.other_code:
        yield "The specs and their templates are the same; the code of what they name differs."
    elif found.same_words:
        yield "The specs and their templates are the same."
    if found.spec or found.settings:
        table = _table("key", *(side.name for side in found.sides), right=False)
        for row in (*found.spec, *found.settings):
            _add(table, row.key, *row.values)
        yield table
    for changed in found.templates:
        yield f"{changed.name}:"
        yield from (f"{plain(diff, MOST_OF_A_DIFF)}\n" for diff in changed.diffs if diff)


def _figures(found: Comparison) -> Table:
    first, *others = [side.name for side in found.measured]
    gaps = [f"{other} − {first}" for other in others] if len(others) > 1 else ["difference"]
    table = _table("figure", first, *others, *gaps)
    for row in found.rows:
        gaps = [
            in_a_cell(gap, sign="+", mark=" *" if row.is_sure(at) else "")
            for at, gap in enumerate(row.differences)
        ]
        _add(table, row.figure, *map(in_a_cell, row.sides), *gaps)
    table.caption = "* its interval leaves out 0"
    table.caption_justify = "left"
    return table


def _flips(found: Comparison, tasks: int) -> Iterator[Table | str]:
    first = found.measured[0].name
    for flips in found.flips:
        for winner, total, some in (
            (flips.side, flips.gains, flips.gained),
            (first, flips.losses, flips.lost),
        ):
            yield f"\n{total} of {flips.shared} tasks are solved by {winner} alone"
            for flip in some[:tasks]:
                yield f"\n{flip.task}: {flip.was:.0%} -> {flip.now:.0%} correct. {plain(flip.question, 200)}"
                table = _table("role", first, flips.side, right=False)
                for said in flip.beside():
                    _add(table, said.instance, *(_said(side) for side in (said.first, said.other)))
                yield table


def _cost(found: Comparison) -> Table:
    table = _table("side", "episodes", "calls", "tokens in", "tokens out", "seconds", "of")
    for side in found.sides:
        of = side.results
        numbers = (len(of.entries), of.calls, of.tokens_in, of.tokens_out) if of else ()
        cells = [f"{number:,}" for number in numbers] or ["–"] * 4
        seconds = "–" if side.seconds is None else f"{side.seconds:,.1f}"
        _add(table, side.name, *cells, seconds, of.what if of else "no episodes")
    return table


def _said(trajectory: Trajectory | None) -> str:
    if trajectory is None:
        return "–"
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    failure = trajectory.failure
    why = f", {failure.name.value}: {plain(failure.message)}" if failure else ""
    return f"{reward}{why}\n{plain(str(trajectory.action))}"


def _table(*headings: str, right: bool = True) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for at, heading in enumerate(headings):
        side = "right" if at and right else "left"
        table.add_column(Text(plain(heading)), justify=side, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of text as it is: no cell is markup."""
    from rich.text import Text

    table.add_row(*(Text(plain(cell)) for cell in cells))
