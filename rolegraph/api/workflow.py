"""Specs that are loaded and checked, and workflows that are opened with their models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegraph.api.arguments import checked
from rolegraph.engine import run
from rolegraph.engine.compile import (
    CompileResult,
    Endpoint,
    Plan,
    check_source,
    data_findings,
    marker_findings,
)
from rolegraph.engine.compile.compiler import PlanCheck
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.models.rates import rate_findings
from rolegraph.engine.plugins import optional_plugin, plugins
from rolegraph.engine.records import PolicyPath, Source, saved_weights
from rolegraph.engine.records.summary import Rows, Summarized, Summary
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec import Finding, coded, load_spec
from rolegraph.engine.vocabulary import Dataset, Split, import_file

if TYPE_CHECKING:
    import networkx as nx

    from rolegraph.engine.models import LimitedModel, Models
    from rolegraph.engine.records import Episode, Observer, Task
    from rolegraph.engine.run import EpisodeJob, EpisodeMaker, Isolation


@dataclass(frozen=True, slots=True, repr=False)
class Workflow(Summarized):
    """A checked spec, ready to run or train; `load` makes it."""

    plan: Plan
    """The compiled spec: its roles, its graph, its data."""
    source: Source
    """The spec's file and the options with which it was loaded."""

    @property
    def name(self) -> str:
        """The spec's `name`."""
        return self.plan.name

    @property
    def hash(self) -> str:
        """Hex digest of the spec, its templates, the vocabulary that it uses and the files imported for
        it."""
        return self.plan.hash

    @property
    def graph(self) -> nx.DiGraph[str]:
        """DAG of an episode's turns as a networkx graph that cannot be changed; an edge leads to each turn
        from each that it waits for.

        Nodes have the names of instances in expressions: `solver[0]`, and `solver[0] round 2` in a later
        round. Its attributes are `role`, `index` and `round` (from 1), `policy`, and the model (`endpoint`).
        """
        return self.plan.graph

    @property
    def is_trainable(self) -> bool:
        """True if `rolegraph train` accepts the workflow, with its roles, models and data."""
        return "train" in self.plan.data and not any(training_findings(self.plan))

    def summary(self) -> Summary:
        """Return the name and a row for each role."""
        rows = [
            (
                role.name,
                role.spec.count,
                ", ".join(role.spec.needs),
                role.spec.reward.name if role.spec.reward else None,
                role.estimator.name if role.estimator else None,
            )
            for role in self.plan.roles
        ]
        title = f"Workflow {self.name} ({self.hash[:8]}): {self.plan.spec.description}".rstrip(": ")
        return Summary(title, ("role", "count", "needs", "reward", "estimator"), rows)

    def tasks(self, split: Split | None = None, limit: int | None = None) -> Rows[Task]:
        """Return the tasks of a split.

        Args:
            split: `train` or `validation`; by default `validation` if the spec has it, else `train`.
            limit: Largest number of tasks, at least 1; None returns all.

        Returns:
            The tasks in the order of the dataset, each a mapping with an `id`.

        Raises:
            UsageError: The spec has no data for the split.
        """
        return Rows(self.dataset(split).rows(limit))

    def dataset(self, split: Split | None = None) -> Dataset:
        """Return the dataset of a split.

        Args:
            split: `train` or `validation`; by default `validation` if the spec has it, else `train`.

        Returns:
            The dataset, whose rows are read on demand.

        Raises:
            UsageError: The spec has no data for the split.
        """
        data = self.plan.data
        wanted_split: Split = split or ("validation" if "validation" in data else "train")
        if wanted_split not in data:
            raise UsageError(
                f"the spec {self.name} has no {wanted_split} data; add `data: {{{wanted_split}: FILE.jsonl}}`"
            )
        return data[wanted_split]

    def check_allowed(self) -> None:
        """Raise SpecError if the spec asks for permissions that `allow` does not give, with the place of
        each."""
        if self.plan.withheld:
            check_source(self.source, runs=True).valid()

    def open(
        self, model: str | None = None, *, base_url: str | None = None
    ) -> AbstractAsyncContextManager[OpenWorkflow]:
        """Open the workflow's models for the time of an `async with` block.

        Args:
            model: Model in place of the spec's: `local[:FOLDER]`, `tinker:NAME`, `openai:NAME` or
                `replay:FILE`.
            base_url: URL of the model's endpoint in place of the spec's.

        Returns:
            A context manager that yields an OpenWorkflow; services that it starts end with the block.

        Raises:
            SpecError: The spec does not fit the model, or asks for a permission that `allow` does not give.
            UsageError: No such model, or no key for it.
            WorldError: The model's endpoint does not answer.
        """
        self.check_allowed()
        options = Source(model=model, base_url=base_url)
        return _open(self if options == Source() else open_source(options.with_defaults(self.source)))


