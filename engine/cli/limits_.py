"""`rolegraph limits`: what specs, templates, answers, tools and clients may cost, and why."""

from __future__ import annotations

import click


@click.command("limits")
def command() -> None:
    """Show every limit on what an input may cost, with the name that messages give it and its reason."""
    import rolegraph as rg

    name = max(len(limit.name) for limit in rg.LIMITS)
    most = max(len(limit.size) for limit in rg.LIMITS)
    for limit in rg.LIMITS:
        click.echo(f"{limit.name:<{name}}  {limit.size:<{most}}  {limit.why}")
