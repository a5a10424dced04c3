"""`rolegraph limits`: what a stranger's spec, template or answer may cost, and why."""

from __future__ import annotations

import click


@click.command("limits")
def command() -> None:
    """Show every limit on what an input may cost, with the name that messages give it and its reason."""
    import rolegraph as rg

    name = max(len(limit.name) for limit in rg.LIMITS)
    most = max(len(f"{limit.most:,} {limit.unit}") for limit in rg.LIMITS)
    for limit in rg.LIMITS:
        click.echo(f"{limit.name:<{name}}  {f'{limit.most:,} {limit.unit}':<{most}}  {limit.why}")
