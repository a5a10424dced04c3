"""`rolegraph view [RUN…]`: the episodes of runs and trainings in the browser, or as one file."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options


@click.command("view")
@click.argument(
    "runs",
    nargs=-1,
    metavar="[RUN…]",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=completion.runs,
)
@options.text("--role", "NAME", "Episodes of this role; --failure and --reward are then its own.")
@options.text("--failure", "NAME", "Episodes with this failure; `any` is every failure.")
@options.text("--reward", "LOW:HIGH", "Episodes with a reward in this range; either may be left out.")
@options.correct
@options.text("--task", "TEXT", "Episodes whose task id contains this.")
@options.text("--text", "TEXT", "Episodes with this text in the task, a prompt, a thought or an answer.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Default: a free one.")
@options.path("--static", "file", "FILE.html", "Write one file in place of serving pages.")
@options.count("--limit", 200, "With --static: episodes of each run at most.")
@click.option(
    "--hidden/--no-hidden",
    default=None,
    help="With --static: whether to write fields that no prompt may show. Default: ask.",
)
def command(
    runs: tuple[Path, ...],
    reward: str | None,
    correct: bool | None,
    port: int,
    file: Path | None,
    limit: int,
    hidden: bool | None,
    **filters: str | None,
) -> None:
    """Look at the episodes of RUN, the folder of a run or a training, finished or not; default: all in runs/.

    Pages are served on this machine alone, and change nothing; the printed address holds their key. They show
    each turn, its reward, and the group that it was compared with.
    """
    where = options.episode_filter(reward, correct, filters)
    view = rg.view(*runs)
    if file is None:
        if hidden is not None:
            raise rg.UsageError("--hidden and --no-hidden need --static FILE")

        def ready(address: str) -> None:
            click.echo(f"{address}\n(Ctrl-C stops it)")

        with suppress(KeyboardInterrupt):
            view.serve(port=port, ready=ready, **where)
        return
    written = view.write(file, hidden=_writes_hidden(view, hidden), most=limit, **where)
    click.echo(f"{file}: {written} episodes")


def _writes_hidden(view: rg.RunViewer, hidden: bool | None) -> bool:
    """Return whether to write hidden fields into a file; ask where the user did not say."""
    if hidden is not None or not (fields := view.hidden):
        return bool(hidden)
    names = ", ".join(fields)
    if not sys.stdin.isatty():
        raise rg.UsageError(
            f"the tasks have fields that no prompt may show: {names}; give --hidden to write them into "
            "the file, or --no-hidden"
        )
    return click.confirm(f"The tasks have fields that no prompt may show: {names}. Write them into the file?")