@dataclass(frozen=True, slots=True)
class OpenWorkflow:
    """A workflow whose models are open; `Workflow.open` yields it."""

    flow: Workflow
    _models: Models
    _table: Sequence[LimitedModel]
    _isolation: Isolation

    @property
    def left_out(self) -> Mapping[str, Sequence[str]]:
        """Fields of requests that servers have refused, by model."""
        from rolegraph.engine.models.limit import left_out

        refs = (endpoint.model for endpoint in self.flow.plan.endpoints)
        return left_out(zip(refs, self._table, strict=False))

    async def trained(self, checkpoint: str | Path) -> OpenWorkflow:
        """Return the same workflow with trained weights; roles that are not trained keep their model.

        Args:
            checkpoint: Folder of a training, for the best weights of each policy, or if the workflow trains
                one policy, a `tinker://` path.

        Returns:
            An open workflow, closed together with this one.

        Raises:
            UsageError: There are no such weights, or one path is given for several policies.
        """
        endpoints = endpoints_with(self.flow.plan, str(checkpoint))
        return replace(self, _table=await self._models.table(endpoints))

    async def with_flow(self, flow: Workflow) -> OpenWorkflow:
        """Return another workflow that uses the open models, such as this one with other prompts.

        Args:
            flow: The workflow, with the same imports as this one. Models that are not open yet are opened.

        Returns:
            An open workflow, closed together with this one.

        Raises:
            UsageError: There is no such model, or no key for it.
            WorldError: A model's endpoint does not answer.
        """
        return replace(self, flow=flow, _table=await _checked_table(flow.plan, self._models))

    def stream(
        self,
        split: Split | None = None,
        *,
        limit: int | None = None,
        rollouts: int = 1,
        seed: int = 0,
        tasks: Iterable[Task] | None = None,
        finished: Iterable[tuple[str, int]] = (),
        concurrency: int = 64,
        observe: Observer | None = None,
    ) -> AsyncGenerator[Episode, None]:
        """Yield episodes in the order in which they finish.

        Closing the stream cancels the episodes in flight; to stop early, wrap the stream in
        `contextlib.aclosing`.

        Args:
            split: Split of the tasks, `train` or `validation`; by default `validation` if the spec has it.
            limit: Largest number of tasks; None takes all of the split.
            rollouts: Episodes of each task, at least 1.
            seed: Seed of all draws; the same seed and model give the same episodes.
            tasks: Tasks in place of those of the split, each a mapping with an `id`.
            finished: (task id, rollout from 0) of each episode to leave out.
            concurrency: Largest number of episodes in flight.
            observe: Function that is called with each event, such as the end of a model call.

        Returns:
            A stream of episodes.

        Raises:
            UsageError: The spec has no data for the split, or a task has no `id`.
        """
        rows = self.flow.dataset(split).rows(limit) if tasks is None else check_ids(self.flow, tasks)
        missing_jobs = run.missing(run.jobs(rows, rollouts, seed), finished)
        return run.run_jobs(missing_jobs, partial(self.make, observe=observe), concurrency)

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Run the episode of a job in this process, and return it.

        Args:
            job: A task, a rollout and a seed.
            observe: Function that is called with each event of the episode.

        Returns:
            The episode, even if a role failed.
        """
        table, isolation = self._table, self._isolation
        return await run.run_episode(self.flow.plan, job, table, isolation=isolation, observe=observe)

    async def episode(self, task: Task, *, seed: int = 0) -> Episode:
        """Run one episode on one task, and return it.

        Args:
            task: Mapping with the fields that the prompts read; without an `id`, the id is `task`.
            seed: Seed of all draws.

        Returns:
            The episode, even if a role failed.
        """
        return await self.make(run.EpisodeJob({"id": "task", **task}, seed=seed))


@checked
def load(
    spec: str | Path,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
) -> Workflow:
    """Read and check a spec.

    Args:
        spec: Path of a spec file, or the name of a shipped spec.
        overrides: Changes of the spec's values, each `key.path=value` as in `roles.solver.count=4`.
        model: Model in place of the spec's: `local[:FOLDER]`, `tinker:NAME`, `openai:NAME` or `replay:FILE`.
        base_url: URL of the model's endpoint in place of the spec's.
        imports: Python files that register rewards, parsers and so on.
        allow: Permissions of the spec: `python`, or a URL with everything below it. A spec that asks for more
            can be loaded, but not run.

    Returns:
        The workflow, to be opened, run or trained.

    Raises:
        SpecError: The spec has faults; the error lists each with its place.
        UsageError: A file is missing.
    """
    source = Source.of(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    return open_source(source)


def open_source(source: Source) -> Workflow:
    """Read and check the spec of a source, as `load` does.

    Args:
        source: The spec and its options.

    Returns:
        The workflow.

    Raises:
        SpecError: The spec has faults; the error lists each with its place.
        UsageError: No spec is named, or a file is missing.
    """
    return Workflow(check_source(source).valid(), source)


@checked
def check(
    spec: str | Path,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    backend: str | None = None,
) -> CompileResult:
    """Check a spec, and return every fault and warning instead of raising an error.

    Args:
        spec: Path of a spec file, or the name of a shipped spec.
        overrides: Changes of the spec's values, each `key.path=value`.
        model: Model in place of the spec's, as for `load`.
        base_url: URL of the model's endpoint in place of the spec's.
        imports: Python files that register rewards, parsers and so on.
        allow: Permissions of the spec, as for `load`; a missing permission is a warning.
        backend: Backend of rLLM, or another as `package.module:Class`; adds findings for keys that the
            backend cannot follow or ignores.

    Returns:
        The plan, None if there is a fault, and all diagnostics with their places.

    Raises:
        UsageError: A file is missing, or the backend is unknown.
    """
    source = Source.of(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    return check_for(source, backend)


def check_for(source: Source, backend: str | None) -> CompileResult:
    """Check the spec of a source as `check` does.

    Args:
        source: The spec and its options.
        backend: Backend of rLLM, as for `check`; None checks only the spec.

    Returns:
        The plan, None if there is a fault, and all diagnostics with their places.

    Raises:
        UsageError: No spec is named, a file is missing, or the backend is unknown.
    """
    if backend is None:
        return check_source(source, _findings)
    source, check_plan = _backend_check()(source, backend)
    return check_source(source, lambda plan: chain(_findings(plan), check_plan(plan)))


def _findings(plan: Plan) -> Iterator[Finding]:
    """Yield warnings that only a check gives: they need the data, or would repeat in every run of the
    spec."""
    yield from coded("policy", foreign_findings(plan))
    yield from coded("data", data_findings(plan))
    yield from coded("policy", marker_findings(plan))
    yield from coded("training", rate_findings(plan))


def foreign_findings(plan: Plan) -> Iterator[Finding]:
    """Warn of the roles whose prompts a shipped model does not know."""
    local_models = optional_plugin("models", "local")
    yield from local_models.foreign_findings(plan) if local_models else ()


def spec_source(source: Source, backend: str | None) -> Source:
    """Return a source without overrides that are meant for rLLM's config.

    Args:
        source: The spec and the options it is read with.
        backend: Backend of rLLM, as for `check`; None returns the source unchanged.

    Raises:
        UsageError: The backend is unknown.
    """
    return source if backend is None else _backend_check()(source, backend)[0]


def _backend_check() -> Callable[[Source, str], tuple[Source, PlanCheck]]:
    """Return the check of specs for a trainer's backend; raises UsageError if no package provides one."""
    for check in plugins("backends").values():
        return check
    raise UsageError("no installed package checks specs for a backend")


