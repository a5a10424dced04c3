"""`rolegraph export RUN`: the weights of a training as a folder for other programs."""

from __future__ import annotations

from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions
from rolegraph.engine.cli.waiting import progress_line, run_until_done


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
def command(run: str, merged: bool, model: str | None, **settings: Any) -> None:
    """Write the best weights of RUN, a training's folder or a tinker:// path, for other programs.

    An adapter in PEFT's form, or a whole model, with its tokenizer, chat template and model card.
    """
    base = None if model is None else model.removeprefix("local:")
    with progress_line(OutputOptions(), f"exporting {run} …"):
        folder = run_until_done(rg.export_async(run, merged=merged, model=base, **settings))
    kind = "a model" if merged else "an adapter in PEFT form"
    click.echo(f"{folder}: {kind}; run it with --model local:{folder}")
