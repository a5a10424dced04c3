"""`rolegraph optimize`, prompts that evolve by reflection, and `rolegraph forecast`, a training's cost."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from typing import Any

import click
from rich.table import Table

import rolegraph as rg
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.terminal import add_row, clock, make_table, progress_line, run_until_done

PRICE_FIELDS = {"in": "prompt", "out": "response", "train": "train"}
"""Field of `Price` for each key of `--price`."""


@click.command("optimize")
@options.source(
    "The model that answers for the roles. Default: the spec's.",
    "The endpoint of that model, for tinker and openai.",
)
@options.model_option(
    "--reflect-with",
    "The model that writes new prompts: openai:NAME, tinker:NAME, local:FOLDER. Default: the spec's.",
)
@options.text("--reflect-url", "URL", "The endpoint of the model that writes prompts.")
@options.count("--budget", 500, "Episodes at most.")
@options.count("--tasks", 32, "Tasks of each split at most.")
@options.count("--rollouts", 2, "Episodes of each task and candidate.")
@options.repeated("--role", "roles", "NAME", "A role whose prompts may change. Default: all.")
@options.text("--score", "FIGURE", "correct, a metric, reward/ROLE or 'mean reward'. Default: correct.")
@options.path("--out", "out", "FOLDER", "Folder of the optimization. Default: runs/NAME-optimize.")
@options.seed("Seed of all draws.")
@options.count("--concurrency", 64, "Episodes in flight.")
@options.output
def optimize_command(source: rg.Source, concurrency: int, output: OutputOptions, **settings: Any) -> int:
    """Evolve the prompts of SPEC's roles by reflection (GEPA), and write the best as a spec that extends it.

    A model reads episodes on training tasks and writes a better prompt of one role; prompts that do better
    are scored on the validation tasks. The same command goes on with an optimization that was stopped.
    """
    job = rg.OptimizationJob.create(rg.open_source(source), **settings)
    output.line(
        f"budget: {job.plan.budget:,} episodes, at most {job.plan.calls:,} model calls, and at most "
        f"{job.plan.reflections:,} reflections of {job.reflector}"
    )
    if job.plan.untaught:
        output.warn(job.plan.untaught)
    try:
        with progress_line(output, "starting the models …") as observe:
            result = run_until_done(job.run(observe, concurrency=concurrency))
    except KeyboardInterrupt:
        output.next(shlex.join(["rolegraph", *sys.argv[1:]]))
        raise
    record = result.record
    _show_candidates(record, output)
    output.line(f"{result.spec}: {source.spec} with the prompts of candidate {record.best}")
    output.line(str(result.page))
    words = shlex.join(replace(source, spec=str(result.spec), overrides=()).arguments())
    commands = [f"rolegraph run {words}"]
    if job.flow.is_trainable:
        commands.append(f"rolegraph train {words}")
    made = {"best": record.best, "front": record.front, "spec": result.spec, "page": result.page}
    output.end({**record.model_dump(), **made}, *commands)
    return 0


def _show_candidates(record: rg.OptimizationRecord, output: OutputOptions) -> None:
    """Print a table of the candidates, and what they took."""
    table = make_table("candidate", record.score, "best on", "from", "changed")
    for number, candidate in enumerate(record.candidates):
        name = f"{number}, front" if number in record.front else str(number)
        best_on = f"{len(candidate.best_on)} of {len(candidate.scores)}"
        parents = ", ".join(map(str, candidate.parents)) or "the spec"
        changed = [name for at in candidate.parents for name in candidate.changes(record.candidates[at])]
        style = "bold green" if number == record.best else ""
        add_row(table, name, f"{candidate.score:.3f}", best_on, parents, ", ".join(changed), style=style)
    out = output.results()
    out.print(table)
    refused = f", {len(record.refused)} of them refused" if record.refused else ""
    out.print(f"{record.episodes} episodes, {record.reflections} reflections{refused}")


def _price(_context: click.Context, _option: click.Parameter, text: str | None) -> rg.Price | None:
    """Parse `in=0.4,out=1.2,train=2`; raise UsageError for another key or an amount that is no number."""
    amounts: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, _, amount = part.partition("=")
        try:
            amounts[PRICE_FIELDS[key]] = float(amount)
        except (KeyError, ValueError):
            hint = "expected in=N, out=N or train=N, as in in=0.4,out=1.2"
            raise rg.UsageError(f"--price: {part!r} is not a price; {hint}") from None
    return rg.Price(**amounts) if text else None


@click.command("forecast")
@options.source(
    "The model to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.",
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
@options.text("--price", "in=N,out=N[,train=N]", "Price of a million tokens.", callback=_price)
@options.count("--budget", None, "Also bound `rolegraph optimize` with so many episodes.")
@options.seed("Seed of the probe.")
@options.output
def forecast_command(source: rg.Source, budget: int | None, output: OutputOptions, **settings: Any) -> int:
    """Say what a first step of training SPEC will take and teach: calls, tokens, time, groups, cost.

    Without --from and --probe there are only the bounds of the spec.
    """
    flow = rg.open_source(source)
    with progress_line(output, "looking at the spec …") as observe:
        found = run_until_done(rg.forecast_async(flow, observe=observe, **settings))
    words = shlex.join(source.arguments())
    following = [f"rolegraph forecast {words} --probe 32"]
    if settings["probe"] is not None or settings["run"] is not None:
        following = [f"rolegraph train {words}"] if flow.is_trainable else []
    _show_forecast(found, output)
    calls = None if budget is None else found.calls_of_an_episode * budget
    if calls is not None:
        output.line(f"optimize --budget {budget}: at most {calls:,} model calls of the roles")
    # docs/command.md describes the keys of the document.
    tokens = {"prompt_tokens": found.tokens("prompt"), "response_tokens": found.tokens("response")}
    document = {**asdict(found), "episodes": found.episodes, **tokens, "optimize_calls_at_most": calls}
    output.end(document, *following)
    return 0


def _show_forecast(found: rg.Forecast, output: OutputOptions) -> None:
    """Print a forecast and its warnings."""
    out = output.results()
    out.print(f"a step: {found.tasks} tasks × {found.rollouts} rollouts = {found.episodes:,} episodes")
    out.print(
        f"at most {found.calls_at_most:,} model calls, {found.chain} of them one after another; "
        f"estimated from {found.source}",
        markup=False,
    )
    out.print(_forecast_table(found))
    if (tokens := found.tokens()) is not None:
        out.print(f"tokens: about {found.tokens('prompt') or 0:,.0f} in, {tokens:,.0f} out")
    if found.seconds is not None:
        out.print(f"time: about {clock(found.seconds)} at the speed of those episodes")
    if found.cost is not None:
        out.print(f"cost: about {found.cost:,.4f} at that price")
    for warning in found.warnings:
        output.warn(warning)


def _forecast_table(found: rg.Forecast) -> Table:
    """Build the table of roles; unknown figures are dashes."""
    fails = any(row.failing and row.failing.mean for row in found.roles.values())
    table = make_table("role", "calls ≤", "tokens in", "out", "groups", "of", "will teach", "share")
    if fails:
        table.add_column("failed", style="magenta", justify="right")
    for name, row in found.roles.items():
        prompt, response, teaching = row.prompt_tokens, row.response_tokens, row.teaching
        small, large = row.group_sizes or (0, 0)
        cells = [
            f"{row.calls_at_most:,}",
            f"{prompt.mean:,.0f}" if prompt else "–",
            f"{response.mean:,.0f}" if response else f"≤ {row.response_tokens_at_most:,}",
            f"{row.groups:,.0f}" if row.groups is not None else "–",
            "–" if not row.group_sizes else f"{small}" if small == large else f"{small}–{large}",
            f"{teaching.mean:.0%} (n={teaching.n})" if teaching else "–",
            f"{row.share:.0%}" if row.share is not None else "–",
        ]
        if fails:
            cells.append(f"{row.failing.mean:.0%}" if row.failing else "–")
        table.add_row(name, *cells)
    return table