def other_spec(name: str) -> str:
    """Return a note if a name could mean both a shipped spec and a file of the working folder; else empty.

    Args:
        name: Path of a spec, or the name of a shipped spec, as for `load`.

    Returns:
        A sentence if the shipped spec is used in place of a missing file, or although a file has the same
        name; empty otherwise.
    """
    local_file = Path(f"{name.removesuffix('.yaml')}.yaml")
    shipped_file = SPECS / local_file
    if local_file.parent != Path() or Path(name).is_file() or not shipped_file.is_file():
        return ""
    if local_file.is_file() and not local_file.samefile(shipped_file):
        return f"{name} is the shipped spec; to use the file of this folder, write {local_file}"
    return f"there is no {name} in this folder; the shipped spec is used" if name.endswith(".yaml") else ""


def shipped_specs() -> dict[str, str]:
    """Return the descriptions of the shipped specs, by name."""
    return {path.stem: load_spec(path).spec.description for path in sorted(SPECS.glob("*.yaml"))}


def json_schema(imports: Iterable[str | Path] = ()) -> dict[str, Any]:
    """Return the JSON Schema of a spec, with all parsers, rewards and so on that a spec may name.

    Args:
        imports: Python files that register further rewards, parsers and so on for the schema.

    Returns:
        The schema (draft 7), as a mapping for `json.dump`.

    Raises:
        UsageError: A file is missing or cannot be imported.
    """
    from rolegraph.engine.spec.schema import json_schema as schema_of_all

    for file in imports:
        import_file(Path(file))
    return schema_of_all()


