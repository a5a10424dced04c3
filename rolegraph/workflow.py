"""A spec, ready to run: loaded and checked, then opened on its models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegraph.engine.compile import CompileResult, Further, Plan, check_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec import load_spec
from rolegraph.engine.vocabulary import Dataset, Split, import_file

if TYPE_CHECKING:
    from rolegraph.engine.compile import Endpoint
    from rolegraph.engine.models import LimitedModel, Models
    from rolegraph.engine.records import Episode, Observer, Task
    from rolegraph.engine.run import Isolation


@dataclass(frozen=True, slots=True)
class Source:
    """What a workflow was loaded from; the fields are the arguments of `load`."""

    spec: str
    overrides: tuple[str, ...] = ()
    model: str | None = None
    base_url: str | None = None
    imports: tuple[str | Path, ...] = ()
    allow: tuple[str, ...] = ()

    def check(self, further: Further | None = None, *, runs: bool = False) -> CompileResult:
        """The plan, or every fault; `further` holds it against more than the language. Raises UsageError.

        What is not allowed is a warning, and a fault where it `runs` now.
        """
        imported = [import_file(Path(file)) for file in self.imports]
        return check_file(
            self.spec,
            self.overrides,
            further,
            model=self.model,
            base_url=self.base_url,
            imports=imported,
            allow=self.allow,
            runs=runs,
        )


@dataclass(frozen=True, slots=True)
class Workflow:
    """A spec without fault. See `load`."""

    plan: Plan
    """What the spec comes to: its roles, its DAG, its data."""
    source: Source

    @property
    def name(self) -> str:
        """As the spec gives it."""
        return self.plan.name

    @property
    def hash(self) -> str:
        """Hex digest over the spec, its templates, the vocabulary it uses and the files imported for it."""
        return self.plan.hash

    def tasks(self, split: Split | None = None, limit: int | None = None) -> list[Task]:
        """The tasks of a split, at most `limit` of them. Raises UsageError for a split that is not there.

        By default those of the validation, else those of the training.
        """
        return list(self.dataset(split).rows(limit))

    def dataset(self, split: Split | None = None) -> Dataset:
        """Where `tasks` come from."""
        data = self.plan.data
        wanted: Split = split or ("validation" if "validation" in data else "train")
        if wanted not in data:
            raise UsageError(
                f"the spec {self.name} has no {wanted} data; add `data: {{{wanted}: …}}`, such as a .jsonl "
                "file"
            )
        return data[wanted]

    def check_allowed(self) -> None:
        """Raises SpecError where the spec asks for what `load` was not told to allow, with the places."""
        if self.plan.withheld:
            self.source.check(runs=True).valid()

    def open(
        self, model: str | None = None, *, base_url: str | None = None
    ) -> AbstractAsyncContextManager[OpenWorkflow]:
        """The workflow on its models, for the time of an `async with`; services that it started end with it.

        `model` and `base_url` go before the spec's, as in `load`. Raises SpecError, UsageError (no key, no
        such model) and WorldError (nothing answers).
        """
        self.check_allowed()
        if model is None and base_url is None:
            return _open(self)
        source = self.source
        changed = replace(source, model=model or source.model, base_url=base_url or source.base_url)
        return _open(Workflow(changed.check().valid(), changed))


class OpenWorkflow:
    """A workflow whose models are open."""

    def __init__(
        self, flow: Workflow, models: Models, table: Sequence[LimitedModel], isolation: Isolation
    ) -> None:
        self.flow = flow
        self._models, self._table, self._isolation = models, table, isolation

    async def trained(self, checkpoint: str | Path) -> OpenWorkflow:
        """The same with trained weights: roles that are not trained answer as before.

        `checkpoint` is a training's folder, for its best weights of each policy, or a tinker:// path where
        one policy is trained. Raises UsageError.
        """
        from rolegraph.engine.records import PolicyPath

        path, policies = str(checkpoint), self.flow.plan.policies
        of_training = PolicyPath.parse(path)
        if of_training is None and len(policies) > 1:
            raise UsageError(
                f"{self.flow.name} trains {', '.join(policies)}, and {path} is of one policy; give the "
                "folder of a training"
            )
        endpoints: list[Endpoint] = []
        for endpoint in self.flow.plan.endpoints:
            if endpoint.policy is not None:
                of_policy = of_training and of_training._replace(policy=of_training.policy or endpoint.policy)
                model = endpoint.model.model_copy(update={"checkpoint": str(of_policy or path)})
                endpoint = endpoint._replace(model=model)
            endpoints.append(endpoint)
        table = await self._models.table(endpoints)
        return OpenWorkflow(self.flow, self._models, table, self._isolation)

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
        """Episodes as they finish: `rollouts` of each task, those of a `split` or the given `tasks`.

        Those that are `finished`, by their task's id and their rollout, are not run again. At most
        `concurrency` are in flight. The same seed and model give the same episodes. Leaving the loop
        early cancels what is in flight once the stream is closed. Each task needs an `id`.
        """
        from rolegraph.engine.run import jobs, missing, stream

        rows = self.flow.dataset(split).rows(limit) if tasks is None else _checked(self.flow, tasks)
        return stream(
            self.flow.plan,
            missing(jobs(rows, rollouts, seed), finished),
            self._table,
            isolation=self._isolation,
            concurrency=concurrency,
            observe=observe,
        )

    async def episode(self, task: Task, *, seed: int = 0) -> Episode:
        """One episode on one task: a mapping with the fields that the prompts name."""
        row = {"id": "task", **task}
        async with aclosing(self.stream(tasks=[row], seed=seed, concurrency=1)) as episodes:
            return await anext(episodes)


def load(
    spec: str | Path,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
) -> Workflow:
    """Read and check a spec: a file, or the name of a shipped one.

    Overrides are as on the command line: `roles.solver.count=4`. `model` is `local[:FOLDER]`, `tinker:NAME`,
    `openai:NAME` or `replay:FILE`, and `base_url` the endpoint; they go before the spec's. `imports` are
    Python files that make rewards, parsers and so on known. `allow` is what the spec may use: `python`, or a
    URL and all below it; without it the spec can be looked at, but not run. Raises SpecError with every
    fault, each with its place, and UsageError where there is no such file.
    """
    source = Source(str(spec), overrides, model, base_url, tuple(imports), tuple(allow))
    return Workflow(source.check().valid(), source)


def check(
    spec: str | Path,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    backend: str | None = None,
) -> CompileResult:
    """What `load` would find: the plan, or every fault, and warnings. Raises UsageError for a missing file.

    `backend` adds what that backend of rLLM (or one of your own, as `package.module:Class`) cannot do, or
    would do without a word.
    """
    words, further = overrides, None
    if backend is not None:
        from rolegraph.engine.rllm_bridge.launch import for_backend

        spec_words, _, further = for_backend(backend, overrides)
        words = tuple(spec_words)
    return Source(str(spec), words, model, base_url, tuple(imports), tuple(allow)).check(further)


def shipped_specs() -> dict[str, str]:
    """The specs that come with the package, each with what it says of itself."""
    return {path.stem: load_spec(path).spec.description for path in sorted(SPECS.glob("*.yaml"))}


def json_schema(imports: Iterable[str | Path] = ()) -> dict[str, Any]:
    """The JSON Schema of a spec, with every parser, reward and so on that it may name; see `load` for
    `imports`."""
    from rolegraph.engine.spec.schema import json_schema as schema_of_all

    for file in imports:
        import_file(Path(file))
    return schema_of_all()


@asynccontextmanager
async def _open(flow: Workflow) -> AsyncGenerator[OpenWorkflow, None]:
    from rolegraph.engine.models import Models, Services
    from rolegraph.engine.run import Isolation

    with Services(flow.source.base_url) as services:
        async with Models(services.open) as models, Isolation(flow.plan.imports) as isolation:
            yield OpenWorkflow(flow, models, await models.table(flow.plan.endpoints), isolation)


def _checked(flow: Workflow, tasks: Iterable[Mapping[str, Any]]) -> Iterable[Task]:
    """The tasks, each of which has what the workflow's own have an id for."""
    for task in tasks:
        if "id" not in task:
            raise UsageError(f"a task of {flow.name} has no id: {str(dict(task))[:200]}")
        yield task
