"""How a verb speaks: what it found on standard output, all else on standard error.

With `--json` standard output has one document, at the end; with `--quiet` nothing is said but that, warnings
and errors. Colour is rich's and click's: `NO_COLOR` takes it away, `FORCE_COLOR` keeps it in a pipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


class OutputOptions(NamedTuple):
    """What was asked for on the command line."""

    quiet: bool = False
    as_json: bool = False

    def found(self) -> Console:
        """For tables and paths."""
        return _console(stderr=self.as_json, quiet=self.quiet, lines=True)

    def line(self, text: str) -> None:
        """Say a line of what was found, as it is; it costs no import."""
        if not self.quiet:
            click.echo(text, err=self.as_json)

    def progress(self) -> Console:
        """For what goes on just now."""
        return _console(stderr=True, quiet=self.quiet)

    def warnings(self) -> Console:
        """For what the person should know in any case."""
        return _console(stderr=True, lines=True)

    def next(self, *commands: str) -> None:
        """What a person would do now, as it is typed."""
        for number, command in enumerate(commands):
            self.line(f"{'next: ' if not number else '      '}{command}")

    def document(self, value: Mapping[str, object]) -> None:
        """The one document, where it was asked for."""
        if self.as_json:
            click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def flags(
    imports: Sequence[str | Path],
    allowed: Sequence[str],
    model: str | None = None,
    base_url: str | None = None,
) -> list[str]:
    """The words without which a command on the same spec would not know its items, refuse it, or ask
    another model."""
    named = {"--import": imports, "--allow": allowed, "--model": [model], "--base-url": [base_url]}
    return [
        word for flag, values in named.items() for value in values if value for word in (flag, str(value))
    ]


def _console(*, stderr: bool, quiet: bool = False, lines: bool = False) -> Console:
    """On `lines`, nothing is cut and nothing is coloured by itself."""
    from rich.console import Console  # which `--help` needs not wait for

    return Console(stderr=stderr, quiet=quiet, soft_wrap=lines, highlight=not lines)


def speaking(verb: F) -> F:
    """The flags `--quiet` and `--json` of a verb."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document at the end; all else to stderr."
    )
    return quiet(as_json(verb))


def colour(environment: Mapping[str, str] = os.environ) -> bool | None:
    """Whether click writes in colour: None looks whether somebody reads in a terminal."""
    if environment.get("NO_COLOR"):
        return False
    return True if environment.get("FORCE_COLOR") else None
