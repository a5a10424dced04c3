"""`rolegraph eject`: a spec as code for another project."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.engine.plugins import plugin, plugin_names

SCRIPTED = "rllm"
"""Trainer that the script is for."""


def _folders(command: click.decorators.FC) -> click.decorators.FC:
    """Add to a command an option such as `--verifiers DIR` for each installed ejector; return the command."""
    for name in plugin_names("ejectors"):
        command = options.path(f"--{name}", name, "DIR", f"New folder for {name}, in place of a script.")(
            command
        )
    return command


@click.command("eject")
@options.source("The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.backend("rLLM's backend, or a class of your own. Default: tinker.")
@options.seed("Seed of the order of the data.")
@options.path("--out", "out", "FILE.py", "File of the script. Default: standard output.")
@options.replaces("out")
@_folders
def eject_command(
    source: api.Source, backend: str | None, seed: int, out: Path | None, **folders: Path | None
) -> int:
    """Write a script that trains SPEC as `rolegraph train SPEC --trainer rllm` does, to read and change.

    With an option such as --verifiers, write a folder for that project instead.
    """
    given = {name: folder for name, folder in folders.items() if folder is not None}
    if len(given) + (out is not None) > 1:
        raise api.UsageError(f"{', '.join(f'--{name}' for name in ('out', *folders))} exclude each other")
    for name, folder in given.items():
        plugin("ejectors", name)(source, folder)
        is_package = (folder / "pyproject.toml").exists()
        click.echo(f"wrote {folder}{f'; install it with: pip install -e {folder}' if is_package else ''}")
        return 0
    trainer = plugin("trainers", SCRIPTED)
    job = trainer.prepare(source, backend, seed=seed)
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
    script = trainer.script(job)
    if out is None:
        click.echo(script, nl=False)
        return 0
    api.write_output(out, script.encode(), "py")
    click.echo(f"wrote {out}; run it with: python {out}")
    return 0
