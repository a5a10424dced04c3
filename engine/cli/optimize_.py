"""`rolegraph optimize SPEC`: the prompts of a spec's roles, evolved by a model that reflects on episodes."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, add_row, make_table
from rolegraph.engine.cli.waiting import progress_line, run_until_done


@click.command("optimize")
@options.source(
    "The model that answers for the roles. Default: the spec's.",
    "The endpoint of that model, for tinker and openai.",
)
@click.option(
    "--reflect-with",
    metavar="MODEL",
    shell_complete=completion.models,
    help="The model that writes new prompts: openai:NAME, tinker:NAME, local:FOLDER. Default: the spec's.",
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
def command(source: rg.Source, concurrency: int, output: OutputOptions, **settings: Any) -> int:
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
    _show(record, output)
    output.line(f"{result.spec}: {source.spec} with the prompts of candidate {record.best}")
    output.line(str(result.page))
    spec = replace(source, spec=str(result.spec), overrides=())
    words = shlex.join(spec.arguments())
    commands = [f"rolegraph run {words}"]
    if job.flow.is_trainable:
        commands.append(f"rolegraph train {words}")
    output.next(*commands)
    document = {
        **record.model_dump(),
        "best": record.best,
        "front": record.front,
        "spec": result.spec,
        "page": result.page,
    }
    output.document({**document, "next": commands})
    return 0


def _show(record: rg.OptimizationRecord, output: OutputOptions) -> None:
    """Print a table of the candidates, and what they took."""
    table = make_table("candidate", record.score, "best on", "from", "changed")
    for number, candidate in enumerate(record.candidates):
        parents = [record.candidates[parent] for parent in candidate.parents]
        add_row(
            table,
            f"{number}, front" if number in record.front else str(number),
            f"{candidate.score:.3f}",
            f"{len(candidate.best_on)} of {len(candidate.scores)}",
            ", ".join(map(str, candidate.parents)) or "the spec",
            ", ".join(name for parent in parents for name in candidate.changes(parent)),
            style="bold green" if number == record.best else "",
        )
    out = output.results()
    out.print(table)
    refused = f", {len(record.refused)} of them refused" if record.refused else ""
    out.print(f"{record.episodes} episodes, {record.reflections} reflections{refused}")
