"""`rolegraph forecast`: the cost and effect of a first training step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import rolegraph as rg
from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command
from rolegraph.cli.terminal import clock, progress_line, run_until_done, summary_table

if TYPE_CHECKING:
    from rolegraph.outlook.forecast import Forecast

CORNERS = 8
"""Largest number of points shown of a curve."""
PRICE_FIELDS = {"in": "prompt", "out": "response", "train": "train"}
"""Field of `Price` for each key of `--price`."""


def _price(_context: click.Context, _option: click.Parameter, text: str | None) -> rg.Price | None:
    """Parse a price such as `in=0.4,out=1.2,train=2`; None without a text.

    Raises:
        UsageError: A key is unknown, or an amount is no number.
    """
    amounts: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, _, amount = part.partition("=")
        try:
            amounts[PRICE_FIELDS[key]] = float(amount)
        except (KeyError, ValueError):
            hint = "expected in=N, out=N or train=N, as in in=0.4,out=1.2"
            raise api.UsageError(f"--price: {part!r} is not a price; {hint}") from None
    return rg.Price(**amounts) if text else None


@click.command("forecast")
@options.source(
    f"The model to train: {options.TRAINABLE}. Default: the spec's model.",
    "The endpoint, for a probe.",
)
@options.text(
    "--from",
    "RUN",
    "Estimate from the episodes of a run, or of a training's first step.",
    "run",
    shell_complete=options.complete_runs,
)
@options.count("--probe", None, "Estimate from about so many episodes, made now, such as 32.")
@options.text(
    "--price",
    "in=N,out=N[,train=N]",
    "Dollars for a million tokens. Default: the models' `price`.",
    callback=_price,
)
@options.count("--budget", None, "Also bound `rolegraph optimize` with so many episodes.")
@options.seed("Seed of the probe.")
@options.output
def forecast_command(source: api.Source, budget: int | None, output: OutputOptions, **settings: Any) -> int:
    """Say what a first step of training SPEC will take and teach: calls, tokens, time, groups, cost.

    Without --from and --probe there are only the bounds of the spec.
    """
    flow = api.open_source(source)
    with progress_line(output, "looking at the spec …") as observe:
        forecast = run_until_done(rg.forecast_async(flow, observe=observe, **settings))
    spec_arguments = api.without_project(source).arguments()
    next_commands = [command("forecast", *spec_arguments, "--probe", "32")]
    if settings["probe"] is not None or settings["run"] is not None:
        next_commands = [command("train", *source.arguments())] if flow.is_trainable else []
    _show_forecast(forecast, output)
    calls = None if budget is None else forecast.calls_of_an_episode * budget
    if calls is not None:
        output.line(f"optimize --budget {budget}: at most {calls:,} model calls of the roles")
    # docs/command/output.md describes the keys of the document.
    document = {
        **asdict(forecast),
        "episodes": forecast.episodes,
        "scorings_at_most": forecast.scorings_at_most,
        "prompt_tokens": forecast.tokens("prompt"),
        "response_tokens": forecast.tokens("response"),
        "optimize_calls_at_most": calls,
    }
    output.end(document, *next_commands)
    return 0


def _show_forecast(forecast: Forecast, output: OutputOptions) -> None:
    """Print a forecast and its warnings."""
    console = output.results()
    console.print(
        f"a step: {forecast.tasks} tasks × {forecast.rollouts} rollouts = {forecast.episodes:,} episodes"
    )
    console.print(
        f"at most {forecast.calls_at_most:,} model calls, {forecast.chain} of them one after another; "
        f"estimated from {forecast.source}",
        markup=False,
    )
    if forecast.scorings_at_most:
        console.print(
            f"at most {forecast.scorings_at_most:,} requests for log-probabilities "
            "by teachers and likelihoods"
        )
    console.print(summary_table(forecast.summary()))
    if (tokens := forecast.tokens()) is not None:
        console.print(f"tokens: about {forecast.tokens('prompt') or 0:,.0f} in, {tokens:,.0f} out")
    if forecast.seconds is not None:
        console.print(f"time: about {clock(forecast.seconds)} at the speed of those episodes")
    if forecast.cost is not None:
        console.print(f"cost: about ${forecast.cost:,.4f}")
    for path, curve in forecast.numbers.items():
        values = [f"{value:g} in step {step}" for step, value in curve]
        last_values = ["…", values[-1]] if len(values) > CORNERS else values[-1:]
        console.print(f"{path}: {', '.join([*values[: CORNERS - 1], *last_values])}", markup=False)
    for warning in forecast.warnings:
        output.warn(warning)
