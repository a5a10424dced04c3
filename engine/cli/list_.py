"""`rolegraph list [KIND]`: the specs and the vocabulary, a line each from their docstrings."""

from __future__ import annotations

import click

KINDS = ("specs", "parsers", "rewards", "estimators", "signals", "metrics", "datasets")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
def command(kind: str | None) -> None:
    """Show the shipped specs and what a spec may name: parsers, rewards, estimators, …"""
    sections = {name: _items(name) for name in KINDS if kind in (None, name)}
    width = max(len(name) for items in sections.values() for name in items)
    for title, items in sections.items():
        click.echo(click.style(title, bold=True))
        for name, help_line in items.items():
            click.echo(f"  {name:<{width}}  {help_line}")


def _items(kind: str) -> dict[str, str]:
    if kind == "specs":
        return _specs()
    from engine import vocabulary

    registry = getattr(vocabulary, kind)
    return {name: registry.summary(name) for name in registry.names()}


def _specs() -> dict[str, str]:
    from engine.shipped import SPECS
    from engine.spec.loader import load_spec

    return {path.stem: load_spec(path).spec.description for path in sorted(SPECS.glob("*.yaml"))}
