"""The shipped workflows and the field's tables in small: trained, measured and held against the papers.

    python benchmarks/results.py smollm2                    # a real model; run `rolegraph fetch` first
    python benchmarks/results.py shipped                    # every shipped spec: before, after, minutes
    python benchmarks/results.py at_grpo                    # 3 to 12 seeds; the same command resumes it
    python benchmarks/results.py at_grpo --seeds 1 --only shared
    python benchmarks/results.py at_grpo --seeds 1 --tiny   # one step on two tasks: does every arm run?
    python benchmarks/results.py --out benchmarks/measured --page docs/results.md  # trains nothing

A run is one arm with one seed: a line of `OUT/TABLE.jsonl`. A run that has its line is not repeated, and the
page is made from these files alone. Trainings and episodes lie in `OUT/trainings/`; tables that train the
same spec share them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from results_page import Findings, write_page
from results_tables import HERE, LOOKS, OVER_STEPS, Arm, ByTask, Run, Study, Table, Test

import rolegraph as rg
from rolegraph import api
from rolegraph.api.evaluation import CONCURRENCY
from rolegraph.local.warm import keep_services

KEEP_SECONDS = 300
"""Time for which the local service stays, so that all arms share one. A larger model's service ends with each
training, whose CPU time and memory are those of its processes."""
GREEDY = "sampling.temperature=0"
SPENT = "spent.json"
"""File in a training's folder: CPU minutes and memory."""
KILOBYTES_OF_GB = 1e6
"""Kilobytes in a GB; Linux counts a process's memory in kilobytes."""


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

    def flow(self, part: Test) -> rg.Workflow:
        """Load the spec of an arm or of an evaluation."""
        return api.open_source(self.study.source(part, self.seed))

    def folder(self, part: Test) -> api.RunFolder:
        """Return the folder of a training or of an evaluation, which other tables may have made."""
        name, is_training = self.study.work(part, self.seed), isinstance(part, Arm) and part.trainer != "none"
        size = "" if is_training else f"-{self.study.tasks}x{self.study.rollouts}"
        return api.RunFolder(self.study.out / "trainings" / f"{name}{size}")

    def run(self) -> None:
        """Do what is left of the job, and keep its figures; a job that has them is done."""
        work = self.study.work(self.arm, self.seed)
        if done := self.study.runs().get((self.name, self.seed)):
            if done.work != work:
                where = f"{self.study.file}: {self.name}, seed {self.seed}"
                raise rg.UsageError(f"{where} is of another spec or model; remove the line")
            return
        click.echo(f"{self.study.name}: {self.name}, seed {self.seed} …", err=True)
        measure = {"rolegraph": trained, "rllm": trained_by_rllm, "none": untrained}[self.arm.trainer]
        overrides = self.study.source(self.arm, self.seed, Path()).overrides
        self.study.keep(Run(arm=self.name, seed=self.seed, work=work, overrides=overrides, **measure(self)))

    def episodes(self, part: Test) -> list[rg.Episode]:
        """Run a spec on the validation tasks, unless that is done, and return the episodes."""
        place, flow = self.folder(part), self.flow(part)
        if not finished(place):
            if place.info_file.exists():
                made = rg.RunJob.resume(place.path, flow.source, seed=self.seed)
            else:
                size: dict[str, Any] = {"limit": self.study.tasks, "rollouts": self.study.rollouts}
                made = rg.RunJob.create(flow, "validation", seed=self.seed, out=place.path, **size)
            asyncio.run(made.run(concurrency=CONCURRENCY))
        episodes = [*rg.read_episodes(place.episodes)]
        check_tools(place, episodes)
        return episodes

    def figure(self, part: Test) -> str:
        """Return the name of an evaluation's figure."""
        return part.figure or self.study.table.figure

    def baselines(self, episodes: Sequence[rg.Episode]) -> dict[str, ByTask]:
        """Return the figures of the best constant answer and of the untrained model at temperature 0.

        Args:
            episodes: Episodes of the test tasks.
        """
        if not self.study.table.label:
            return {}
        arm = self.arm.model_copy(update={"set": (*self.arm.set, GREEDY)})
        greedy = Job(self.study, self.name, 0).episodes(arm)  # seeds draw nothing
        return {
            "constant": best_constant(episodes, self.study.table.label),
            "greedy.start": by_task(greedy, self.figure(arm)),
        }


def check_tools(place: api.RunFolder, episodes: Iterable[rg.Episode]) -> None:
    """Raise UsageError if a tool failed: a fixed player that cannot run makes every opponent look strong.

    Only the first failure of an episode counts. A vote also fails where every voter failed before it, and
    such an episode is a wrong answer.
    """
    for episode in episodes:
        for failure in tuple(episode.metadata.get("failures", ()))[:1]:
            if failure["name"] in ("tool_error", "environment_error"):
                where = f"{place.path}, {episode.id}: {failure['role']}"
                message = f"{where} failed with {failure['name']}: {failure['message']}; remove the folder"
                raise rg.UsageError(message)


def finished(place: api.RunFolder) -> bool:
    """Return whether a training or a run has ended by itself; such a folder is read and not opened again.

    Resuming would refuse the folder if code that the spec names has changed since.
    """
    if not place.info_file.exists() or (info := place.info()).finished is None:
        return False
    if info.kind == "train":
        return info.figures.get("step", 0) >= info.steps
    return info.figures.get("episodes", 0) >= info.rollouts * (info.limit or 1)


