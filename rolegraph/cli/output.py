"""Output of the commands: results on standard output, progress and warnings on standard error.

With `--json` standard output has one document, at the end; with `--quiet` only that document, warnings and
errors are printed. Colour follows rich and click: `NO_COLOR` removes it, `FORCE_COLOR` keeps it in a pipe.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from rolegraph import api

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

SHOWN_CHARACTERS = 300
"""Largest number of characters of a text in a table or a line, unless the caller sets another."""


def command(*words: str) -> str:
    """Return a command line of this program, quoted for a shell."""
    return shlex.join(["rolegraph", *words])


class OutputOptions(NamedTuple):
    """Values of `--quiet` and `--json` on a command line, and the stream of the JSON document."""

    quiet: bool = False
    as_json: bool = False
    stream: TextIO | None = None

    def check_single(self, kind: str) -> None:
        """Raise UsageError if `--quiet` or `--json` is given; called for `-m`, which makes several runs of a
        kind."""
        if self.quiet or self.as_json:
            raise click.UsageError(f"--json and --quiet go with one {kind}; -m makes several")

    def results(self) -> Console:
        """Return the rich console that prints tables and paths."""
        return _console(stderr=self.as_json, quiet=self.quiet, lines=True)

    def line(self, text: str) -> None:
        """Print one line of results, unless quiet; with `--json` it goes to standard error."""
        if not self.quiet:
            click.echo(api.printable(text), err=self.as_json)

    def progress(self) -> Console:
        """Return the rich console that prints progress."""
        return _console(stderr=True, quiet=self.quiet)

    def warnings(self) -> Console:
        """Return the console for warnings, which are printed despite `--quiet`."""
        return _console(stderr=True, lines=True)

    def warn(self, text: str, above: Console | None = None) -> None:
        """Print a warning.

        Args:
            text: The warning.
            above: Console of a live display, above which the warning is printed; another console would write
                into the display. None without a display.
        """
        console = self.warnings() if above is None or above.quiet else above
        text = api.printable(f"warning: {text}")
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def next(self, *commands: str) -> None:
        """Print suggested next commands."""
        for number, command in enumerate(commands):
            self.line(f"{'next: ' if not number else '      '}{command}")

    def end(self, document: Mapping[str, object], *commands: str) -> None:
        """Print suggested next commands, and the JSON document, which contains them."""
        self.next(*commands)
        self.document({**document, "next": commands})

    def document(self, value: Mapping[str, object]) -> None:
        """Print the JSON document if `--json` was given."""
        if self.as_json:
            safe_value = api.without_secrets_in(json.loads(json.dumps(value, default=str)))
            click.echo(json.dumps(safe_value, indent=1, ensure_ascii=False), file=self.stream)


def advised_commands(it: api.NextAction, verb: str, flow: api.Workflow, folder: Path) -> list[str]:
    """Return the commands of an action that both runs and trainings advise.

    Args:
        it: The action.
        verb: Command that wrote the folder.
        flow: The workflow that was run or trained.
        folder: Folder of the run or training.
    """
    path, source = str(folder), api.without_project(flow.source)
    match it.action:
        case api.Action.RESUME | api.Action.RETRY:
            flags = ("--retry-failed",) if it.action is api.Action.RETRY else ()
            return [command(verb, "--resume", *flags, "--out", path, *api.options_to_repeat(flow))]
        case api.Action.OTHER_MODEL:
            return other_model_commands(verb, source)
        case api.Action.VIEW:
            role_option = ("--role", it.role) if it.role else ()
            return [command("view", path, *role_option, *(("--failure", "any") if it.failures else ()))]
        case api.Action.PREVIEW:
            return [command("preview", *replace(source, model=None, base_url=None).arguments())]
        case _:
            return [command("train", *source.arguments())]


def other_model_commands(verb: str, source: api.Source) -> list[str]:
    """Return the commands that fetch a model for the user's own tasks, and that run `verb` with that model.

    Args:
        verb: Command for a spec, such as `run`.
        source: The spec and its options.
    """
    spec_arguments = replace(source, model=f"local:{api.FIRST_MODEL}", base_url=None).arguments()
    return [command("fetch", api.FIRST_MODEL), command(verb, *spec_arguments)]


@contextmanager
def own_stream(alone: bool) -> Generator[TextIO]:
    """Yield standard output as a stream; if `alone`, other prints during the block go to standard error."""
    if not alone:
        yield sys.stdout
        return
    with ExitStack() as stack:
        stream = sys.stdout
        if stream is sys.__stdout__:  # libraries in C print to its number
            stream.flush()
            copy = os.dup(stream.fileno())
            os.dup2(sys.stderr.fileno(), stream.fileno())
            stack.callback(os.dup2, copy, stream.fileno())
            stream = stack.enter_context(
                os.fdopen(os.dup(copy), "w", encoding=stream.encoding, errors=stream.errors)
            )
        stack.enter_context(redirect_stdout(sys.stderr))
        yield stream


def _console(*, stderr: bool, quiet: bool = False, lines: bool = False) -> Console:
    """Return a rich console; with `lines`, long lines are not wrapped, and numbers are not highlighted."""
    from rich.console import Console  # imported here, so that `--help` is fast

    return Console(stderr=stderr, quiet=quiet, soft_wrap=lines, highlight=not lines)


def plain(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Return a text without control characters, cut if it is longer than `most` characters."""
    printable_text = api.printable(text)
    return printable_text if len(printable_text) <= most else f"{printable_text[:most]} …"


def colour(environment: Mapping[str, str] = os.environ) -> bool | None:
    """Read NO_COLOR and FORCE_COLOR; return None if neither is set, for colours on a terminal only."""
    if environment.get("NO_COLOR"):
        return False
    return True if environment.get("FORCE_COLOR") else None
