"""`-m` of run, train and eval: every point of a sweep one after the other, and one table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from rolegraph.engine.cli.plain import in_a_cell, plain

if TYPE_CHECKING:
    from rolegraph import SweepJob, SweepResult, TrackerName


def sweep(
    kind: Literal["run", "train", "eval"],
    spec: str | None,
    words: Sequence[str],
    *,
    out: Path | None,
    resume: bool = False,
    floors: Mapping[str, float] | None = None,
    track: Sequence[TrackerName] = (),
    concurrency: int = 64,
    **arguments: Any,
) -> int:
    """Do what is left of a sweep that begins, or goes on; `arguments` are those of `rg.begin_sweep`."""
    import rolegraph as rg

    if resume:
        begun = rg.resume_sweep(out, *words, kind=kind)
    elif spec is None:
        raise rg.UsageError("which spec? Give a file, or the name of a shipped one, such as solver_judge")
    else:
        begun = rg.begin_sweep(spec, *words, kind=kind, out=out, **arguments)
    code = _points(begun, floors or {}, track, concurrency)
    swept = begun.close()
    _show(swept)
    click.echo(str(swept.picture))
    return code


def _points(
    sweep: SweepJob, floors: Mapping[str, float], track: Sequence[TrackerName], concurrency: int
) -> int:
    from rich.console import Console

    import rolegraph as rg
    from rolegraph.engine.cli.display import Display
    from rolegraph.engine.cli.train_display import TrainDisplay
    from rolegraph.engine.cli.waiting import run_until_done

    code = 0
    for at, point in enumerate(sweep.points, 1):
        done = " is finished" if point.finished else ""
        click.echo(f"[{at}/{len(sweep.points)}] {' '.join(point.overrides)}{done}", err=True)
        if done:
            continue
        job = point.job()
        if isinstance(job, rg.RunJob):
            with Display(job, floors=floors) as display:
                run_until_done(job.run(display.observe, concurrency=concurrency))
            code = max(code, display.exit_code())
        elif isinstance(job, rg.TrainingJob):
            with TrainDisplay(job) as trained:
                run_until_done(job.run(trained.observe, track))
        else:
            with Console(stderr=True).status("starting the model …") as status:
                run_until_done(job.run(lambda event: _note(event, status.update)))
    return code


def _note(event: object, show: Any) -> None:
    import rolegraph as rg

    if isinstance(event, rg.Note):
        show(event.text)


def _show(swept: SweepResult) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", style="bold", overflow="fold")
    for name in swept.figures:
        table.add_column(Text(plain(name)), justify="right", no_wrap=True)
    for point in swept.points:
        cells = [point.figures.get(name) for name in swept.figures]
        table.add_row(Text(plain("\n".join(point.overrides))), *(Text(in_a_cell(cell)) for cell in cells))
    out = Console(soft_wrap=True)
    out.print(table)
    out.print("means over tasks with 95 % intervals, tasks resampled", highlight=False)
