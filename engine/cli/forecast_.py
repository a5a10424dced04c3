"""`rolegraph forecast SPEC`: a training's first step in figures, before it is made."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, make_table
from rolegraph.engine.cli.waiting import clock, progress_line, run_until_done

PRICE_FIELDS = {"in": "prompt", "out": "response", "train": "train"}
"""Field of `Price` for each key of `--price`."""


@click.command("forecast")
@options.source(
    "The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.",
    "The endpoint, for a probe.",
)
@click.option(
    "--from",
    "run",
    type=click.Path(path_type=Path),
    metavar="RUN",
    shell_complete=completion.runs,
    help="Estimate from the episodes of a run, or of a training's first step.",
)
@options.count("--probe", None, "Estimate from about so many episodes, made now, such as 32.")
@options.text("--price", "in=N,out=N[,train=N]", "Price of a million tokens.")
@options.count("--budget", None, "Also bound `rolegraph optimize` with so many episodes.")
@options.seed("Seed of the probe.")
@options.output
def command(
    source: rg.Source,
    run: Path | None,
    probe: int | None,
    price: str | None,
    budget: int | None,
    seed: int,
    output: OutputOptions,
) -> int:
    """Say what a first step of training SPEC will take and teach: calls, tokens, time, groups, cost.

    Without --from and --probe there are only the bounds of the spec.
    """
    prices = _price(price) if price else None
    flow = rg.open_source(source)
    with progress_line(output, "looking at the spec …") as observe:
        found = run_until_done(
            rg.forecast_async(flow, probe=probe, run=run, price=prices, seed=seed, observe=observe)
        )
    words = shlex.join(source.arguments())
    estimated = probe is not None or run is not None
    following = [f"rolegraph forecast {words} --probe 32"]
    if estimated:
        following = [f"rolegraph train {words}"] if flow.is_trainable else []
    _show(found, output)
    calls = None if budget is None else found.calls_of_an_episode * budget
    if calls is not None:
        output.line(f"optimize --budget {budget}: at most {calls:,} model calls of the roles")
    output.next(*following)
    output.document({**_document(found), "optimize_calls_at_most": calls, "next": following})
    return 0


def _price(text: str) -> rg.Price:
    """Parse `in=0.4,out=1.2,train=2`; raise UsageError for another key or an amount that is no number."""
    amounts: dict[str, float] = {}
    for part in text.split(","):
        key, _, amount = part.partition("=")
        try:
            amounts[PRICE_FIELDS[key]] = float(amount)
        except (KeyError, ValueError):
            hint = "expected in=N, out=N or train=N, as in in=0.4,out=1.2"
            raise rg.UsageError(f"--price: {part!r} is not a price; {hint}") from None
    return rg.Price(**amounts)


def _document(found: rg.Forecast) -> dict[str, Any]:
    """Return the JSON document; docs/command.md describes its keys."""
    return {
        **asdict(found),
        "episodes": found.episodes,
        "prompt_tokens": found.tokens("prompt"),
        "response_tokens": found.tokens("response"),
    }


def _show(found: rg.Forecast, output: OutputOptions) -> None:
    """Print a forecast and its warnings."""
    out = output.results()
    out.print(f"a step: {found.tasks} tasks × {found.rollouts} rollouts = {found.episodes:,} episodes")
    out.print(
        f"at most {found.calls_at_most:,} model calls, {found.chain} of them one after another; "
        f"estimated from {found.source}",
        markup=False,
    )
    out.print(_table(found))
    if (tokens := found.tokens()) is not None:
        out.print(f"tokens: about {found.tokens('prompt') or 0:,.0f} in, {tokens:,.0f} out")
    if found.seconds is not None:
        out.print(f"time: about {clock(found.seconds)} at the speed of those episodes")
    if found.cost is not None:
        out.print(f"cost: about {found.cost:,.4f} at that price")
    for warning in found.warnings:
        output.warn(warning)


def _table(found: rg.Forecast) -> Table:
    """Build the table of roles."""
    table = make_table("role", "calls ≤", "tokens in", "out", "groups", "of", "will teach", "share")
    fails = any(row.failing and row.failing.mean for row in found.roles.values())
    if fails:
        table.add_column("failed", style="magenta", justify="right")
    for name, row in found.roles.items():
        failing = [f"{row.failing.mean:.0%}" if row.failing else "–"] if fails else []
        table.add_row(name, f"{row.calls_at_most:,}", *_cells(row), *failing)
    return table


def _cells(row: rg.RoleForecast) -> list[str]:
    """Format a role's figures; unknown ones are dashes."""
    prompt, response, teaching = row.prompt_tokens, row.response_tokens, row.teaching
    small, large = row.group_sizes or (0, 0)
    return [
        f"{prompt.mean:,.0f}" if prompt else "–",
        f"{response.mean:,.0f}" if response else f"≤ {row.response_tokens_at_most:,}",
        f"{row.groups:,.0f}" if row.groups is not None else "–",
        "–" if not row.group_sizes else f"{small}" if small == large else f"{small}–{large}",
        f"{teaching.mean:.0%} (n={teaching.n})" if teaching else "–",
        f"{row.share:.0%}" if row.share is not None else "–",
    ]
