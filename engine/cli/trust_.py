"""`rolegraph trust FOLDER`: what a folder asks for counts from now on, in its present state."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


@click.command("trust")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("-y", "--yes", is_flag=True, help="Trust the file without a question.")
def command(folder: Path, yes: bool) -> int:
    """Show what FOLDER asks for, and trust it once you say yes.

    FOLDER holds a rolegraph.toml, whose imports and permissions then count for the specs beside it, or a run
    that somebody else made, which can then be resumed. A changed file asks again. Say yes only to code that
    you know: imports run with all that you may do.
    """
    import rolegraph as rg

    if (settings := rg.recorded_settings(folder)) is not None:
        click.echo(rg.printable(shlex.join(settings.source.arguments())))
        if not (yes or click.confirm(f"trust {folder}?")):
            return 1
        rg.trust(folder)
        click.echo(f"{folder} is trusted until its settings change")
        return 0
    file = folder / rg.PROJECT_FILE
    project = rg.read_project(file)
    for title, values in (("imports", project.imports), ("allow", project.allow)):
        for value in values:
            click.echo(rg.printable(f"{title:<8} {value}"))
    known = _known_flags()
    for flag, value in project.flags.items():
        if flag not in known:
            hint = rg.did_you_mean(flag, sorted(known)) or "expected a flag of a command, without its dashes"
            raise rg.UsageError(f"{file}: flags: no command has --{flag}; {hint}")
        click.echo(rg.printable(f"flag     --{flag} {value}"))
    if not (yes or rg.is_trusted(file) or click.confirm(f"trust {file}?")):
        return 1
    rg.trust(folder)
    click.echo(f"{file} is trusted until it changes")
    return 0


def _known_flags() -> set[str]:
    """Return the long flags of all commands, without their dashes."""
    from rolegraph.engine.cli.main import VERBS, cli

    commands = [cli.get_command(click.Context(cli), verb) for verb in VERBS]
    options = [option for command in commands if command for option in command.params]
    return {flag[2:] for option in options for flag in option.opts if flag.startswith("--")}
