"""`rolegraph optimize`: the prompts of a workflow's roles, evolved by reflection, in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rolegraph.api import jobs
from rolegraph.api.workflow import Workflow, open_source
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Models, Services
from rolegraph.engine.records import RUNS, Note, Observer, Task, confined
from rolegraph.engine.records.confined import make_folder, write_whole
from rolegraph.engine.records.data import DATA_FILE, UsedRows, check_data, write_data
from rolegraph.engine.records.jsonl import read_record, write_record
from rolegraph.engine.records.ownership import FolderKind
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary import Split
from rolegraph.engine.vocabulary.imports import require_library
from rolegraph.integrations.gepa.page import OptimizationRecord, optimization_page
from rolegraph.integrations.gepa.reflecting import Search, identity, reflecting_model
from rolegraph.integrations.gepa.reflection import SearchPlan, own_templates, scores_of
from rolegraph.starter.starting import SPEC, spec_files

SETTINGS, RESULT, PAGE = "optimization.json", "result.json", "optimization.html"
"""Files in the folder of an optimization; the result is written last."""
OPTIMIZED = "optimized.yaml"
"""Name of the spec file with the best templates; the spec extends the original, which is copied beside it
with prompts and rows.
"""
OPTIMIZATION = FolderKind("an optimization", {SETTINGS: itemgetter("spec", "reflector", "templates")})
"""Kind of folder that holds an optimization, recognized by its settings file."""


@dataclass(frozen=True, slots=True)
class OptimizationResult:
    """The folder of a finished optimization."""

    folder: Path

    @property
    def record(self) -> OptimizationRecord:
        """Candidates with their scores, and the number of episodes and reflections used."""
        return read_record(self.folder / RESULT, OptimizationRecord.model_validate, "a valid optimization")

    @property
    def spec(self) -> Path:
        """Path of a spec that extends the old one, with the templates of the best candidate."""
        return self.folder / OPTIMIZED

    @property
    def page(self) -> Path:
        """Path of the page with the Pareto front, which opens without a network."""
        return self.folder / PAGE


@dataclass(frozen=True, slots=True)
class OptimizationJob:
    """Optimization that is ready to start or to continue; `create` makes it, `run` carries it out."""

    flow: Workflow
    plan: SearchPlan
    settings: dict[str, Any]
    """Content of `optimization.json`: settings that must not change when an optimization is continued."""
    reflector: ModelRef
    reflect_url: str | None

    @classmethod
    def create(
        cls,
        flow: Workflow,
        *,
        reflect_with: str | None = None,
        reflect_url: str | None = None,
        budget: int = 500,
        tasks: int = 32,
        rollouts: int = 2,
        roles: Iterable[str] = (),
        score: str | None = None,
        seed: int = 0,
        out: str | Path | None = None,
    ) -> OptimizationJob:
        """Prepare an optimization without writing files or calling a model.

        The arguments and errors are those of `optimize_async`.
        """
        flow.check_allowed()
        reflector = reflecting_model(flow.plan, reflect_with, reflect_url)
        require_library("gepa", "optimize", "optimizations")
        allowed, scores, wanted = [role.name for role in flow.plan.asking], scores_of(flow.plan), list(roles)
        for name in wanted:
            if name not in allowed:
                raise UsageError(f"{name!r} is no role with a prompt; expected one of {', '.join(allowed)}")
        if score not in (None, *scores):
            raise UsageError(f"{score!r} is no figure of {flow.name}; expected one of {', '.join(scores)}")
        templates = own_templates(flow.plan).items()
        chosen = {name: text for name, text in templates if name.partition(".")[0] in (wanted or allowed)}
        train: Split = "train" if "train" in flow.plan.data else "validation"
        validation: Split = "validation" if "validation" in flow.plan.data else "train"
        plan = SearchPlan(
            workflow=flow.plan,
            source=flow.source,
            folder=Path(out) if out else RUNS / f"{flow.name}-optimize",
            templates=chosen,
            train=[(train, task) for task in flow.tasks(train, tasks)],
            validation=[(validation, task) for task in flow.tasks(validation, tasks)],
            budget=budget,
            rollouts=rollouts,
            score=score or scores[0],
            seed=seed,
        )
        if budget < plan.least:
            raise UsageError(
                f"a budget of {budget} episodes is too small: the spec's own prompts and one candidate take "
                f"{plan.least} ({len(plan.validation)} validation tasks twice, {plan.minibatch} training "
                f"tasks twice, × {rollouts} rollouts); raise --budget, or lower --tasks or --rollouts"
            )
        settings = {"spec": flow.hash, "reflector": str(reflector), "templates": [*chosen], "tasks": tasks}
        settings |= {"rollouts": rollouts, "score": plan.score, "seed": seed}
        job = cls(flow, plan, settings, reflector, reflect_url)
        job.check_folder()
        return job

    def check_folder(self) -> None:
        """Raise UsageError if the folder holds files that are no optimization with these settings and
        rows."""
        folder = self.plan.folder
        OPTIMIZATION.check(folder)
        if not (folder / SETTINGS).exists():
            return
        parse = TypeAdapter(dict[str, Any]).validate_python
        saved_settings = read_record(folder / SETTINGS, parse, "a valid optimization")
        for name, new_value in self.settings.items():
            if (old_value := saved_settings.get(name)) != new_value:
                difference = "another spec" if name == "spec" else f"{name} {old_value}, not {new_value}"
                raise UsageError(f"{folder} was started with {difference}; choose another folder with --out")
        check_data(folder / DATA_FILE, self.data)

    @property
    def data(self) -> Sequence[UsedRows]:
        """Rows that the optimization uses; those of one split if the spec has only one."""
        tasks_by_split: dict[Split, list[Task]] = {
            pairs[0][0]: [task for _, task in pairs] for pairs in (self.plan.train, self.plan.validation)
        }
        return [jobs.used_rows(self.flow, split, tasks) for split, tasks in tasks_by_split.items()]

    async def run(self, observe: Observer | None = None, *, concurrency: int = 64) -> OptimizationResult:
        """Search for better templates, and write the best ones as a spec.

        Args:
            observe: Function that is called with each event, such as an episode that is on disk.
            concurrency: Largest number of episodes in flight.

        Returns:
            The optimization's folder.

        Raises:
            UsageError: No such model, no key for the model, or another process writes in the folder.
            WorldError: A model's endpoint does not answer, or the disk is full.
        """
        plan, folder = self.plan, self.plan.folder
        result = OptimizationResult(folder)
        with sole_writer(folder, OPTIMIZATION, confined.below(folder)):
            self.check_folder()
            if (folder / RESULT).exists() and result.record.budget == plan.budget:
                return result
            write_whole(folder / SETTINGS, json.dumps(self.settings, indent=1).encode())
            write_data(folder / DATA_FILE, self.data)
            # The old spec with its prompts and rows, so that both it and the new one can be moved.
            for name, content in spec_files(plan.workflow, plan.source).items():
                make_folder((folder / name).parent)
                write_whole(folder / name, content)
            url = self.reflect_url or plan.source.base_url
            with (
                jobs.logged(folder / "log.txt", observe or jobs.ignore_event) as notify,
                Services(url) as services,
            ):
                notify(Note("starting the models …"))
                async with self.flow.open() as open_flow, services.watched(), Models(services.open) as models:
                    reflector = await models.model(self.reflector)
                    search = Search(plan, open_flow, reflector, notify, concurrency)
                    record = await search.result()
            _write_result(plan, record)
        return result


async def optimize_async(
    flow: Workflow,
    *,
    reflect_with: str | None = None,
    reflect_url: str | None = None,
    budget: int = 500,
    tasks: int = 32,
    rollouts: int = 2,
    roles: Iterable[str] = (),
    score: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    concurrency: int = 64,
    observe: Observer | None = None,
) -> OptimizationResult:
    """Let a model reflect on the episodes of a workflow, and evolve the templates of its roles (GEPA).

    The same call continues a stopped optimization, and runs only the missing episodes and reflections.

    Args:
        flow: The workflow.
        reflect_with: Model that proposes templates, as `openai:NAME`; by default the spec's.
        reflect_url: URL of that model's endpoint.
        budget: Largest number of episodes.
        tasks: Largest number of tasks of each split: training tasks to reflect on, validation tasks to score
            on.
        rollouts: Episodes of each task and candidate, at least 1.
        roles: Roles whose templates change; by default all that ask a model.
        score: Metric to raise: `correct`, `mean reward`, a metric of the spec, or `reward/ROLE`; by default
            `correct`, or `mean reward` where no role can be right.
        seed: Seed of all draws.
        out: Folder of the optimization; by default `runs/NAME-optimize`. A stopped optimization is continued.
        concurrency: Largest number of episodes in flight.
        observe: Function that is called with each event: model calls, notes, episodes that are on disk.

    Returns:
        The folder, with a spec that extends the original and a page of the candidates.

    Raises:
        SpecError: The spec asks for a permission that `allow` does not give.
        UsageError: The extra `optimize` is not installed, the reflecting model cannot reflect, the budget is
            too small, no data, no such role or model, no key, or `out` has other settings.
        WorldError: A model's endpoint does not answer, or the disk is full.
    """
    job = OptimizationJob.create(
        flow,
        reflect_with=reflect_with,
        reflect_url=reflect_url,
        budget=budget,
        tasks=tasks,
        rollouts=rollouts,
        roles=roles,
        score=score,
        seed=seed,
        out=out,
    )
    return await job.run(observe, concurrency=concurrency)


optimize = jobs.blocking(optimize_async)


def _write_result(plan: SearchPlan, record: OptimizationRecord) -> None:
    """Write the best candidate as a spec, the page, and last the record."""
    first_candidate, best = record.candidates[0], record.candidates[record.best]
    roles: dict[str, dict[str, str]] = {}
    make_folder(plan.folder / "prompts")
    for name in best.changes(first_candidate):
        role, _, part = name.partition(".")
        j2_file = f"{name}-{identity(best.templates)}.j2"  # the old spec may be the result of an optimization
        write_whole(plan.folder / "prompts" / j2_file, best.templates[name].encode())
        roles.setdefault(role, {})[part] = j2_file
    spec = {"extends": SPEC, "name": f"{record.name}_optimized", "roles": roles}
    j2_file = plan.folder / OPTIMIZED
    write_whole(j2_file, dump_yaml(spec).encode())
    open_source(replace(plan.source, spec=str(j2_file), overrides=(), model=None, base_url=None))
    write_whole(plan.folder / PAGE, optimization_page(record).encode("utf-8", "replace"))
    write_record(plan.folder / RESULT, record)
