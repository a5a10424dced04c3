"""`rolegraph run SPEC`: episodes of a spec, on disk as they finish, with a table at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import options
from rolegraph.engine.cli.output import OutputOptions
from rolegraph.engine.cli.waiting import run_until_done

LIMIT = 64
"""Tasks of a run for which no `--limit` is given."""


@click.command("run")
@options.source(
    "The model that answers: local[:FOLDER], tinker:NAME, openai:NAME, vllm:NAME, replay:FILE.",
    "The endpoint, for tinker (the default with this option), openai, vllm, sglang.",
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
@options.multirun
@options.count("--concurrency", 64, "Episodes in flight; with --on, on each node.")
@options.text(
    "--on",
    "CLUSTER",
    "Ray cluster that makes the episodes: ray (of RAY_ADDRESS or this machine), ray://HOST:PORT, HOST:PORT.",
)
@options.repeated(
    "--fail-under",
    "floors",
    "FIGURE=VALUE",
    "Exit with 1 where a figure is lower, such as answered=0.99 or judge_acc=0.5.",
    options.figure_floor,
)
@options.otlp("Send each finished episode as spans to an OpenTelemetry collector.")
@options.output
def command(
    source: rg.Source,
    limit: int | None,
    replay_any: bool,
    out: Path | None,
    resume: bool,
    retry_failed: bool,
    multirun: bool,
    concurrency: int,
    on: str | None,
    floors: tuple[tuple[str, float], ...],
    otlp: options.OtlpOptions,
    output: OutputOptions,
    **settings: Any,
) -> int:
    """Run SPEC (a file, or the name of a shipped spec) on its tasks and write the episodes.

    KEY.PATH=VALUE changes a value of the spec, as in roles.solver.count=4. With --resume, what is not given
    is as the run was started. With -m there is a run for each combination of values, in folders of one sweep.
    """
    from rolegraph.engine.cli.display import Display

    given = {name: value for name, value in settings.items() if value is not None}
    if retry_failed and (multirun or not resume):
        raise click.UsageError("--retry-failed goes with --resume of one run")
    if replay_any:
        source = replace(source, overrides=(*source.overrides, "model.replay_any=true"))
    if multirun and otlp.url is not None:
        raise click.UsageError("--otlp goes with one run; rolegraph export FOLDER --otlp sends a sweep's")
    if multirun:
        from rolegraph.engine.cli.sweep import run_sweep

        output.check_single("run")
        given["limit"] = limit or LIMIT
        return run_sweep(
            "run", source, out, given, resume=resume, floors=dict(floors), concurrency=concurrency, on=on
        )
    if resume:
        job = rg.RunJob.resume(out, source, limit=limit, retry_failed=retry_failed, **given)
    else:
        job = rg.RunJob.create(rg.open_source(source), limit=limit or LIMIT, out=out, **given)
    display = Display(job, floors=dict(floors), output=output)
    with display.shown(), otlp.traced(job, display.observe) as observe:
        run_until_done(job.run(observe, concurrency=concurrency, on=on))
    return display.exit_code()
