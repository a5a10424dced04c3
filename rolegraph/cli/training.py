"""`rolegraph train SPEC`, in Rolegraph's own loop or by another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.terminal import run_until_done
from rolegraph.engine.plugins import plugin, plugin_names

OWN_TRAINER = "rolegraph"


@click.command("train")
@options.source(
    f"The model to train: {options.TRAINABLE}. Default: the spec's model.",
    "A Tinker service to train on, in place of one started for the run.",
    required=False,
)
@options.path("--out", "out", "FOLDER", "Folder of the training. Default: runs/NAME-TIME.")
@options.seed("Seed of data order, draws and the adapter. Default: 0.", None)
@options.flag("--resume", "Continue the newest training, or --out, at its last checkpoint.")
@options.flag("--keep-going", "Go on after a step in which every answer of a role failed in the same way.")
@options.drop_damaged
@options.multirun
@options.choice_of_plugins(
    "--track", "trackers", "Send metrics, episodes and the report there.", multiple=True
)
@options.choice_of_plugins(
    "--trainer", "trainers", "This project's loop, or another's.", OWN_TRAINER, default=OWN_TRAINER
)
@options.text("--budget", "LIMIT", "End before it is passed: 2M-tokens, 30m or '$5'.")
@options.watchers
@contributed("train")
@options.output
def train_command(
    source: api.Source,
    out: Path | None,
    seed: int | None,
    resume: bool,
    keep_going: bool,
    drop_damaged: bool,
    multirun: bool,
    budget: str | None,
    watchers: options.Watchers,
    output: OutputOptions,
    track: tuple[str, ...] = (),
    trainer: str = OWN_TRAINER,
    rollouts_on: str | None = None,
    **of_trainer: Any,
) -> int:
    """Train every trainable role of SPEC (a file, or the name of a shipped spec), as its `train` says.

    KEY.PATH=VALUE changes a value of the spec, as in train.steps=50 or train.learning_rate=0.001. With
    --resume the spec and its overrides are those that the training was started with. With -m there is a
    training for each combination of values, in folders of one sweep.
    """
    if (watchers or rollouts_on or budget is not None) and (multirun or trainer != OWN_TRAINER):
        raise click.UsageError(
            "observers, --budget and --rollouts-on go with one training of this project's own loop"
        )
    spending_limit = api.Budget.parse(budget)
    if drop_damaged:
        options.without_damage(out, resume=resume)
    if trainer != OWN_TRAINER:
        if multirun:
            raise click.UsageError(f"-m goes with this project's own loop, not with --trainer {trainer}")
        if output.quiet or output.as_json or keep_going:
            raise click.UsageError("--quiet, --json and --keep-going go with --trainer rolegraph")
        if resume and out is None:
            raise api.UsageError(f"--resume with --trainer {trainer} needs --out, the training's folder")
        folder = out or api.new_folder(f"{Path(source.named_spec).stem}-{trainer}")
        train_with = plugin("trainers", trainer)
        train_with(source, folder, seed=seed or 0, resume=resume, trackers=track, **of_trainer)
        return 0
    if given_options := [name for name, value in of_trainer.items() if value]:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given_options)
        raise click.UsageError(f"{flags}: only with --trainer {' or '.join(plugin_names('trainers'))}")
    if multirun:
        from rolegraph.cli.running import run_sweep

        output.check_single("training")
        settings = {} if seed is None else {"seed": seed}
        return run_sweep("train", source, out, settings, resume=resume, track=track, keep_going=keep_going)
    from rolegraph.cli.train_display import train_display

    if resume:
        job = api.TrainingJob.resume(out, source, seed=seed)
    else:
        job = api.TrainingJob.create(api.open_source(source), out=out, seed=seed or 0)
    with train_display(job, output) as display, watchers.watching(job, display) as observe:
        work = job.run(observe, track, rollouts_on=rollouts_on, keep_going=keep_going, budget=spending_limit)
        run_until_done(work)
    return 0
