"""`rolegraph compare A B…`: runs, trainings or specs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Table

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, add_row, interval_cell, make_table, plain

SHOWN_OF_DIFF = 2000
"""Characters of a template's diff that are shown; the page has all of it."""


@click.command("compare")
@click.argument("sides", nargs=-1, required=True, metavar="A B…", shell_complete=completion.runs)
@options.path("--html", "html", "FILE", "Also write a page that opens offline, with more tasks.")
@options.count("--tasks", 3, "Tasks that flipped, each way, to show with their episodes.", least=0)
@options.imports_option
def command(sides: tuple[str, ...], html: Path | None, tasks: int, imports: tuple[Path, ...]) -> int:
    """Hold runs, trainings (their folders) or specs against the first of them.

    Shown are the keys in which the specs differ; every figure with its 95 % interval and the difference,
    paired by task where the tasks are the same; tasks that only one side solves, with an episode of each;
    tokens and time. A training is compared by the validation of its best checkpoint.
    """
    comparison = rg.compare(*sides, imports=imports, html=html, shown=tasks)
    out = OutputOptions().results()
    for part in _parts(comparison, tasks):
        out.print(part, markup=False)
    if html is not None:
        out.print(str(html), markup=False)
    return 0


def _parts(comparison: rg.Comparison, tasks: int) -> Iterator[Table | str]:
    yield from _differences(comparison)
    if comparison.rows:
        yield _figures(comparison)
        yield comparison.method
        yield from (flips.pairing for flips in comparison.flips)
        yield from _flips(comparison, tasks)
    if comparison.measured:
        yield _cost(comparison)


def _differences(comparison: rg.Comparison) -> Iterator[Table | str]:
    if comparison.other_code:
        yield "The specs and their templates are the same; the code of what they name differs."
    elif comparison.same_words:
        yield "The specs and their templates are the same."
    if comparison.spec or comparison.settings:
        table = make_table("key", *(side.name for side in comparison.sides), right=False)
        for row in (*comparison.spec, *comparison.settings):
            add_row(table, row.key, *row.values)
        yield table
    for changed in comparison.templates:
        yield f"{changed.name}:"
        yield from (f"{plain(diff, SHOWN_OF_DIFF)}\n" for diff in changed.diffs if diff)


def _figures(comparison: rg.Comparison) -> Table:
    first, *others = [side.name for side in comparison.measured]
    gaps = [f"{other} − {first}" for other in others] if len(others) > 1 else ["difference"]
    table = make_table("figure", first, *others, *gaps)
    for row in comparison.rows:
        gaps = [
            interval_cell(gap, sign="+", mark=" *" if row.is_sure(at) else "")
            for at, gap in enumerate(row.differences)
        ]
        tasks = [len(side.results.tasks) if side.results else None for side in comparison.measured]
        sides = [interval_cell(side, tasks=of) for side, of in zip(row.sides, tasks, strict=True)]
        add_row(table, row.figure, *sides, *gaps)
    table.caption = "* its interval leaves out 0"
    table.caption_justify = "left"
    return table


def _flips(comparison: rg.Comparison, tasks: int) -> Iterator[Table | str]:
    first = comparison.measured[0].name
    for flips in comparison.flips:
        for winner, total, tasks_won in (
            (flips.side, flips.gains, flips.gained),
            (first, flips.losses, flips.lost),
        ):
            yield f"\n{total} of {flips.shared} tasks are solved by {winner} alone"
            for flip in tasks_won[:tasks]:
                yield f"\n{flip.task}: {flip.was:.0%} -> {flip.now:.0%} correct. {plain(flip.question, 200)}"
                table = make_table("role", first, flips.side, right=False)
                for row in flip.beside():
                    add_row(table, row.instance, *(_action(side) for side in (row.first, row.other)))
                yield table


def _cost(comparison: rg.Comparison) -> Table:
    table = make_table("side", "episodes", "calls", "tokens in", "tokens out", "seconds", "of")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for side in comparison.sides:
        results = side.results
        numbers = (
            (len(results.entries), results.calls, results.tokens_in, results.tokens_out) if results else ()
        )
        cells = [f"{number:,}" for number in numbers] or ["–"] * 4
        seconds = "–" if side.seconds is None else f"{side.seconds:,.1f}"
        add_row(table, side.name, *cells, seconds, results.what if results else "no episodes")
    return table


def _action(trajectory: rg.Trajectory | None) -> str:
    if trajectory is None:
        return "–"
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    failure = trajectory.failure
    why = f", {failure.name.value}: {plain(failure.message)}" if failure else ""
    return f"{reward}{why}\n{plain(str(trajectory.action))}"
