"""`-m` of run, train and eval: every point of a sweep one after the other, and one table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli.output import OutputOptions, add_row, interval_cell, make_table
from rolegraph.engine.cli.waiting import progress_line, run_until_done


def run_sweep(
    kind: rg.SweepKind,
    source: rg.Source,
    out: Path | None,
    settings: Mapping[str, Any],
    *,
    resume: bool = False,
    floors: Mapping[str, float] | None = None,
    **run_options: Any,
) -> int:
    """Start or resume a sweep, run it, and print its table.

    Args:
        kind: What each point is.
        source: The spec; an override may have several values.
        out: Folder of the sweep; None for a new one, or with `resume` the newest.
        settings: Further arguments of `SweepJob.create`.
        resume: Whether to continue a sweep.
        floors: For runs, figures with their lowest accepted values.
        run_options: Further arguments of `run` of the points' jobs.

    Returns:
        The exit code: 1 where a figure of a run is lower than its floor.
    """
    if resume:
        job = rg.SweepJob.resume(out, *source.overrides, kind=kind)
    else:
        job = rg.SweepJob.create(source, kind, out=out, **settings)
    with job.open_folder():
        code = _run_points(job, floors or {}, run_options)
        result = job.write_results()
    _show(result)
    click.echo(str(result.picture))
    return code


def _run_points(sweep: rg.SweepJob, floors: Mapping[str, float], run_options: Mapping[str, Any]) -> int:
    from rolegraph.engine.cli.display import Display
    from rolegraph.engine.cli.train_display import train_display

    code = 0
    for at, point in enumerate(sweep.points, 1):
        done = " is finished" if point.finished else ""
        click.echo(f"[{at}/{len(sweep.points)}] {' '.join(point.overrides)}{done}", err=True)
        if done:
            continue
        job = point.job()
        if isinstance(job, rg.RunJob):
            display = Display(job, floors=floors)
            with display.shown():
                run_until_done(job.run(display.observe, **run_options))
            code = max(code, display.exit_code())
        elif isinstance(job, rg.TrainingJob):
            with train_display(job) as observe:
                run_until_done(job.run(observe, **run_options))
        else:
            with progress_line(OutputOptions(), "starting the model …") as observe:
                evaluation = run_until_done(job.run(observe))
            code = max(code, int(bool(evaluation.unanswered)))
    return code


def _show(result: rg.SweepResult) -> None:
    table = make_table("point", *result.figures)
    for point in result.points:
        cells = [interval_cell(point.figures.get(name)) for name in result.figures]
        add_row(table, "\n".join(point.overrides), *cells)
    out = OutputOptions().results()
    out.print(table)
    out.print("means over tasks with 95 % intervals, tasks resampled")
