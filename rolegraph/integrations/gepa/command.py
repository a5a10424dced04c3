"""`rolegraph optimize`: prompts that evolve by reflection."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command
from rolegraph.cli.terminal import add_row, make_table, progress_line, run_until_done

if TYPE_CHECKING:
    from rolegraph.integrations.gepa.page import OptimizationRecord


@click.command("optimize")
@options.source(
    "The model that answers for the roles. Default: the spec's.",
    "The endpoint of that model, for tinker and openai.",
)
@options.model_option(
    "--reflect-with",
    f"The model that writes new prompts: {options.ANSWERING}. Default: the spec's.",
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
@options.flag("--drop-damaged", "With --out: drop damaged lines, and keep a copy of their file.")
@options.output
def optimize_command(
    source: api.Source, concurrency: int, drop_damaged: bool, output: OutputOptions, **settings: Any
) -> int:
    """Evolve the prompts of SPEC's roles by reflection (GEPA), and write the best as a spec that extends it.

    A model reads episodes on training tasks and writes a better prompt of one role; prompts that do better
    are scored on the validation tasks. The same command goes on with an optimization that was stopped.
    """
    from rolegraph.integrations.gepa.optimizing import OptimizationJob

    if drop_damaged:
        options.without_damage(settings["out"], resume=True)
    job = OptimizationJob.create(api.open_source(source), **settings)
    output.line(
        f"budget: {job.plan.budget:,} episodes, at most {job.plan.calls:,} model calls, and at most "
        f"{job.plan.reflections:,} reflections of {job.reflector}"
    )
    if job.plan.foreign_prompts:
        output.warn(job.plan.foreign_prompts)
    try:
        with progress_line(output, "starting the models …") as observe:
            result = run_until_done(job.run(observe, concurrency=concurrency))
    except KeyboardInterrupt:
        output.next(command(*sys.argv[1:]))
        raise
    record = result.record
    _show_candidates(record, output)
    output.line(f"{result.spec}: {source.spec} with the prompts of candidate {record.best}")
    output.line(str(result.page))
    spec_arguments = api.without_project(replace(source, spec=str(result.spec), overrides=())).arguments()
    verbs = ("run", "train") if job.flow.is_trainable else ("run",)
    commands = [command(verb, *spec_arguments) for verb in verbs]
    summary = {"best": record.best, "front": record.front, "spec": result.spec, "page": result.page}
    output.end({**record.model_dump(), **summary}, *commands)
    return 0


def _show_candidates(record: OptimizationRecord, output: OutputOptions) -> None:
    """Print a table of the candidates, with the number of episodes and reflections used."""
    table = make_table("candidate", record.score, "best on", "from", "changed")
    for number, candidate in enumerate(record.candidates):
        name = f"{number}, front" if number in record.front else str(number)
        best_on = f"{len(candidate.best_on)} of {len(candidate.scores)}"
        parents = ", ".join(map(str, candidate.parents)) or "the spec"
        changed = [
            name for parent in candidate.parents for name in candidate.changes(record.candidates[parent])
        ]
        style = "bold green" if number == record.best else ""
        add_row(table, name, f"{candidate.score:.3f}", best_on, parents, ", ".join(changed), style=style)
    console = output.results()
    console.print(table)
    refused_note = f", {len(record.refused)} of them refused" if record.refused else ""
    console.print(f"{record.episodes} episodes, {record.reflections} reflections{refused_note}")