@asynccontextmanager
async def _open(flow: Workflow) -> AsyncGenerator[OpenWorkflow, None]:
    from rolegraph.engine.models import Models, Services

    with Services(flow.source.base_url) as services:
        isolation = run.Isolation(flow.plan.imports)
        async with services.watched(), Models(services.open) as models, isolation:
            yield OpenWorkflow(flow, models, await _checked_table(flow.plan, models), isolation)


async def _checked_table(plan: Plan, models: Models) -> Sequence[LimitedModel]:
    """Open the models of a plan's endpoints; raise UsageError if one cannot score a text for a reward that
    needs it."""
    model_table = await models.table(plan.endpoints)
    if any(role.likelihoods for role in plan.roles):
        from rolegraph.engine.run.likelihood import check_scorers

        await check_scorers(plan, model_table)
    return model_table


@asynccontextmanager
async def open_served_episodes(flow: Workflow) -> AsyncGenerator[EpisodeMaker, None]:
    """Yield a maker of episodes that uses the models which each job names; close it at the end of the
    block."""
    from rolegraph.engine.run.streaming import ServedEpisodes

    async with run.Isolation(flow.plan.imports) as isolation, ServedEpisodes(flow.plan, isolation) as maker:
        yield maker


def endpoints_with(plan: Plan, checkpoint: str) -> list[Endpoint]:
    """Return a plan's endpoints, with the weights of a checkpoint for those that have a policy in training.

    Args:
        plan: The plan.
        checkpoint: Folder of a training, for the best weights of each policy, or a `tinker://` path.

    Raises:
        UsageError: A `tinker://` path is given, but the plan trains several policies.
    """
    policy_path = PolicyPath.parse(checkpoint)
    if policy_path is None and len(plan.policies) > 1:
        fault = f"{plan.name} trains {', '.join(plan.policies)}, and {checkpoint} has one policy"
        saved = saved_weights(checkpoint)
        raise UsageError(f"{fault}; give the folder of a training{f', {saved.run.path}' if saved else ''}")

    def with_weights(endpoint: Endpoint) -> Endpoint:
        if endpoint.policy is None:
            return endpoint
        endpoint_path = policy_path and policy_path._replace(policy=policy_path.policy or endpoint.policy)
        weights = {"checkpoint": str(endpoint_path or checkpoint)}
        return endpoint._replace(model=endpoint.model.model_copy(update=weights))

    return [*map(with_weights, plan.endpoints)]


def check_ids(flow: Workflow, tasks: Iterable[Mapping[str, Any]]) -> Iterable[Task]:
    """Yield tasks; raise UsageError for the first task without an `id` or a field that the spec reads.

    Fields of tasks that replace the spec's data are not checked earlier.
    """
    required_fields = {} if flow.plan.data else flow.plan.named_fields
    for task in tasks:
        if "id" not in task:
            raise UsageError(f"a task of {flow.name} has no id: {str(dict(task))[:200]}")
        for field, spec_place in required_fields.items():
            if field not in task:
                hint = did_you_mean(field, task) or f"it has {', '.join(task)}"
                raise UsageError(
                    f"the task {task['id']!r} has no field {field!r}, which {spec_place} names; {hint}"
                )
        yield task
