"""Flags that several verbs share."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph import BACKENDS

overrides = click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]")
imports = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="FILE.py",
    type=click.Path(path_type=Path),
    help="A Python file whose rewards, parsers and so on the spec may name; may be given again.",
)
seed = click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="The same seed and model give the same episodes.",
)


class Floor(click.ParamType[tuple[str, float]]):
    """A figure and how low it may be."""

    name = "figure=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """A figure's name and its floor."""
        figure, _, floor = str(value).partition("=")
        try:
            return figure, float(floor)
        except ValueError:
            self.fail(f"{value!r} is no FIGURE=VALUE, such as answered=0.99", param, ctx)


backends = click.Choice(BACKENDS)
