"""`rolegraph eject`: a spec as code for another project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed

Eject = Callable[[api.Source], None]
"""Function that writes a spec as code."""


@click.command("eject")
@contributed("eject")
@options.source(f"The model to train: {options.TRAINABLE}. Default: the spec's model.")
def eject_command(
    source: api.Source, default: Eject | None = None, chosen: Mapping[str, Eject] = MappingProxyType({})
) -> None:
    """Write SPEC as code for another project, to read and change.

    Without an option that names a place, the code is a script that trains SPEC, on standard output.
    """
    if len(chosen) > 1:
        raise api.UsageError(f"{' and '.join(f'--{name}' for name in chosen)} exclude each other")
    eject = next(iter(chosen.values()), default)
    if eject is None:
        raise api.UsageError("name a place for the code; `rolegraph eject --help` lists the options")
    eject(source)
