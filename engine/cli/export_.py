"""`rolegraph export RUN`: the weights of a training for other programs, or its episodes as chats or spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions
from rolegraph.engine.cli.waiting import progress_line, run_until_done

FILTERS = ("role", "task", "text", "split", "step")


@click.command("export")
@click.argument("run", shell_complete=completion.runs)
@options.text("--policy", "NAME", "The policy. Default: main, or the only one.")
@options.flag("--merged", "A whole model with the adapter in its weights.")
@options.path("--out", "out", "FOLDER", "Folder of the weights. Default: `adapter` or `merged` in RUN.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=completion.models,
    help="The weights' base model, where it has moved: local:FOLDER.",
)
@options.text(
    "--base-url",
    "URL",
    "The Tinker service that holds the weights. Default: the one that RUN was trained on.",
)
@options.path("--sft", "sft", "FILE.jsonl", "Write chats for supervised fine-tuning in place of weights.")
@options.otlp("Send episodes as spans to an OpenTelemetry collector in place of weights.")
@options.text("--role", "NAME", "With --sft: chats of this role; with --otlp: episodes with this role.")
@options.text("--reward", "LOW:HIGH", "With --sft, --otlp: a reward in this range, such as 1: for 1 or more.")
@options.correct
@options.text("--task", "TEXT", "With --sft, --otlp: tasks whose id contains this.")
@options.text("--text", "TEXT", "With --sft, --otlp: episodes with this text.")
@options.text("--split", "SPLIT", "Of a training: train or validation. Default with --sft: train.")
@options.text("--step", "N", "With --sft, --otlp, of a training: episodes of this step.")
def command(
    run: str,
    merged: bool,
    model: str | None,
    sft: Path | None,
    otlp: options.OtlpOptions,
    correct: bool | None,
    **settings: Any,
) -> None:
    """Write the best weights of RUN, a training's folder or a tinker:// path, for other programs.

    An adapter in PEFT's form, or a whole model, with its tokenizer, chat template and model card. With --sft:
    the chats of RUN, a run or a training, one JSON object with `messages` a line. With --otlp: each episode
    of RUN as a trace.
    """
    reward = settings.pop("reward")
    filters = {name: settings.pop(name) for name in FILTERS}
    if sft is not None or otlp.url is not None:
        if merged or model is not None or any(settings.values()) or None not in (sft, otlp.url):
            raise rg.UsageError("--sft and --otlp write episodes; each stands without options for weights")
        where = options.episode_filter(reward, correct, filters)
        if sft is not None:
            rows = rg.export_chats(run, sft, **where)
            click.echo(f"{sft}: {rows} chats")
        elif otlp.url is not None:
            with progress_line(OutputOptions(), f"sending {run} …"):
                sent = rg.export_spans(run, otlp.url, share=otlp.share, content=otlp.content, **where)
            click.echo(f"{sent} episodes sent")
        return
    if reward is not None or correct is not None or any(filters.values()):
        raise rg.UsageError("filters of episodes need --sft FILE.jsonl or --otlp URL")
    base = None if model is None else model.removeprefix("local:")
    with progress_line(OutputOptions(), f"exporting {run} …"):
        folder = run_until_done(rg.export_async(run, merged=merged, model=base, **settings))
    kind = "a model" if merged else "an adapter in PEFT form"
    click.echo(f"{folder}: {kind}; run it with --model local:{folder}")