def best_constant(episodes: Iterable[rg.Episode], label: str) -> ByTask:
    """Return by task 1.0 where the commonest value of a field is right: the answer that pays most if always
    given."""
    right = {episode.task_id: str(episode.task[label]) for episode in episodes}
    best, _ = Counter(sorted(right.values())).most_common(1)[0]
    return {task: float(answer == best) for task, answer in sorted(right.items())}


def untrained(job: Job) -> dict[str, Any]:
    """Run a spec as it is on the validation tasks, and return the fields of a `Run`."""
    episodes = job.episodes(job.arm)
    return {
        "values": {"": by_task(episodes, job.figure(job.arm))},
        "calls_per_episode": costs(episodes)[0] / len(episodes),
    }


def trained(job: Job) -> dict[str, Any]:
    """Train a spec, evaluate its weights, and return the fields of a `Run`."""
    flow, place = job.flow(job.arm), job.folder(job.arm)
    if not finished(place):
        if resumed := place.info_file.exists():
            training = rg.TrainingJob.resume(place.path, flow.source, seed=job.seed)
        else:
            training = rg.TrainingJob.create(flow, out=place.path, seed=job.seed)
        began = cpu_seconds()
        asyncio.run(training.run())
        if job.study.table.model and not resumed:
            spent = {"cpu_minutes": (cpu_seconds() - began) / 60, "memory": peak_memory()}
            (place.path / SPENT).write_text(json.dumps(spent), encoding="utf-8")
    lines = place.metrics()
    values = figures(job.study.table, lines)
    # The last validation, not the best: the best of several on the tasks that are reported is too good.
    validations = [[*rg.read_episodes(file)] for _, file in place.episodes_files("validation")]
    before, own = validations[0], validations[-1]
    tests = job.study.evaluations(job.name)
    for name, test in tests.items():
        weights = f"policies={{main: {{checkpoint: '{{{job.name}}}'}}}}"
        after = job.episodes(test.model_copy(update={"set": (*test.set, weights)}))
        values[name] = by_task(after, job.figure(test))
        values[f"{name}.start".lstrip(".")] = by_task(job.episodes(test), job.figure(test))
        own = own if name else after
    if "" not in tests:
        values |= {"": by_task(own, job.figure(job.arm)), "start": by_task(before, job.figure(job.arm))}
    steps = (rg.read_episodes(file) for _, file in place.episodes_files("train"))
    calls, tokens = costs(episode for step in steps for episode in step)
    # The validation before the first step is not timed; it takes about as long as the last.
    seconds = sum(line.get("time/step", 0.0) for line in lines)
    seconds += lines[-1].get("time/validate", 0.0)
    spent = place.path / SPENT
    return {
        "values": values | job.baselines(before),
        **(json.loads(spent.read_text("utf-8")) if spent.exists() else {}),
        "minutes": seconds / 60,
        "calls": calls,
        "tokens": tokens,
        "calls_per_episode": costs(own)[0] / len(own),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started and that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both)


def peak_memory() -> float:
    """Return the largest memory in GB of a process that this one started and that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / KILOBYTES_OF_GB


def trained_by_rllm(job: Job) -> dict[str, Any]:
    """Train a spec with rLLM's AgentTrainer, and return the fields of a `Run` that it prints."""
    from rllm_learning import train, write_rllm_run

    flow, folder = job.flow(job.arm), job.study.out / job.study.name / f"{job.name}-{job.seed}"
    place = api.RunFolder(folder / "metrics")
    shutil.rmtree(folder, ignore_errors=True)  # rLLM's training starts anew
    words = (*flow.source.overrides, "--seed", str(job.seed), "--trainer", "rllm", "--backend", "tinker")
    printed, seconds = train(folder / "train", flow.source.named_spec, words)
    write_rllm_run(place.path, flow.name, job.seed, printed)
    return {"values": figures(job.study.table, place.metrics()), "minutes": seconds / 60}


def figures(table: Table, lines: Sequence[Mapping[str, float]]) -> dict[str, ByTask]:
    """Return the table's figures of a training that has their metrics."""
    found: dict[str, ByTask] = {}
    for name, wanted in table.metrics.items():
        ((function, metric),) = wanted.items()
        series: dict[str, list[float]] = {}
        for line in lines:
            for key, value in line.items():
                if key == metric or (metric.endswith("/") and key.startswith(metric)):
                    series.setdefault(key, []).append(value)
        if series:
            found[name] = {"": max(map(OVER_STEPS[function], series.values()))}
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
@click.option("--only", "arms", multiple=True, metavar="ARM", help="Run this arm only; may be given again.")
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
    # Runs of one size are never compared with those of another.
    out = out or Path(f"runs/results{'-paper-size' * paper_size}{'-tiny' * tiny}")
    failed = False
    for name in names:
        try:
            study = Study(name, out, tiny=tiny, full=paper_size)
        except (OSError, rg.UsageError) as error:
            raise click.UsageError(str(error)) from error
        keep_services(0 if study.table.model else KEEP_SECONDS)
        if unknown := sorted({*arms} - {*study.table.arms}):
            raise click.UsageError(f"{name} has no arm {unknown[0]!r}; it has {', '.join(study.table.arms)}")
        if not tiny:
            click.echo(f"{name}: about {study.table.minutes:g} minutes a seed on two cores", err=True)
        chosen = [*(arms or study.table.arms)]
        for place, seed in enumerate(study.table.seeds[:seeds]):
            if place in LOOKS:
                undecided = Findings(study).undecided
                chosen = [arm for arm in chosen if arm in undecided]
            if not chosen:
                found = Findings(study)
                most = max(found.compared(words).seeds for words in study.table.expect)
                click.echo(f"{name}: decided with {most} seeds", err=True)
                break
            for arm in chosen:
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
