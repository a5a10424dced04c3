"""The files of benchmarks/results/: what a table claims, what it runs, and the files of its runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

import rolegraph as rg
from rolegraph import api
from rolegraph.api.jobs import templates_of
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.weights import digest
from rolegraph.engine.shipped import MODELS, model_folder

HERE = Path(__file__).parent / "results"
ALLOWED = ("python",)
"""Permissions: the fixed players of games are programs in the specs beside the tables."""
TINY = (
    "train.steps=1",
    "train.batch_size=2",
    "train.rollouts=2",
    "train.validation={every: 0, tasks: 2, rollouts: 1}",
    "sampling.max_tokens=16",
)
WINDOW = 5
"""Steps over which a curve is smoothed before its peak and its end are read: one step is mostly noise."""

LOOKS = (3, 6, 9, 12)
"""Numbers of seeds at which a claim is judged, until it is decided: the sequential rule of `Findings`."""

ByTask = dict[str, float]
"""Mean of a figure over a task's episodes, by task; a figure of a whole training has the one task ''."""


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the means of each `WINDOW` values in a row, or of all values where there are fewer."""
    last = max(len(values) - WINDOW, 0)
    return [statistics.fmean(values[at : at + WINDOW]) for at in range(last + 1)]


OVER_STEPS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "peak": lambda values: max(smoothed(values)),
    "drop": lambda values: max(smoothed(values)) - smoothed(values)[-1],
    "spike": lambda values: max(values) / (statistics.median(values) or 1.0),
    "spread": lambda values: statistics.pstdev(values) / (statistics.fmean(values) or 1.0),
    "mean": statistics.fmean,
}
"""Figures of a training from a metric's values in its steps: `peak` of the smoothed curve, `drop` from there
to its end, `spike` the maximum over the median, `spread` the standard deviation over the mean."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(_Part):
    """Source of a claim: the models that it used, and the numbers that it reports."""

    title: str
    url: str
    models: str
    numbers: dict[str, float | str]


class Test(_Part):
    """Spec in which weights are evaluated."""

    spec: str
    set: tuple[str, ...] = ()
    figure: str = ""
    """Metric of the spec, or `correct`; by default the table's figure."""


class Arm(Test):
    """Spec that is trained, or run as it is.

    `{ARM}` in an override stands for the folder of an earlier arm's training. The arm's figure is read from
    the validations before and after the training, unless `test_spec` or `test` name another evaluation.
    """

    about: str = ""
    trainer: Literal["rolegraph", "rllm", "none"] = "rolegraph"
    test_spec: str = ""
    """Spec of the evaluation; by default the arm's own."""
    test: tuple[str, ...] = ()
    """Overrides of the evaluation, beside those of `set` where the spec is the arm's own."""


class FullSize(_Part):
    """Overrides that run the arms at the paper's size."""

    set: tuple[str, ...]
    arms: dict[str, tuple[str, ...]] = {}
    """Further overrides of single arms."""
    rllm: dict[str, Literal["tinker", "verl"]] = {}
    """Arms that rLLM can train, too, each with the backend."""


class Table(_Part):
    """One claim of a paper, and what measures it here."""

    title: str
    claim: str
    papers: tuple[Paper, ...] = ()
    setting: str
    """Task and roles of our measurement, and where it differs from the paper's."""
    minutes: float
    """Estimated minutes of one seed on two cores."""
    figure: str = "correct"
    model: str = ""
    """Model of every arm, such as `local:smollm2-135m`; by default the shipped one."""
    label: str = ""
    """Field of the tasks that holds the right answer, for the best constant answer."""
    arms: dict[str, Arm]
    settings: dict[str, tuple[str, ...]] = {}
    """Overrides by name; each arm is trained with each of them, as `ARM@NAME`."""
    tests: dict[str, Test] = {}
    """Further evaluations of every trained arm."""
    metrics: dict[str, dict[str, str]] = {}
    """Figures of every training: by name a function of `OVER_STEPS` and its metric. A name that ends with `/`
    stands for all metrics below it; the figure is the largest of theirs."""
    expect: dict[str, str] = {}
    """Comparisons that the claim predicts, `a > b` or `a ~ b`, each in words; one that fails refutes it."""
    equal_calls: tuple[str, ...] = ()
    """Comparisons of a team with a single role that makes as many model calls."""
    set: tuple[str, ...] = ()
    """Overrides of every arm."""
    tasks: int = 128
    rollouts: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of a table that repeats no paper; a claim has those of `LOOKS`."""
    paper_size: FullSize | None = None

    @classmethod
    def read(cls, name: str) -> Table:
        """Read `benchmarks/results/NAME.yaml`."""
        table = cls.model_validate(yaml.safe_load((HERE / f"{name}.yaml").read_text("utf-8")))
        crossed = {
            f"{arm}@{setting}": part.model_copy(update={"set": (*part.set, *words)})
            for arm, part in table.arms.items()
            for setting, words in table.settings.items()
        }
        seeds = tuple(range(LOOKS[-1])) if table.papers else table.seeds
        return table.model_copy(update={"arms": crossed or table.arms, "seeds": seeds})


class Run(_Part):
    """Line of a table's file: one arm with one seed."""

    arm: str
    seed: int
    work: str
    """Name of the folder of its training or run: spec, hash of the spec, digest of the model, seed."""
    measured_as: str = ""
    """That name when it was measured; empty where the spec is written as it was."""
    overrides: tuple[str, ...]
    values: dict[str, ByTask]
    """Figures: '' is the arm's own, `start` the untrained model's; then tests and metrics by their names.

    In a table with a `label`, `constant` is the best constant answer's, and `greedy.start` the untrained
    model's at temperature 0."""
    minutes: float = 0.0
    """Minutes of the training with its validations; 0 where nothing is trained."""
    cpu_minutes: float = 0.0
    """CPU minutes of the training with its validations, of all its processes; 0 where it was resumed."""
    memory: float = 0.0
    """Peak in GB of its service, or of a service before it in one command; 0 where it was resumed."""
    calls: int = 0
    """Model calls of the training; 0 where nothing is trained, or the trainer does not tell."""
    tokens: int = 0
    """Prompt and response tokens of these calls."""
    calls_per_episode: float = 0.0
    """Model calls of an episode in the arm's evaluation; 0 where the trainer does not tell."""


