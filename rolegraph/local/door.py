"""Commands of models on this machine, and the option `--fresh` of each command that opens a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from rolegraph.cli import options
from rolegraph.cli.doors import Door, Verb


def _with_fresh(command: Callable[..., Any], *, fresh: bool, **words: Any) -> Any:
    from rolegraph.local.warm import has_started_service, keep_services  # imports the engine

    keep_services(0 if fresh else _warm_seconds())
    exit_code = command(**words)
    if has_started_service() and not words.get("quiet"):
        message = "the model stays loaded for {:g} minutes (to free it: rolegraph serve --stop)"
        click.echo(message.format(_warm_seconds() / 60), err=True)
    return exit_code


def _warm_seconds() -> float:
    """Return the seconds that an unused local service keeps running: `ROLEGRAPH_WARM`, 0 in CI, else 300."""
    seconds_text = os.environ.get("ROLEGRAPH_WARM") or ("0" if os.environ.get("CI") else "300")
    if not seconds_text.isdecimal():
        raise click.UsageError(f"ROLEGRAPH_WARM is {seconds_text!r}; expected seconds, or 0")
    return float(seconds_text)


def _with_engine(command: Callable[..., Any], *, engine: str | None, **words: Any) -> Any:
    if engine is None:
        return command(**words)
    from rolegraph.engine.plugins import plugin

    missing_parts = plugin("engines", engine).lacks()
    for line in missing_parts:
        click.echo(f"{engine} lacks {line}")
    if not missing_parts:
        click.echo(f"{engine} lacks nothing: rolegraph serve --engine {engine} MODEL")
    return 1 if missing_parts else 0


_COMMANDS = "rolegraph.local.commands"
DOOR = Door(
    {
        "fetch": Verb("Run", "Fetch a model onto this machine, to be run as local:NAME.", _COMMANDS),
        "serve": Verb("Run", "Serve a local model folder over the Tinker API.", _COMMANDS),
        "limits": Verb("Run", "Show the limits on inputs, and their reasons.", _COMMANDS),
        "export": Verb("Share", "Write trained weights for other programs.", _COMMANDS),
    },
    {
        "model": options.bundle(
            _with_fresh, options.flag("--fresh", "Load a local model anew, and for this command alone.")
        ),
        "doctor": options.bundle(
            _with_engine, options.text("--engine", "NAME", "Say what this engine of `serve` lacks, and exit.")
        ),
    },
)
