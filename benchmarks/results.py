"""The field's tables in small: each file of benchmarks/results/ trained, measured and held against its paper.

    python benchmarks/results.py at_grpo                    # three seeds; the same command resumes it
    python benchmarks/results.py at_grpo --seeds 1 --tiny   # one step on two tasks: does every arm run?
    python benchmarks/results.py --page docs/results.md     # trains nothing; writes the page

A run is one arm with one seed: `OUT/TABLE/ARM-SEED.json`, beside the folder of its training and evaluations.
A run that has its JSON file is not repeated. The page is made from these files alone.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from results_page import write_page
from results_tables import HERE, OVER_STEPS, Arm, ByTask, Run, Study, Table, Test

import rolegraph as rg

KEEP_SECONDS = 300
"""Time for which the local service stays, so that all arms share one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One arm of a table with one seed."""

    study: Study
    name: str
    seed: int

    @property
    def arm(self) -> Arm:
        """The arm's part of the table."""
        return self.study.table.arms[self.name]

    @property
    def folder(self) -> Path:
        """Folder of the arm's training and evaluations."""
        return self.study.place(self.name, self.seed)

    def flow(self, part: Test) -> rg.Workflow:
        """Load the arm's spec, or that of a test of its weights."""
        return rg.open_source(self.study.source(self.name, part, self.seed))

    def run(self) -> None:
        """Do what is left of the job, and write its JSON file; a job that has one is done."""
        file, anywhere = self.folder.with_suffix(".json"), Path()
        named = rg.open_source(self.study.source(self.name, self.arm, self.seed, anywhere))
        if file.exists():
            if Run.model_validate_json(file.read_bytes()).hash != named.hash:
                message = (
                    f"{file} is of another spec; remove the file and its folder, or choose another --out"
                )
                raise rg.UsageError(message)
            return
        click.echo(f"{self.name}, seed {self.seed} …", err=True)
        measure = {"rolegraph": trained, "rllm": trained_by_rllm, "none": untrained}[self.arm.trainer]
        measured = measure(self, self.flow(self.arm))
        done = Run(hash=named.hash, overrides=named.source.overrides, **measured)
        whole = file.with_suffix(".part")  # a killed command leaves no half of a JSON file
        whole.write_text(done.model_dump_json(indent=1) + "\n", encoding="utf-8")
        whole.replace(file)


def untrained(job: Job, flow: rg.Workflow) -> dict[str, Any]:
    """Run a spec as it is on the validation tasks, and return the fields of a `Run`."""
    place = rg.RunFolder(job.folder)
    if place.info_file.exists():
        made = rg.RunJob.resume(place.path, flow.source, seed=job.seed)
    else:
        size: dict[str, Any] = {"limit": job.study.tasks, "rollouts": job.study.rollouts}
        made = rg.RunJob.create(flow, "validation", seed=job.seed, out=place.path, **size)
    asyncio.run(made.run())
    return {
        "values": {"": by_task(rg.read_episodes(place.episodes), job.arm.figure or job.study.table.figure)},
        "calls_per_episode": costs(rg.read_episodes(place.episodes))[0] / made.episodes,
    }


def trained(job: Job, flow: rg.Workflow) -> dict[str, Any]:
    """Train a spec, evaluate its weights, and return the fields of a `Run`."""
    place = rg.RunFolder(job.folder / "train")
    if place.info_file.exists():
        training = rg.TrainingJob.resume(place.path, flow.source, seed=job.seed)
    else:
        training = rg.TrainingJob.create(flow, out=place.path, seed=job.seed)
    result = asyncio.run(training.run())
    values, own = figures(job.study.table, result.metrics), 0.0
    size: dict[str, Any] = {"tasks": job.study.tasks, "rollouts": job.study.rollouts, "seed": job.seed}
    for name, test in job.study.evaluations(job.name).items():
        out, figure = job.folder / (name or "own"), test.figure or job.study.table.figure
        made = rg.EvaluationJob.create(job.flow(test), result.best, out=out, resume=True, **size)
        asyncio.run(made.run())
        base, after = (side.folder.episodes for side in made.sides)
        values[name] = by_task(rg.read_episodes(after), figure)
        values[f"{name}.start".lstrip(".")] = by_task(rg.read_episodes(base), figure)
        if not name:
            own = costs(rg.read_episodes(after))[0] / made.sides[1].episodes
    steps = (rg.read_episodes(file) for _, file in place.episodes_files("train"))
    calls, tokens = costs(episode for step in steps for episode in step)
    minutes = sum(line.get("time/step", 0.0) for line in result.metrics) / 60
    return {"values": values, "minutes": minutes, "calls": calls, "tokens": tokens, "calls_per_episode": own}