class Study:
    """One table with its options, and the folder of its runs.

    Args:
        name: Name of the table's file.
        out: Folder of all results.
        tiny: Whether to take one step on two tasks, and no more.
        full: Whether to run at the paper's size.

    Raises:
        UsageError: The table has no paper, and `full` is set.
    """

    def __init__(self, name: str, out: Path, *, tiny: bool = False, full: bool = False) -> None:
        self.name, self.table, self.out = name, Table.read(name), out.resolve()
        size = self.table.paper_size if full else None
        if full and size is None:
            raise rg.UsageError(f"{name} repeats no paper; leave --paper-size out")
        self.extra = (*(size.set if size else ()), *(TINY if tiny else ()))
        for arm, words in (size.arms if size else {}).items():
            own = self.table.arms[arm]
            self.table.arms[arm] = own.model_copy(update={"set": (*own.set, *words)})
        self.tasks, self.rollouts = (2, 1) if tiny else (self.table.tasks, self.table.rollouts)

    def source(self, part: Test, seed: int, root: Path | None = None) -> api.Source:
        """Return the spec of an arm or of an evaluation, with its overrides.

        Trainings of other arms are looked for in `root`, by default the folder of all runs.
        """
        words = [*part.set, *self.extra]
        if isinstance(part, Arm):
            words = [*self.table.set, *words]
        if self.table.model:
            words = [f"model={self.table.model}", *words]
        for name, arm in self.table.arms.items():
            if any(f"{{{name}}}" in word for word in words):
                folder = (self.out if root is None else root) / "trainings" / self.work(arm, seed)
                words = [word.replace(f"{{{name}}}", str(folder)) for word in words]
        own = HERE / "specs" / f"{part.spec}.yaml"
        return api.Source.of(own if own.exists() else part.spec, *words, allow=ALLOWED)

    def sources_of_weights(self, name: str) -> set[str]:
        """Return the earlier arms whose trainings an arm's overrides name."""
        words = self.table.arms[name].set
        return {other for other in self.table.arms if any(f"{{{other}}}" in word for word in words)}

    def work(self, part: Test, seed: int) -> str:
        """Name the folder of a training or run: tables that run the same spec share it, wherever it is.

        The workflow's own hash covers the code of its rewards and tools as well, which may be put in other
        words between two evenings of measuring; here spec, templates and model count.
        """
        flow = api.open_source(self.source(part, seed, Path()))
        spec = json.dumps([flow.plan.resolved, templates_of(flow.plan)], sort_keys=True)
        return f"{part.spec}-{sha256(spec.encode()).hexdigest()[:12]}-{self.weights}-{seed}"

    @property
    def weights(self) -> str:
        """Digest of a shipped model's weights; the name of another model, which may not be installed."""
        folder = model_folder(self.table.model)
        return digest(folder)[:8] if folder in MODELS.values() else folder.name

    def evaluations(self, name: str) -> dict[str, Test]:
        """Return what an arm's weights are evaluated in besides the training: '' is the arm's own figure."""
        arm = self.table.arms[name]
        if not (arm.test or arm.test_spec):
            return self.table.tests
        words = arm.test if arm.test_spec else (*self.table.set, *arm.set, *arm.test)
        return {"": Test(spec=arm.test_spec or arm.spec, set=words, figure=arm.figure), **self.table.tests}

    @property
    def file(self) -> Path:
        """The file of the table's finished runs, one a line."""
        return self.out / f"{self.name}.jsonl"

    def runs(self) -> dict[tuple[str, int], Run]:
        """Read the finished runs by arm and seed."""
        lines = self.file.read_bytes().splitlines() if self.file.exists() else []
        return {(run.arm, run.seed): run for run in map(Run.model_validate_json, lines)}

    def keep(self, *runs: Run) -> None:
        """Add runs to the table's file, in the place of those of the same arm and seed."""
        kept = {**self.runs(), **{(run.arm, run.seed): run for run in runs}}
        lines = (f"{kept[key].model_dump_json()}\n" for key in sorted(kept))
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, "".join(lines).encode())
