"""`-m`: a workflow run, trained or evaluated at every point of a grid of overrides, each in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Note, Observer, RunFolder
from rolegraph.engine.vocabulary import Split
from rolegraph.evaluation import EVALUATION, Evaluation, EvaluationJob, begin_evaluation
from rolegraph.running import RUNS, RunJob, begin_run, blocking, describe, new_folder, nobody, resume_run
from rolegraph.training import TrainingJob, begin_training, resume_training
from rolegraph.workflow import Workflow, load

if TYPE_CHECKING:
    from rolegraph.engine.records.sweep import SweepInfo
    from rolegraph.engine.report.sweep import SweepPointFigures


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination of the values of a sweep."""

    overrides: tuple[str, ...]
    """What sets it apart from the others."""
    flow: Workflow
    folder: Path
    info: SweepInfo
    seed: int

    @property
    def name(self) -> str:
        """As its folder is called."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether nothing of it is left to do."""
        if self.info.kind == "eval":
            return (self.folder / EVALUATION).exists()
        if not self._begun:
            return False
        begun = RunFolder(self.folder).info()
        if self.info.kind == "train":
            return begun.finished is not None and begun.figures.get("step", 0) >= begun.steps
        return begun.finished is not None and self._run().done == self._run().episodes

    def job(self) -> RunJob | TrainingJob | EvaluationJob:
        """What is left to do of it; `run` it."""
        if self.info.kind == "eval":
            return begin_evaluation(
                self.flow,
                self.info.checkpoint or "",
                tasks=self.info.limit or 128,
                rollouts=self.info.rollouts,
                seed=self.seed,
                out=self.folder,
                resume=True,
            )
        if self.info.kind == "run":
            return self._run()
        if self._begun:
            source = self.flow.source
            return resume_training(
                self.folder,
                source.spec,
                *source.overrides,
                model=source.model,
                base_url=source.base_url,
                imports=source.imports,
                allow=source.allow,
            )
        return begin_training(self.flow, out=self.folder, seed=self.seed)

    def check(self) -> None:
        """Raises UsageError where it was begun with another spec, or with another seed."""
        if self._begun:
            now = describe(self.flow, "train" if self.info.kind == "train" else "run", seed=self.seed)
            RunFolder(self.folder).check_same(now, self.flow.plan.resolved)

    @property
    def _begun(self) -> bool:
        return RunFolder(self.folder).info_file.exists()

    def _run(self) -> RunJob:
        info, source = self.info, self.flow.source
        if not self._begun:
            return begin_run(
                self.flow,
                info.split,
                limit=info.limit,
                rollouts=info.rollouts,
                seed=self.seed,
                out=self.folder,
            )
        return resume_run(
            self.folder,
            source.spec,
            *source.overrides,
            model=source.model,
            base_url=source.base_url,
            imports=source.imports,
            allow=source.allow,
            split=info.split,
            limit=info.limit,
            rollouts=info.rollouts,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep came to, point by point."""

    folder: Path
    points: Sequence[SweepPointFigures]

    @property
    def picture(self) -> Path:
        """Every figure of every point, with its interval, as an SVG file."""
        return self.folder / "sweep.svg"

    @property
    def figures(self) -> Sequence[str]:
        """The names of the figures that some point has."""
        from rolegraph.engine.report.sweep import figure_names

        return figure_names(self.points)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """A sweep that is about to begin, or to go on; see `begin_sweep`."""

    folder: Path
    info: SweepInfo
    points: Sequence[SweepPoint]

    async def run(self, observe: Observer | None = None) -> SweepResult:
        """Do what is left of each point, one after the other; raises as each does."""
        for point in self.points:
            if not point.finished:
                (observe or nobody)(Note(point.name))
                await point.job().run(observe)
        return self.close()

    def close(self) -> SweepResult:
        """What the points came to so far, with the picture drawn anew."""
        from rolegraph.engine.limits.records import WHOLE_FILE
        from rolegraph.engine.records.files import read_bytes
        from rolegraph.engine.records.jsonl import write_whole
        from rolegraph.engine.report.sweep import SweepPointFigures, figures_of_run, sweep_picture

        points: list[SweepPointFigures] = []
        for point in self.points:
            figures = {}
            if self.info.kind == "eval" and point.finished:
                read = Evaluation.from_json(read_bytes(point.folder / EVALUATION, WHOLE_FILE))
                figures = {name: row.checkpoint for name, row in read.figures.items()}
                figures |= {f"{name} gained": row.difference for name, row in read.figures.items()}
            elif RunFolder(point.folder).info_file.exists():
                figures = figures_of_run(point.folder)
            points.append(SweepPointFigures(point.name, point.overrides, figures))
        varied_overrides = SweepResult(self.folder, points)
        write_whole(varied_overrides.picture, sweep_picture(self.folder.name, points).encode())
        return varied_overrides


def begin_sweep(
    spec: str | Path,
    *words: str,
    kind: Literal["run", "train", "eval"] = "run",
    out: str | Path | None = None,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    seed: int = 0,
    split: Split | None = None,
    limit: int | None = None,
    rollouts: int = 1,
    checkpoint: str | Path | None = None,
) -> SweepJob:
    """What `sweep` is about to do, before any of it is done: arguments and errors as there."""
    from rolegraph.engine.records.sweep import SweepInfo, write_sweep

    info = SweepInfo(
        kind=kind,
        spec=str(spec),
        words=words,
        model=model,
        base_url=base_url,
        imports=tuple(map(str, imports)),
        allow=tuple(allow),
        seed=seed,
        split=split,
        limit=limit,
        rollouts=rollouts,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )
    if kind == "eval" and checkpoint is None:
        raise UsageError("a sweep of evaluations needs a checkpoint")
    begun = _sweep(Path(out) if out else None, info)
    write_sweep(begun.folder, info)
    return begun


def resume_sweep(
    out: str | Path | None = None, *words: str, kind: Literal["run", "train", "eval"] = "run"
) -> SweepJob:
    """A sweep that goes on: its folder `out`, or the newest of that kind in `runs/`; `run` it.

    Points that are finished are not run again; `words`, where there are any, go before those that it began
    with, so that a grid can grow. Raises UsageError where a point was begun with another spec.
    """
    from rolegraph.engine.records.sweep import newest_sweep, read_sweep, rewrite_sweep

    folder = Path(out) if out else newest_sweep(RUNS, kind)
    info = read_sweep(folder)
    if info.kind != kind:
        raise UsageError(f"{folder} holds a sweep of `rolegraph {info.kind}`, not of `rolegraph {kind}`")
    sweep = _sweep(folder, info.model_copy(update={"words": words}) if words else info)
    for point in sweep.points:
        point.check()
    rewrite_sweep(folder, sweep.info)
    return sweep


async def sweep_async(
    spec: str | Path,
    *words: str,
    kind: Literal["run", "train", "eval"] = "run",
    out: str | Path | None = None,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    seed: int = 0,
    split: Split | None = None,
    limit: int | None = None,
    rollouts: int = 1,
    checkpoint: str | Path | None = None,
    observe: Observer | None = None,
) -> SweepResult:
    """Run, train or evaluate a workflow at every point of a grid, each in a folder of its own below `out`.

    Words are overrides; commas part the values of one, as in `roles.solver.count=1,2,4`, but not in brackets
    and quotes. The word `seed=0,1,2` runs over seeds. The other arguments are those of `run`, `train` and
    `evaluate` (`limit` is its `tasks`). Every point is checked before the first begins. Raises as those do;
    `resume_sweep` goes on from what is there.
    """
    begun = begin_sweep(
        spec,
        *words,
        kind=kind,
        out=out,
        model=model,
        base_url=base_url,
        imports=imports,
        allow=allow,
        seed=seed,
        split=split,
        limit=limit,
        rollouts=rollouts,
        checkpoint=checkpoint,
    )
    return await begun.run(observe)


sweep = blocking(sweep_async)


def _sweep(folder: Path | None, info: SweepInfo) -> SweepJob:
    """The sweep with all its points loaded; raises SpecError for the first that is at fault."""
    from rolegraph.engine.spec.sweep import grid_points, point_name, split_seed, varied_overrides

    @cache
    def loaded(overrides: tuple[str, ...]) -> Workflow:
        """Points that differ by their seed alone share it."""
        flow = load(
            info.spec,
            *overrides,
            model=info.model,
            base_url=info.base_url,
            imports=info.imports,
            allow=info.allow,
        )
        flow.check_allowed()
        return flow

    points = [(varied_overrides(info.words, point), *split_seed(point)) for point in grid_points(info.words)]
    flows = [loaded(overrides) for _, overrides, _ in points]
    where = folder or new_folder(f"{flows[0].name}-sweep")
    made = [
        SweepPoint(own, flow, where / point_name(own), info, info.seed if seed is None else seed)
        for (own, _, seed), flow in zip(points, flows, strict=True)
    ]
    return SweepJob(where, info, made)
