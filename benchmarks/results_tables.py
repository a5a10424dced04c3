"""The files of benchmarks/results/: what a table claims, what it runs, and the JSON files of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

import rolegraph as rg

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

ByTask = dict[str, float]
"""Mean of a figure over a task's episodes, by task; a figure of a whole training has the one task ''."""
OVER_STEPS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "most": max,
    "drop": lambda values: max(values) - values[-1],
    "spike": lambda values: max(values) / (statistics.median(values) or 1.0),
    "larger": lambda values: statistics.fmean(max(value, 1 - value) for value in values),
}
"""Figures of a training from a metric's values in its steps: `drop` is the peak minus the end, `spike` the
peak over the median, `larger` the mean of the larger of two shares of which the metric is one."""


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

    `{ARM}` in an override stands for the folder of an earlier arm's training.
    """

    about: str
    trainer: Literal["rolegraph", "rllm", "none"] = "rolegraph"
    test: tuple[str, ...] = ()
    """Overrides of the evaluation in the arm's own spec, beside those of `set`."""


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
    papers: tuple[Paper, ...]
    setting: str
    """Task and roles of our measurement, and where it differs from the paper's."""
    figure: str
    arms: dict[str, Arm]
    tests: dict[str, Test] = {}
    """Further evaluations of every trained arm."""
    metrics: dict[str, dict[str, str]] = {}
    """Figures of every training: by name a function of `OVER_STEPS` and its metric."""
    expect: dict[str, str]
    """Comparisons that the claim predicts, `a > b` or `a ~ b`, each in words; one that fails refutes it."""
    set: tuple[str, ...] = ()
    """Overrides of every arm."""
    tasks: int = 128
    rollouts: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    paper_size: FullSize

    @classmethod
    def read(cls, name: str) -> Table:
        """Read `benchmarks/results/NAME.yaml`."""
        return cls.model_validate(yaml.safe_load((HERE / f"{name}.yaml").read_text("utf-8")))


class Run(_Part):
    """JSON file of one arm and seed."""

    hash: str
    """Hash of the spec that was trained or run; the same wherever the runs are kept."""
    overrides: tuple[str, ...]
    values: dict[str, ByTask]
    """Figures: '' is the arm's own, `start` the untrained model's; then tests and metrics by their names."""
    minutes: float = 0.0
    """Minutes of the training; 0 where nothing is trained."""
    calls: int = 0
    """Model calls of the training; 0 where nothing is trained, or the trainer does not tell."""
    tokens: int = 0
    """Prompt and response tokens of these calls."""
    calls_per_episode: float = 0.0
    """Model calls of an episode in the arm's own evaluation; 0 where the trainer does not tell."""


class Study:
    """One table with its options, and the folder of its runs.

    Args:
        name: Name of the table's file.
        out: Folder of all results.
        tiny: Whether to take one step on two tasks, and no more.
        full: Whether to run at the paper's size.
    """

    def __init__(self, name: str, out: Path, *, tiny: bool = False, full: bool = False) -> None:
        self.table, self.folder = Table.read(name), (out / name).resolve()
        self.extra = (*(self.table.paper_size.set if full else ()), *(TINY if tiny else ()))
        self.full = self.table.paper_size.arms if full else {}
        self.tasks, self.rollouts = (2, 1) if tiny else (self.table.tasks, self.table.rollouts)

    def source(self, name: str, part: Test, seed: int, root: Path | None = None) -> rg.Source:
        """Return the spec of an arm, or of a test of all arms, with its overrides.

        Trainings of other arms are looked for in `root`, by default the folder of the table's runs.
        """
        root = self.folder if root is None else root
        words = [*part.set, *self.extra]
        if isinstance(part, Arm):
            words = [*self.table.set, *words, *self.full.get(name, ())]
        for arm in self.table.arms:
            words = [word.replace(f"{{{arm}}}", str(root / f"{arm}-{seed}" / "train")) for word in words]
        own = HERE / "specs" / f"{part.spec}.yaml"
        return rg.Source.of(own if own.exists() else part.spec, *words, allow=ALLOWED)

    def evaluations(self, name: str) -> dict[str, Test]:
        """Return what an arm's weights are evaluated in: its own spec, under '', and the table's tests."""
        arm = self.table.arms[name]
        return {"": arm.model_copy(update={"set": (*arm.set, *arm.test)}), **self.table.tests}

    def place(self, arm: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.folder / f"{arm}-{seed}"

    def runs(self, arm: str) -> dict[int, Run]:
        """Read the finished runs of an arm by their seeds."""
        files = {seed: self.folder / f"{arm}-{seed}.json" for seed in self.table.seeds}
        return {seed: Run.model_validate_json(f.read_bytes()) for seed, f in files.items() if f.exists()}
