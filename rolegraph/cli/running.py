"""`rolegraph run`, `rolegraph eval`, and `-m` of run, train and eval: a run for each combination of
overrides."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions, command, plain
from rolegraph.cli.terminal import progress_line, run_until_done, summary_table

LIMIT = 64
"""Number of tasks of a run without `--limit`."""


@click.command("run")
@options.source(
    f"The model that answers: {options.ANSWERING}.",
    f"The endpoint, for {options.ENDPOINTS}.",
    required=False,
)
@options.count("--limit", None, f"Number of tasks. Default: {LIMIT}.")
@options.count("--rollouts", None, "Episodes of each task. Default: 1.")
@options.split
@options.flag("--replay-any", "Replay answers to prompts that have changed since they were recorded, too.")
@options.path("--out", "out", "FOLDER", "Folder of the episodes. Default: runs/NAME-TIME.")
@options.seed("The same seed and model give the same episodes. Default: 0.", None)
@options.flag("--resume", "Continue the newest run, or the one in --out: make missing episodes.")
@options.flag("--retry-failed", "With --resume: make those with a failure again, too.")
@options.drop_damaged
@options.multirun
@options.count("--concurrency", 64, "Episodes in flight.")
@options.repeated(
    "--fail-under",
    "floors",
    "FIGURE=VALUE",
    "Exit with 1 where a figure is lower, such as answered=0.99 or judge_acc=0.5.",
    options.figure_floor,
)
@options.watchers
@contributed("run")
@options.output
def run_command(
    source: api.Source,
    replay_any: bool,
    out: Path | None,
    resume: bool,
    retry_failed: bool,
    drop_damaged: bool,
    multirun: bool,
    floors: tuple[tuple[str, float], ...],
    watchers: options.Watchers,
    output: OutputOptions,
    **settings: Any,
) -> int:
    """Run SPEC (a file, or the name of a shipped spec) on its tasks and write the episodes.

    KEY.PATH=VALUE changes a value of the spec, as in roles.solver.count=4. With --resume, what is not given
    is as the run was started. With -m there is a run for each combination of values, in folders of one sweep.
    """
    from rolegraph.cli.display import Display

    if retry_failed and (multirun or not resume):
        raise click.UsageError("--retry-failed goes with --resume of one run")
    if drop_damaged:
        options.without_damage(out, resume=resume)
    if multirun and watchers:
        raise click.UsageError(
            "observers go with one run; rolegraph export FOLDER sends the episodes of a sweep"
        )
    if replay_any and resume:
        raise click.UsageError("--replay-any goes with a new run; a resumed one keeps its own")
    if replay_any:
        source = replace(source, overrides=(*source.overrides, "model.replay_any=true"))
    run_options = {name: settings.pop(name, None) for name in ("concurrency", "on")}
    new_settings = {name: value for name, value in settings.items() if value is not None}
    if not resume:
        new_settings.setdefault("limit", LIMIT)
    if multirun:
        output.check_single("run")
        return run_sweep("run", source, out, new_settings, resume=resume, floors=dict(floors), **run_options)
    if resume:
        job = api.RunJob.resume(out, source, retry_failed=retry_failed, **new_settings)
    else:
        job = api.RunJob.create(api.open_source(source), out=out, **new_settings)
    display = Display(job, floors=dict(floors), output=output)
    with display.shown(), watchers.watching(job, display.observe) as observe:
        run_until_done(job.run(observe, **run_options))
    return display.exit_code()


@click.command("eval")
@options.source(
    f"The checkpoint's base model: {options.TRAINABLE}. Default: the spec's.",
    "The Tinker service that holds the checkpoint.",
)
@options.text(
    "--checkpoint",
    "PATH",
    "A training's folder, for its best checkpoint, or a tinker:// path of sampling weights.",
    required=True,
    shell_complete=options.complete_runs,
)
@options.count("--tasks", None, "Number of tasks. Default: 128.")
@options.count("--rollouts", None, "Episodes of each task and side. Default: 4.")
@options.seed("Seed of the draws, the same for both sides. Default: 0.", None)
@options.flag("--greedy", "Every role at temperature 0, with one episode of each task and side by default.")
@options.multirun
@options.path("--out", "out", "FOLDER", "Folder of both sides' episodes. Default: runs/NAME-eval-TIME.")
@options.flag("--resume", "Continue the evaluation in --out; with -m, the newest sweep.")
@options.output
def eval_command(
    source: api.Source,
    checkpoint: str,
    greedy: bool,
    multirun: bool,
    out: Path | None,
    resume: bool,
    output: OutputOptions,
    **settings: int | None,
) -> int:
    """Compare a checkpoint with its base model on SPEC's validation tasks, with 95 % confidence intervals.

    The episodes of both are kept as runs, side by side in one folder, for `compare` and `view`. With -m there
    is an evaluation for each combination of values, in folders of one sweep.
    """
    given_settings = {name: value for name, value in settings.items() if value is not None}
    if greedy:
        source = replace(source, overrides=(*source.overrides, "sampling.temperature=0"))
        given_settings = {"rollouts": 1, **given_settings}
    if multirun:
        output.check_single("evaluation")
        points = {"limit" if name == "tasks" else name: value for name, value in given_settings.items()}
        defaults = {} if resume else {"limit": 128, "rollouts": 4}
        points = {**defaults, **points, "checkpoint": checkpoint}
        return run_sweep("eval", source, out, points, resume=resume)
    if resume and out is None:
        raise click.UsageError("--resume needs --out, the folder of the evaluation to continue")
    flow = api.open_source(source)
    job = api.EvaluationJob.create(flow, checkpoint, out=out, resume=resume, **given_settings)
    try:
        with progress_line(output, "starting the model …") as observe:
            evaluation = run_until_done(job.run(observe))
    except KeyboardInterrupt:
        again = [*sys.argv[1:], *(() if resume else ("--resume",)), *(() if out else ("--out", job.folder))]
        output.next(command(*map(str, again)))
        raise
    best_figure = evaluation.figures.get(flow.plan.spec.train.validation.best)
    is_better = best_figure.difference.mean > 0 if best_figure and best_figure.difference.n else None
    exports = [command("export", *words) for words in api.export_arguments(checkpoint)]
    outcome = api.Outcome("eval", 1, 1, has_weights=bool(exports), better=is_better)
    lines = {api.Action.COMPARE: [command("compare", str(job.folder))], api.Action.EXPORT: exports}
    commands = [line for action in api.advise(outcome).actions for line in lines[action.action]]
    _show_evaluation(evaluation, output)
    output.end({"folder": str(job.folder), **asdict(evaluation)}, *commands)
    return 1 if evaluation.unanswered else 0


def _show_evaluation(evaluation: api.Evaluation, output: OutputOptions) -> None:
    console, summary = output.results(), evaluation.summary()
    if evaluation.figures:
        console.print(summary_table(summary, caption=api.STAR))
    for name, side in evaluation.sides.items():
        remarks = {remark: api.REMARKS[remark.partition("/")[2]] for remark in side.remarks}
        meanings = {**remarks, **side.messages}
        for lost, count in (*side.failures.items(), *side.remarks.items()):
            text = plain(f"{name}: {lost} {count}: {meanings[lost]}")
            console.print(text, style="yellow", markup=False)
        if side.answered < side.asked:
            text = f"{side.asked - side.answered} of {side.asked} trajectories of {name} got no answer"
            kind, style = ("error", "red") if side.is_silent else ("warning", "yellow")
            output.warnings().print(f"{kind}: {text}", style=style)
    console.print(f"{summary.title}; {api.METHOD}")


def run_sweep(
    kind: api.SweepKind,
    source: api.Source,
    out: Path | None,
    settings: Mapping[str, Any],
    *,
    resume: bool = False,
    floors: Mapping[str, float] | None = None,
    **run_options: Any,
) -> int:
    """Start or resume a sweep, run it, and print its table.

    Args:
        kind: Kind of each point: a run, an evaluation or a training.
        source: The spec; an override may have several values.
        out: Folder of the sweep; None for a new folder, or with `resume` the newest sweep.
        settings: Further arguments of `SweepJob.create` or `SweepJob.resume`.
        resume: True to continue a sweep.
        floors: Lowest accepted values of a run's metrics, by name.
        run_options: Further arguments of `run` of the points' jobs.

    Returns:
        The exit code: 1 if a metric of a run is below its floor.
    """
    if resume:
        job = api.SweepJob.resume(out, kind=kind, source=source, **settings)
    else:
        job = api.SweepJob.create(source, kind, out=out, **settings)
    with job.open_folder():
        exit_code = _run_points(job, floors or {}, run_options)
        result = job.write_results()
    OutputOptions().results().print(summary_table(result.summary()))
    click.echo(f"means over tasks; {api.METHOD}\n{result.picture}")
    return exit_code


def _run_points(sweep: api.SweepJob, floors: Mapping[str, float], run_options: Mapping[str, Any]) -> int:
    from rolegraph.cli.display import Display
    from rolegraph.cli.train_display import train_display

    exit_code = 0
    for number, point in enumerate(sweep.points, 1):
        finished_note = " is finished" if point.finished else ""
        overrides = api.printable(" ".join(point.overrides))
        click.echo(f"[{number}/{len(sweep.points)}] {overrides}{finished_note}", err=True)
        if finished_note:
            continue
        job = point.job()
        if isinstance(job, api.RunJob):
            display = Display(job, floors=floors)
            with display.shown():
                run_until_done(job.run(display.observe, **run_options))
            exit_code = max(exit_code, display.exit_code())
        elif isinstance(job, api.TrainingJob):
            with train_display(job) as observe:
                run_until_done(job.run(observe, **run_options))
        else:
            with progress_line(OutputOptions(), "starting the model …") as observe:
                exit_code = max(exit_code, int(bool(run_until_done(job.run(observe)).unanswered)))
    return exit_code
