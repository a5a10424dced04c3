"""`rolegraph eval SPEC --checkpoint PATH`: a checkpoint against its base, on the same tasks and seeds."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, add_row, interval_cell, make_table, plain
from rolegraph.engine.cli.waiting import progress_line, run_until_done


@click.command("eval")
@options.source(
    "The checkpoint's base model: local[:FOLDER] or tinker:NAME. Default: the spec's.",
    "The Tinker service that holds the checkpoint.",
)
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    shell_complete=completion.runs,
    help="A training's folder, for its best checkpoint, or a tinker:// path of sampling weights.",
)
@options.count("--tasks", 128, "Number of tasks.")
@options.count("--rollouts", 4, "Episodes of each task and side.")
@options.seed("Seed of the draws, the same for both sides.")
@options.multirun
@options.path(
    "--out",
    "out",
    "FOLDER",
    "Folder of both sides' episodes. Default: runs/NAME-eval-TIME; of a sweep, runs/NAME-sweep-TIME.",
)
@options.flag("--resume", "Continue the evaluation in --out; with -m, the newest sweep.")
@options.output
def command(
    source: rg.Source,
    checkpoint: str,
    tasks: int,
    multirun: bool,
    out: Path | None,
    resume: bool,
    output: OutputOptions,
    **settings: int,
) -> int:
    """Compare a checkpoint with its base model on SPEC's validation tasks, with 95 % confidence intervals.

    The episodes of both are kept as runs, side by side in one folder, for `compare` and `view`. With -m there
    is an evaluation for each combination of values, in folders of one sweep.
    """
    if multirun:
        from rolegraph.engine.cli.sweep import run_sweep

        output.check_single("evaluation")
        settings_of_points = {**settings, "limit": tasks, "checkpoint": checkpoint}
        return run_sweep("eval", source, out, settings_of_points, resume=resume)
    if resume and out is None:
        raise click.UsageError("--resume needs --out, the folder of the evaluation to continue")
    flow = rg.open_source(source)
    job = rg.EvaluationJob.create(flow, checkpoint, tasks=tasks, out=out, resume=resume, **settings)
    try:
        with progress_line(output, "starting the model …") as observe:
            evaluation = run_until_done(job.run(observe))
    except KeyboardInterrupt:
        again = [*sys.argv[1:], *(() if resume else ("--resume",)), *(() if out else ("--out", job.folder))]
        output.next(f"rolegraph {shlex.join(map(str, again))}")
        raise
    commands = [f"rolegraph compare {shlex.quote(str(job.folder))}"]
    if "://" not in checkpoint:
        commands.append(f"rolegraph export {shlex.quote(checkpoint)}")
    _show(evaluation, output)
    output.next(*commands)
    output.document({"folder": str(job.folder), **asdict(evaluation), "next": commands})
    return 1 if evaluation.unanswered else 0


def _show(evaluation: rg.Evaluation, output: OutputOptions) -> None:
    table = make_table("figure", "base", "checkpoint", "difference")
    for name, row in evaluation.figures.items():
        gap = row.difference
        colour = "bold green" if gap.low > 0 else "bold red" if gap.high < 0 else ""
        sides = [interval_cell(side, tasks=evaluation.tasks) for side in (row.base, row.checkpoint)]
        add_row(table, name, *sides, interval_cell(gap, sign="+"), style=colour)
    out = output.results()
    if evaluation.figures:
        out.print(table)
    for name, side in evaluation.sides.items():
        for failure, count in side.failures.items():
            text = plain(f"{name}: {failure} {count}: {side.messages[failure]}")
            out.print(text, style="yellow", markup=False)
        if side.answered < side.asked:
            text = f"{side.asked - side.answered} of {side.asked} trajectories of {name} got no answer"
            kind, style = ("error", "red") if side.is_silent else ("warning", "yellow")
            output.warnings().print(f"{kind}: {text}", style=style)
    tasks, episodes = evaluation.tasks, evaluation.episodes
    out.print(f"{tasks} tasks, {episodes} episodes each side; 95 % intervals, tasks resampled")
