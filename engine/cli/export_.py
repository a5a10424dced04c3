"""`rolegraph export RUN`: the weights of a training run as a folder for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph.engine.cli import completion, options


@click.command("export")
@click.argument("run", shell_complete=completion.runs)
@click.option("--policy", metavar="NAME", help="Whose weights. Default: main's, or those of the only one.")
@click.option("--merged", is_flag=True, help="A whole model with the adapter in its weights.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where they go. Default: `adapter` or `merged` in RUN.",
)
@options.model("The model that they are of, where it is no longer where it was: local:FOLDER.")
@options.base_url("The Tinker service that holds them. Default: the one that RUN was trained on.")
def command(
    run: str, policy: str | None, merged: bool, out: Path | None, model: str | None, base_url: str | None
) -> None:
    """Write the best weights of RUN, a training run's folder or a tinker:// path, for other programs.

    An adapter in PEFT's form, or a whole model, with its tokenizer, chat template and model card.
    """
    import rolegraph as rg
    from rolegraph.engine.cli.output import OutputOptions
    from rolegraph.engine.cli.waiting import ProgressLine, run_until_done

    with ProgressLine(OutputOptions(), f"exporting {run} …"):
        folder = run_until_done(
            rg.export_async(
                run,
                out,
                policy=policy,
                merged=merged,
                model=None if model is None else model.removeprefix("local:"),
                base_url=base_url,
            )
        )
    click.echo(
        f"{folder}: {'a model' if merged else 'an adapter in PEFT form'}; run it with --model local:{folder}"
    )