def trained_by_rllm(job: Job, flow: rg.Workflow) -> dict[str, Any]:
    """Train a spec with rLLM's AgentTrainer, and return the fields of a `Run` that it prints."""
    from rllm_learning import train, write_rllm_run

    place = rg.RunFolder(job.folder / "metrics")
    shutil.rmtree(job.folder, ignore_errors=True)  # rLLM's training starts anew
    words = (*flow.source.overrides, "--seed", str(job.seed), "--trainer", "rllm", "--backend", "tinker")
    printed, seconds = train(job.folder / "train", flow.source.named_spec, words)
    write_rllm_run(place.path, flow.name, job.seed, printed)
    return {"values": figures(job.study.table, place.metrics()), "minutes": seconds / 60}


def figures(table: Table, lines: Sequence[Mapping[str, float]]) -> dict[str, ByTask]:
    """Return the table's figures of a training that has their metrics."""
    found: dict[str, ByTask] = {}
    for name, wanted in table.metrics.items():
        ((function, metric),) = wanted.items()
        if values := [line[metric] for line in lines if metric in line]:
            found[name] = {"": OVER_STEPS[function](values)}
    return found


def by_task(episodes: Iterable[rg.Episode], figure: str) -> ByTask:
    """Return the mean of `correct` or of a metric over each task's episodes that have it."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        value = float(episode.is_correct) if figure == "correct" else episode.metrics.get(figure)
        if value is not None:
            found.setdefault(episode.task_id, []).append(value)
    return {task: statistics.fmean(values) for task, values in sorted(found.items())}


def costs(episodes: Iterable[rg.Episode]) -> tuple[int, int]:
    """Count the model calls of episodes, and their prompt and response tokens."""
    steps = [s for episode in episodes for t in episode.trajectories for s in t.steps if not s.tool]
    return len(steps), sum(step.prompt_tokens + step.response_tokens for step in steps)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("names", nargs=-1, metavar="[TABLE]…")
@click.option("--seeds", type=click.IntRange(min=1), help="How many of the table's seeds to run.")
@click.option("--arm", "arms", multiple=True, help="Run this arm only; may be given again.")
@click.option("--tiny", is_flag=True, help="One step on two tasks.")
@click.option("--paper-size", is_flag=True, help="With the overrides for the paper's size.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; by default runs/results, or -tiny.")
@click.option("--page", type=click.Path(path_type=Path), help="Page to write; by default OUT/results.md.")
def main(
    names: tuple[str, ...],
    seeds: int | None,
    arms: tuple[str, ...],
    tiny: bool,
    paper_size: bool,
    out: Path | None,
    page: Path | None,
) -> None:
    rg.keep_services(KEEP_SECONDS)
    # Runs of one size are never compared with those of another.
    out = out or Path(f"runs/results{'-paper-size' * paper_size}{'-tiny' * tiny}")
    failed = False
    for name in names:
        study = Study(name, out, tiny=tiny, full=paper_size)
        for seed in study.table.seeds[:seeds]:
            for arm in arms or study.table.arms:
                try:
                    Job(study, arm, seed).run()
                # The other arms can still be measured.
                except (rg.RolegraphError, click.ClickException) as error:
                    failed = True
                    click.echo(f"{name}: {arm}, seed {seed}: {error}", err=True)
    write_page([Study(file.stem, out) for file in sorted(HERE.glob("*.yaml"))], page or out / "results.md")
    sys.exit(failed)


if __name__ == "__main__":
    main()
