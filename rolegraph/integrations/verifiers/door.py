"""Option of `eject` that writes an environment of verifiers: `--verifiers`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import Door


def _with_folder(command: Callable[..., Any], *, verifiers: Path | None, **words: Any) -> Any:
    if verifiers is not None:
        words["chosen"] = {"verifiers": partial(_write_folder, verifiers), **words.get("chosen", {})}
    return command(**words)


def _write_folder(folder: Path, source: api.Source) -> None:
    from rolegraph.integrations.verifiers.ejecting import eject_verifiers

    eject_verifiers(source, folder)
    click.echo(f"wrote {folder}; install it with: pip install -e {folder}")


DOOR = Door(
    options={
        "eject": options.bundle(
            _with_folder, options.path("--verifiers", "verifiers", "DIR", "New folder for verifiers.")
        )
    }
)
