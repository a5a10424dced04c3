"""Flags that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rolegraph import BACKENDS
from rolegraph.engine.cli import completion

overrides = click.argument(
    "overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]", shell_complete=completion.overrides
)
F = TypeVar("F", bound=Callable[..., Any])


def count(flag: str, default: int, meaning: str) -> Callable[[F], F]:
    """A flag that says how many, at least 1."""
    return click.option(
        flag, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=meaning
    )


def optional_count(flag: str, meaning: str) -> Callable[[F], F]:
    """A flag that says how many, at least 1; None where it is not given."""
    return click.option(flag, type=click.IntRange(min=1), metavar="N", help=meaning)


def model(meaning: str) -> Callable[[F], F]:
    """The flag `--model`."""
    return click.option("--model", metavar="MODEL", help=meaning, shell_complete=completion.models)


def base_url(meaning: str) -> Callable[[F], F]:
    """The flag `--base-url`."""
    return click.option("--base-url", metavar="URL", help=meaning)


def seed(meaning: str) -> Callable[[F], F]:
    """The flag `--seed`."""
    return click.option("--seed", type=int, default=0, show_default=True, metavar="N", help=meaning)


imports = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="FILE.py",
    type=click.Path(path_type=Path),
    help="A Python file whose rewards, parsers and so on the spec may name; may be given again.",
)


allow = click.option(
    "--allow",
    multiple=True,
    metavar="NAME_OR_URL",
    help="What the spec may use: python, or a URL and all below it; may be given again.",
)


multirun = click.option(
    "-m",
    "--multirun",
    is_flag=True,
    help="Once for each combination of values with commas between them, as in roles.solver.count=1,2,4 "
    "or seed=0,1,2.",
)


class FigureFloor(click.ParamType[tuple[str, float]]):
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


class BackendName(click.ParamType[str]):
    """One of rLLM's backends, or somebody's own."""

    name = "backend"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As a choice, and one more."""
        return f"[{'|'.join(BACKENDS)}|MODULE:CLASS]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is; what is in a module is looked up when it trains."""
        name = str(value)
        if name in BACKENDS or ":" in name:
            return name
        self.fail(f"{name!r} is none of {', '.join(BACKENDS)}, nor MODULE:CLASS", param, ctx)


backends = BackendName()
