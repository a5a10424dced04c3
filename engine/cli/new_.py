"""`rolegraph new NAME`: a folder with a workflow to start from."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg


@click.command("new")
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "spec",
    default="solver_judge",
    show_default=True,
    metavar="SPEC",
    help="The shipped spec to copy; `rolegraph list specs` shows them.",
)
def command(folder: Path, spec: str) -> int:
    """Write a workflow of your own into the new folder NAME: spec, prompts, rows, a reward in Python, a test.

    The workflow is complete: it runs and trains on the shipped model. No file is overwritten.
    """
    files = rg.new(folder, spec)
    for file in files:
        click.echo(str(file))
    if folder / rg.PROJECT_FILE in files:
        rg.trust(folder)
    words = f"{folder.resolve().name}.yaml"
    click.echo(f"next: cd {folder}, then: rolegraph preview {words}, rolegraph run {words}")
    return 0
