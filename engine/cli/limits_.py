"""`rolegraph limits`: the limits on specs, templates, answers, tools and clients, with their reasons."""

from __future__ import annotations

import click

import rolegraph as rg


@click.command("limits")
def command() -> None:
    """Show every limit on an input, with the name that messages give it and its reason."""
    name = max(len(limit.name) for limit in rg.LIMITS)
    most = max(len(limit.size) for limit in rg.LIMITS)
    for limit, reason in rg.LIMITS.items():
        click.echo(f"{limit.name:<{name}}  {limit.size:<{most}}  {reason}")
