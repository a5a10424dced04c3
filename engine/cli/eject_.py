"""`rolegraph eject SPEC`: the Python script that trains a spec with rLLM, without this command line."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options


@click.command("eject")
@options.source("The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.backend(default="tinker")
@options.seed("Seed of the order of the data.")
@options.path("--out", "out", "FILE.py", "File of the script. Default: standard output.")
def command(source: rg.Source, backend: str, seed: int, out: Path | None) -> int:
    """Write a script that trains SPEC as `rolegraph train SPEC --trainer rllm` does, to read and change."""
    from rolegraph.engine.cli.rllm import show_warnings
    from rolegraph.rllm import prepare, script

    job = prepare(source, backend, seed=seed)
    show_warnings(job)
    text = script(job)
    if out is None:
        click.echo(text, nl=False)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise rg.UsageError(f"{out} already exists; choose another file with --out") from None
    except OSError as error:
        raise rg.UsageError(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"wrote {out}; run it with: python {out}")
    return 0
