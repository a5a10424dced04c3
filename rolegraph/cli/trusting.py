"""`rolegraph trust`: the `rolegraph.toml` of a folder."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph import api


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
    """Print the imports, permissions and flags of a `rolegraph.toml`.

    Raises:
        UsageError: A flag is unknown.
    """
    from rolegraph.cli.main import cli

    project = api.read_project(file)
    for title, values in (("imports", project.imports), ("allow", project.allow)):
        for value in values:
            click.echo(api.printable(f"{title:<8} {value}"))
    context = click.Context(cli)
    commands = [cli.get_command(context, verb) for verb in cli.list_commands(context)]
    flags = {flag for command in commands if command for option in command.params for flag in option.opts}
    for flag, value in project.flags.items():
        if f"--{flag}" not in flags:
            names = sorted(name.removeprefix("--") for name in flags)
            hint = api.did_you_mean(flag, names) or "expected a flag of a command, without its dashes"
            raise api.UsageError(f"{file}: flags: no command has --{flag}; {hint}")
        click.echo(api.printable(f"flag     --{flag} {value}"))
