"""`rolegraph new NAME`, a folder with a workflow, and `rolegraph trust` for a `rolegraph.toml`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command


@click.command("new")
@click.argument("folder", metavar="NAME", type=options.NamedPath())
@options.text("--from", "SPEC", "Shipped spec to copy. Default: solver_judge.", "spec")
@options.path("--data", "data", "FILE", "Table of your own tasks: .csv, .tsv, .jsonl or .parquet.")
@options.text("--label", "COLUMN", "With --data: the column with the right answer.", "label")
def new_command(folder: Path, spec: str | None, data: Path | None, label: str | None) -> int:
    """Write a workflow of your own into the new folder NAME: spec, prompts, rows, a reward in Python, a test.

    The workflow is complete: it runs and trains on the shipped model. AGENTS.md has the language in two
    pages, for agents. No file is overwritten. `rolegraph list specs` shows the specs for --from.

    With --data the workflow is for the rows of a table: prompts, parser and reward fit the column with the
    right answer, and its model is a real one.
    """
    if data is not None:
        if spec is not None:
            raise click.UsageError("--from copies a shipped spec, and --data writes one; give one of them")
        return _new_for_data(folder, data, label)
    if label is not None:
        raise click.UsageError("--label names a column of --data")
    files = api.new(folder, spec) if spec else api.new(folder)
    for file in files:
        click.echo(str(file))
    if folder / api.PROJECT_FILE in files:
        api.trust(folder)
    words = f"{folder.resolve().name}.yaml"
    tested = [command("test")] if any(map(api.is_tests_file, files)) else []
    following = [*tested, command("preview", words), command("run", words)]
    OutputOptions().next(shlex.join(["cd", str(folder)]), *following)
    return 0


def _new_for_data(folder: Path, data: Path, label: str | None) -> int:
    """Write a workflow for a table, and print what was decided about the table and the next commands."""
    made = api.new_for_data(folder, data, label)
    for file in made.files:
        click.echo(str(file))
    for note in made.notes:
        click.echo(api.printable(note))
    words, trained = str(folder / f"{folder.resolve().name}.yaml"), str(folder / "trained")
    on_test = ("data.validation=test.jsonl", "--tasks", str(made.test_tasks))
    OutputOptions().next(
        command("fetch", api.FIRST_MODEL),
        command("train", words, "--out", trained),
        command("eval", words, *on_test, "--checkpoint", trained),
    )
    return 0


@click.command("trust")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("-y", "--yes", is_flag=True, help="Trust the file without a question.")
def trust_command(folder: Path, yes: bool) -> int:
    """Show what the rolegraph.toml of FOLDER asks for, and trust it once you say yes.

    Its imports and permissions then apply to the specs beside it. A changed file asks again. Say yes only to
    code that you know: imports run with all your permissions.
    """
    file = folder / api.PROJECT_FILE
    _show_project(file)
    if not (yes or api.is_trusted(file) or click.confirm(f"trust {file}?")):
        return 1
    api.trust(folder)
    click.echo(f"{file} is trusted until it changes")
    return 0


def _show_project(file: Path) -> None:
    """Print the imports, permissions and flags of a `rolegraph.toml`; raises UsageError for an unknown
    flag."""
    from rolegraph.cli.main import VERBS, cli

    project = api.read_project(file)
    for title, values in (("imports", project.imports), ("allow", project.allow)):
        for value in values:
            click.echo(api.printable(f"{title:<8} {value}"))
    commands = [cli.get_command(click.Context(cli), verb) for verb in VERBS]
    flags = {flag for command in commands if command for option in command.params for flag in option.opts}
    for flag, value in project.flags.items():
        if f"--{flag}" not in flags:
            names = sorted(name.removeprefix("--") for name in flags)
            hint = api.did_you_mean(flag, names) or "expected a flag of a command, without its dashes"
            raise api.UsageError(f"{file}: flags: no command has --{flag}; {hint}")
        click.echo(api.printable(f"flag     --{flag} {value}"))
