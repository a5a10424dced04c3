"""Commands that look at runs and specs: `report`, `view`, `compare`, `graph`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

import rolegraph as rg
from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, plain
from rolegraph.cli.rows import RowOutput, row_output
from rolegraph.cli.terminal import add_row, make_table, summary_table

if TYPE_CHECKING:
    from rolegraph.pages.report.compare.comparison import Comparison
    from rolegraph.pages.viewing import RunViewer

FORMS = ("mmd", "md", "svg", "png", "json")
FOLDER = click.Path(path_type=Path, file_okay=False)
SHOWN_OF_DIFF = 2000
"""Largest number of characters of a template's diff that the terminal shows; the HTML page has all of the
diff.
"""


@click.command("runs")
@click.argument("runs", nargs=-1, metavar="[RUN…]", type=FOLDER, shell_complete=options.complete_runs)
@row_output
def runs_command(runs: tuple[Path, ...], output: RowOutput) -> None:
    """List runs and trainings with their figures, the newest first; default: all in runs/.

    A figure is that of the whole run, or of a training's last validation, with its 95 % interval.
    """
    view = rg.view(*runs)
    output.write(
        (row.record for row in view.rows()),
        lambda _: OutputOptions().results().print(summary_table(view.summary(), texts=(1, 2, 3))),
    )


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN…]", type=FOLDER)
@options.path("--out", "out", "DIR", "Write index.html and the episodes that it links to into this folder.")
@options.text("--home", "URL", "With --out: the site that the pages are part of, to which each page links.")
@options.path("--picture", "picture", "FILE", "Also draw the learning curves of all runs: .svg or .png.")
@options.replaces("out", "picture")
@options.repeated("--figure", "figures", "NAME", "A figure of the picture. Default: the spec's metrics.")
def report_command(
    runs: tuple[Path, ...],
    out: Path | None,
    home: str | None,
    picture: Path | None,
    figures: tuple[str, ...],
) -> None:
    """Write report.html into each RUN, the folder of a training, and print its path.

    The page needs no network: it opens from disk, and can be sent as one file.
    """
    if figures and picture is None:
        raise api.UsageError("--figure needs --picture FILE")
    for page in rg.report(*runs, out=out, picture=picture, figures=figures, home=home or ""):
        click.echo(str(page))
    if picture is not None:
        click.echo(str(picture))


@click.command("view")
@click.argument("runs", nargs=-1, metavar="[RUN…]", type=FOLDER, shell_complete=options.complete_runs)
@options.filters(
    role="Episodes of this role; --failure and --reward are then its own.",
    failure="Episodes with this failure; `any` is every failure.",
    reward="Episodes with a reward in this range; either may be left out.",
    task="Episodes whose task id contains this.",
    text="Episodes with this text in the task, a prompt, a thought or an answer.",
    where="Episodes for which this expression holds, such as 'not judge.right and any(solver.right)'.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Default: a free one.")
@options.path("--static", "file", "FILE.html", "Write one file in place of serving pages.")
@options.replaces("file")
@options.count("--limit", 200, "With --static: episodes of each run at most.")
@click.option(
    "--hidden/--no-hidden",
    default=None,
    help="With --static: whether to write fields that no prompt may show, and texts that may quote them. "
    "Default: ask.",
)
def view_command(
    runs: tuple[Path, ...],
    where: Mapping[str, str],
    port: int,
    file: Path | None,
    limit: int,
    hidden: bool | None,
) -> None:
    """Look at the episodes of RUN, the folder of a run or a training, finished or not; default: all in runs/.

    Pages are served on this machine alone, and change nothing; the printed address holds their key. They show
    each turn, its reward, and the group that it was compared with.
    """
    view = rg.view(*runs)
    if file is not None:
        written_view = view.write(file, hidden=_writes_hidden(view, hidden), most=limit, **where)
        rest_text = "others" if written_view.left_out is None else f"{written_view.left_out:,}"
        hint = "" if written_view.left_out == 0 else f"; {rest_text} left out, a larger --limit takes more"
        click.echo(f"{file}: {written_view.episodes:,} episodes{hint}")
        return
    if hidden is not None:
        raise api.UsageError("--hidden and --no-hidden need --static FILE")
    with suppress(KeyboardInterrupt):
        view.serve(port=port, ready=lambda address: click.echo(f"{address}\n(Ctrl-C stops it)"), **where)


def _writes_hidden(view: RunViewer, hidden: bool | None) -> bool:
    """Return True if hidden fields should be written into a file; asks the user if `hidden` is None.

    Raises:
        UsageError: There is no terminal to ask at.
    """
    if hidden is not None or not (fields := view.hidden):
        return bool(hidden)
    message = f"tasks have fields that no prompt may show: {', '.join(fields)}"
    if not sys.stdin.isatty():
        raise api.UsageError(f"the {message}; give --hidden to write them into the file, or --no-hidden")
    return click.confirm(f"The {message}. Write them into the file?")


@click.command("compare")
@click.argument("sides", nargs=-1, required=True, metavar="A B…", shell_complete=options.complete_runs)
@options.path("--html", "html", "FILE", "Also write a page that opens offline, with more tasks.")
@options.path("--picture", "picture", "FILE", "Also draw the differences of the scores: .svg or .png.")
@options.replaces("html", "picture")
@options.count("--tasks", 3, "Tasks that flipped, each way, to show with their episodes.", least=0)
@options.flag("--best", "Compare trainings by their best checkpoints.")
@options.text("--steps", "N,N…", "Compare these steps of one training.")
@options.imports_option
@row_output
def compare_command(
    sides: tuple[str, ...],
    html: Path | None,
    picture: Path | None,
    tasks: int,
    best: bool,
    steps: str | None,
    imports: tuple[str, ...],
    output: RowOutput,
) -> int:
    """Hold runs, trainings (their folders) or specs against the first of them.

    Shown are a verdict on each side; the keys in which the specs differ; every figure with its 95 % interval
    and the difference, paired by task where the tasks are the same; tasks that only one side solves, with an
    episode of each; tokens and time. A training is compared by its last validation, and in a
    second verdict by that of its best checkpoint; --best turns them round. --json and --csv have a row for
    each figure of each side.
    """
    step_words = steps.split(",") if steps else []
    if wrong_steps := [word for word in step_words if not word.strip().isdecimal()]:
        raise api.UsageError(f"--steps: {wrong_steps[0]!r} is not a step; expected numbers, such as 10,30")
    comparison = rg.compare(
        *sides, imports=imports, html=html, shown=tasks, best=best, steps=[*map(int, step_words)]
    )
    if picture is not None:
        comparison.plot().save(picture)
    written_files = (str(file) for file in (html, picture) if file is not None)
    outputs = (*comparison_parts(comparison, tasks), *written_files)
    output.write(comparison.records, lambda _: _show_parts(outputs))
    return 0


def _show_parts(parts: Iterable[Table | str]) -> None:
    console = OutputOptions().results()
    for part in parts:
        console.print(part, markup=False)


def comparison_parts(comparison: Comparison, tasks: int) -> Iterator[Table | str]:
    """Yield the tables and lines that show a comparison.

    Args:
        comparison: The comparison.
        tasks: Largest number of flipped tasks to show in each direction.
    """
    yield from map(str, comparison.verdicts)
    yield from _differences(comparison)
    if comparison.rows:
        yield summary_table(comparison.summary(), caption=api.STAR)
        yield comparison.method
        yield from (flips.pairing for flips in comparison.flips)
        yield from _flips(comparison, tasks)
    if comparison.measured:
        yield _cost(comparison)


def _differences(comparison: Comparison) -> Iterator[Table | str]:
    if comparison.other_code:
        yield "The specs and their templates are the same; the code of what they name differs."
    elif comparison.same_words:
        yield "The specs and their templates are the same."
    if comparison.spec or comparison.settings:
        table = make_table("key", *(side.name for side in comparison.sides), right=False)
        for row in (*comparison.spec, *comparison.settings):
            add_row(table, row.key, *row.values)
        yield table
    for template_change in comparison.templates:
        yield f"{template_change.name}:"
        yield from (f"{plain(diff, SHOWN_OF_DIFF)}\n" for diff in template_change.diffs if diff)


def _flips(comparison: Comparison, tasks: int) -> Iterator[Table | str]:
    first_name = comparison.measured[0].name
    for flips in comparison.flips:
        gains, losses = (flips.side, flips.gains, flips.gained), (first_name, flips.losses, flips.lost)
        for winner, total, tasks_won in (gains, losses):
            yield f"\n{total} of {flips.shared} tasks are solved by {winner} alone"
            for flip in tasks_won[:tasks]:
                yield f"\n{flip.task}: {flip.was:.0%} -> {flip.now:.0%} correct. {plain(flip.question, 200)}"
                table = make_table("role", first_name, flips.side, right=False)
                for row in flip.beside():
                    add_row(table, row.instance, *(_action(side) for side in (row.first, row.other)))
                yield table


def _cost(comparison: Comparison) -> Table:
    table = make_table("side", "episodes", "calls", "tokens in", "tokens out", "seconds", "of", texts=(6,))
    for side in comparison.sides:
        split_name, cells = "no episodes", ["–"] * 4
        if it := side.results:
            split_name = it.what
            cells = [f"{count:,}" for count in (len(it.entries), it.calls, it.tokens_in, it.tokens_out)]
        seconds = "–" if side.seconds is None else f"{side.seconds:,.1f}"
        add_row(table, side.name, *cells, seconds, split_name)
    return table


def _action(trajectory: api.Trajectory | None) -> str:
    if trajectory is None:
        return "–"
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    failure = trajectory.failure
    failure_note = f", {failure.name.value}: {plain(failure.message)}" if failure else ""
    return f"{reward}{failure_note}\n{plain(str(trajectory.action))}"


@click.command("graph")
@options.source()
@options.path(
    "--out",
    "out",
    "FILE",
    f"File of the picture, in the form of its ending: .{', .'.join(FORMS)}. Default: Mermaid, to standard "
    "output.",
)
@options.replaces("out")
@click.option("--format", "form", type=click.Choice(FORMS), help="The form, where the ending is another.")
def graph_command(source: api.Source, out: Path | None, form: str | None) -> int:
    """Draw the roles of SPEC: what each needs, by which join and of which round, loops, tools, conditions,
    and policies by colour. JSON (node-link data) has the turns of an episode instead.

    \b
    rolegraph graph debate                      Mermaid, for Markdown
    rolegraph graph debate --out debate.svg
    rolegraph graph debate --format json        for networkx.node_link_graph
    """
    drawing = rg.graph(api.open_source(source))
    if out is not None:
        click.echo(str(drawing.save(out, form)))
    elif form == "png":
        raise api.UsageError("a PNG cannot be printed; give --out FILE.png")
    else:
        click.echo(drawing.forms[form or "mmd"]().decode().rstrip())
    return 0
