"""`rolegraph new NAME`: a folder with a new workflow."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command


@click.command("new")
@click.argument("folder", metavar="NAME", type=options.NamedPath())
@options.text("--from", "SPEC", "Shipped spec or recipe to copy. Default: solver_judge.", "spec")
@options.path("--data", "data", "FILE", "Table of your own tasks: .csv, .tsv, .jsonl or .parquet.")
@options.text("--label", "COLUMN", "With --data: the column with the right answer.", "label")
def new_command(folder: Path, spec: str | None, data: Path | None, label: str | None) -> int:
    """Write a workflow of your own into the new folder NAME: spec, prompts, rows, a reward in Python, a test.

    The workflow is complete: it runs and trains on the shipped model. AGENTS.md has the language in two
    pages, for agents. No file is overwritten. `rolegraph list specs` and `rolegraph list recipes` show
    the names for --from; a recipe comes with a row, and without a reward in Python and a test.

    With --data the workflow is for the rows of a table: prompts, parser and reward fit the column with the
    right answer, and its model is a real one.
    """
    from rolegraph.starter.starting import new as new_workflow

    if data is not None:
        if spec is not None:
            raise click.UsageError("--from copies a shipped spec, and --data writes one; give one of them")
        return _new_for_data(folder, data, label)
    if label is not None:
        raise click.UsageError("--label names a column of --data")
    files = new_workflow(folder, spec) if spec else new_workflow(folder)
    for file in files:
        click.echo(str(file))
    if folder / api.PROJECT_FILE in files:
        api.trust(folder)
    spec_name = f"{folder.resolve().name}.yaml"
    test_commands = [command("test")] if any(map(api.is_tests_file, files)) else []
    next_commands = [*test_commands, command("preview", spec_name), command("run", spec_name)]
    OutputOptions().next(shlex.join(["cd", str(folder)]), *next_commands)
    return 0


def _new_for_data(folder: Path, data: Path, label: str | None) -> int:
    """Write a workflow for a table, and print the decisions about the table and suggested commands."""
    from rolegraph.engine.shipped import FIRST_MODEL
    from rolegraph.starter.data_starting import new_for_data

    started = new_for_data(folder, data, label)
    for file in started.files:
        click.echo(str(file))
    for note in started.notes:
        click.echo(api.printable(note))
    spec_path, trained_folder = str(folder / f"{folder.resolve().name}.yaml"), str(folder / "trained")
    test_options = ("data.validation=test.jsonl", "--tasks", str(started.test_tasks))
    OutputOptions().next(
        command("fetch", FIRST_MODEL),
        command("train", spec_path, "--out", trained_folder),
        command("eval", spec_path, *test_options, "--checkpoint", trained_folder),
    )
    return 0
