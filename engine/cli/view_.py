"""`rolegraph view RUN…`: runs and trainings in the browser, or as one file."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options

if TYPE_CHECKING:
    from rolegraph import RunViewer


@click.command("view")
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN [RUN…]",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=completion.runs,
)
@click.option("--role", metavar="NAME", help="Episodes in which this role took part; what follows is of it.")
@click.option("--failure", metavar="NAME", help="Episodes with this failure; `any` for any.")
@click.option(
    "--reward", metavar="LOW:HIGH", help="Episodes with a reward in this range; either may be left out."
)
@click.option("--correct/--wrong", default=None, help="Episodes that are right, or not.")
@click.option("--task", metavar="TEXT", help="Episodes whose task's id has this in it.")
@click.option(
    "--text", metavar="TEXT", help="Episodes in which this was asked, thought, said, or is in the task."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Default: a free one.")
@click.option(
    "--static",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write one file in place of serving pages.",
)
@options.count("--limit", 200, "With --static: episodes of each run at most.")
@click.option(
    "--hidden/--no-hidden",
    default=None,
    help="With --static: whether fields that no prompt may show go into the file. Default: ask.",
)
def command(
    runs: tuple[Path, ...],
    role: str | None,
    failure: str | None,
    reward: str | None,
    correct: bool | None,
    task: str | None,
    text: str | None,
    port: int,
    file: Path | None,
    limit: int,
    hidden: bool | None,
) -> None:
    """Look at the episodes of RUN, the folder of a run or a training, finished or not.

    Pages are served on this machine alone, and change nothing; the address that is printed holds their key.
    They show each turn, what it earned, and whom it was compared with.
    """
    import rolegraph as rg

    low, colon, high = (reward or ":").partition(":")
    if not colon:
        raise rg.UsageError(f"--reward {reward} is no LOW:HIGH, such as 0.5: or 0:0")
    given = {"role": role, "failure": failure, "low": low, "high": high, "task": task, "text": text}
    where = {name: value for name, value in given.items() if value}
    if correct is not None:
        where["correct"] = "yes" if correct else "no"
    view = rg.view(*runs)
    if file is None:
        if hidden is not None:
            raise rg.UsageError("--hidden and --no-hidden say what goes into a file; give --static FILE too")

        def ready(address: str) -> None:
            click.echo(f"{address}\n(Ctrl-C stops it)")

        with suppress(KeyboardInterrupt):
            view.serve(port=port, ready=ready, **where)
        return
    written = view.write(file, hidden=_may_show(view, hidden), most=limit, **where)
    click.echo(f"{file}: {written} episodes")


def _may_show(view: RunViewer, hidden: bool | None) -> bool:
    """Whether hidden fields may go into a file, which may be sent to others."""
    import rolegraph as rg

    if hidden is not None or not (fields := view.hidden):
        return bool(hidden)
    names = ", ".join(fields)
    if not sys.stdin.isatty():
        raise rg.UsageError(
            f"the tasks have fields that no prompt may show: {names}; say --hidden to write them into the "
            "file too, or --no-hidden"
        )
    return click.confirm(f"The tasks have fields that no prompt may show: {names}. Write them into the file?")
