"""`-m`: a workflow that is run, trained or evaluated at every point of a grid of overrides, each in a
folder."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from rolegraph.api import jobs
from rolegraph.api.evaluation import EVALUATION, Evaluation, EvaluationJob
from rolegraph.api.running import RunJob
from rolegraph.api.training import TrainingJob
from rolegraph.api.trusting import check_models, resumed_source
from rolegraph.api.workflow import Workflow, open_source
from rolegraph.engine.errors import UsageError
from rolegraph.engine.plugins import optional_plugin
from rolegraph.engine.records import RUNS, Note, Observer, RunFolder, Source, SweepInfo, SweepKind
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.info import source_fields
from rolegraph.engine.records.means import TOKENS_OUT, EqualFigures, means_by_task
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.records.sweep import NAME, SWEEP, newest_sweep, read_sweep, write_sweep
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.spec.sweep import grid_points, point_name, split_seed, varied_overrides
from rolegraph.engine.training.analysis.intervals import Interval, interval, interval_cell
from rolegraph.engine.vocabulary import Split


class SweepSettings(TypedDict, total=False):
    """Settings of every point of a sweep."""

    seed: int
    """Seed of the points without an override `seed=…`; 0 by default."""
    split: Split | None
    """Split of the tasks of runs."""
    limit: int | None
    """Largest number of tasks, for runs and evaluations."""
    rollouts: int
    """Number of episodes of each task, for runs and evaluations; 1 by default."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination of the values of a sweep."""

    overrides: tuple[str, ...]
    """Overrides that differ from those of other points."""
    flow: Workflow
    folder: Path
    info: SweepInfo
    seed: int

    @property
    def name(self) -> str:
        """The name of the point's folder."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """True if nothing is left to do for the point."""
        if self.info.kind == "eval":
            if not (self.folder / EVALUATION).exists():
                return False
            Evaluation.read(self.folder)  # raises DataError
            return all(side.done == side.episodes for side in self._evaluation_job().sides)
        if not self._started or RunFolder(self.folder).info().finished is None:
            return False
        if self.info.kind == "train":
            return RunFolder(self.folder).is_whole()
        job = self._run_job()
        return job.done == job.episodes

    def job(self) -> RunJob | TrainingJob | EvaluationJob:
        """Return the job for what is left of the point.

        Raises:
            UsageError: The point was started with another spec or seed.
        """
        if self.info.kind == "run":
            return self._run_job()
        if self.info.kind == "eval":
            return self._evaluation_job()
        if self._started:
            return TrainingJob.resume(self.folder, self.flow.source, seed=self.seed)
        return TrainingJob.create(self.flow, out=self.folder, seed=self.seed)

    @property
    def _started(self) -> bool:
        return RunFolder(self.folder).info_file.exists()

    def _evaluation_job(self) -> EvaluationJob:
        info, checkpoint = self.info, self.info.checkpoint or ""
        settings: dict[str, Any] = {"tasks": info.limit or 128, "rollouts": info.rollouts, "out": self.folder}
        return EvaluationJob.create(self.flow, checkpoint, seed=self.seed, resume=True, **settings)

    def _run_job(self) -> RunJob:
        settings: dict[str, Any] = self.info.model_dump(include={"split", "limit", "rollouts"})
        if self._started:
            return RunJob.resume(self.folder, self.flow.source, seed=self.seed, **settings)
        return RunJob.create(self.flow, seed=self.seed, out=self.folder, **settings)


class SweepPointFigures(NamedTuple):
    """Metrics of a point of a sweep."""

    name: str
    overrides: Sequence[str]
    """Overrides that distinguish the point from the others."""
    figures: Mapping[str, Interval]
    """Mean over tasks, with its interval, by metric; empty if there are no episodes yet."""


def figures_of_run(folder: Path) -> dict[str, Interval]:
    """Return the metrics of a run with their intervals, by name; of a training, those of its best validation,
    else its last.

    Empty without episodes. Raises UsageError if the folder is not a run's, DataError if it is damaged.
    """
    run = RunFolder(folder)
    rows: list[tuple[str, Mapping[str, float]]] = []
    for _, file in run.compared_files(best=True)[:1]:
        for episode in read_episodes(file):
            token_count = sum(step.response_tokens for t in episode.trajectories for step in t.steps)
            rows.append((episode.task_id, {**episode.figures, TOKENS_OUT: float(token_count)}))
    values = means_by_task(rows)
    names = [name for name in ("correct", *run.info().metrics, TOKENS_OUT) if name in values]
    return {name: interval(values[name]) for name in names}


def metric_names(points: Sequence[SweepPointFigures]) -> list[str]:
    """Return the names of all metrics of the points."""
    return list(dict.fromkeys(name for point in points for name in point.figures))


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult(Summarized):
    """The metrics of a sweep, point by point."""

    folder: Path
    points: Sequence[SweepPointFigures]

    @property
    def picture(self) -> Path:
        """Path of an SVG file with every metric of every point and its interval."""
        return self.folder / "sweep.svg"

    @property
    def figures(self) -> Sequence[str]:
        """Names of the metrics of any point."""

        return metric_names(self.points)

    def summary(self) -> Summary:
        """Return the folder, and a row for each point with its metrics."""
        groups = EqualFigures(self.figures, (point.figures for point in self.points)).groups
        rows = [
            ("\n".join(point.overrides), *(interval_cell(point.figures.get(metric)) for metric, *_ in groups))
            for point in self.points
        ]
        return Summary(f"SweepResult {self.folder}", ("point", *map("\n= ".join, groups)), rows)


@dataclass(frozen=True, slots=True, repr=False)
class SweepJob(Summarized):
    """A sweep that is ready to start or to continue; `create` or `resume` makes it, `run` does it."""

    folder: Path
    info: SweepInfo
    points: Sequence[SweepPoint]
    resumed: bool

    def summary(self) -> Summary:
        """Return the folder, and a row for each point that says if the point is finished."""
        rows = [(point.name, point.finished) for point in self.points]
        return Summary(f"SweepJob {self.folder}", ("point", "finished"), rows)

    @classmethod
    def create(
        cls,
        source: Source,
        kind: SweepKind = "run",
        *,
        out: str | Path | None = None,
        checkpoint: str | Path | None = None,
        **settings: Unpack[SweepSettings],
    ) -> SweepJob:
        """Prepare a new sweep, and check every point; nothing is written yet.

        Args:
            source: The spec; an override may have several values, as in `roles.solver.count=1,2,4`.
            kind: Kind of each point: `run`, `train` or `eval`.
            out: Folder of the sweep; by default `runs/NAME-sweep-TIME`.
            checkpoint: Trained weights, for evaluations.
            settings: Fields of SweepSettings: `seed`, `split`, `limit` and `rollouts`.

        Returns:
            The job.

        Raises:
            SpecError: The spec of a point has faults.
            UsageError: No override has several values, or no checkpoint is named.
        """

        if kind == "eval" and checkpoint is None:
            raise UsageError("a sweep of evaluations needs a checkpoint")
        weights = None if checkpoint is None else str(checkpoint)
        info = SweepInfo(kind=kind, checkpoint=weights, **settings, **source_fields(source))
        return cls._of(Path(out) if out else None, info, resumed=False)

    @classmethod
    def resume(
        cls,
        out: str | Path | None = None,
        *overrides: str,
        kind: SweepKind = "run",
        source: Source | None = None,
        checkpoint: str | Path | None = None,
        **settings: Unpack[SweepSettings],
    ) -> SweepJob:
        """Prepare to continue a sweep; points that are finished are not run again. Nothing is written yet.

        Settings that are not given keep the values with which the sweep was started.

        Args:
            out: Folder of the sweep; by default the newest sweep of the kind in `runs/`, of the spec of
                `source` if it names one.
            overrides: Overrides that replace those of the start, so that a grid can grow.
            kind: Kind of each point: `run`, `train` or `eval`.
            source: Spec and options that replace those of the sweep; the plans of its points must stay the
                same.
            checkpoint: Trained weights, for evaluations; only the sweep's own are accepted.
            settings: Fields of SweepSettings: `split`; `limit` and `rollouts`, larger numbers of which add
                episodes; and `seed`, for which only the sweep's own is accepted.

        Returns:
            The job.

        Raises:
            SpecError: The spec of a point has faults.
            UsageError: There is no such sweep, a point was started with another spec, or the sweep with
                another seed or checkpoint.
            DataError: The folder's `sweep.json` is damaged.
        """
        given_source = source or Source()
        folder = Path(out) if out else newest_sweep(RUNS, kind, given_source.spec)
        info = read_sweep(folder)
        if info.kind != kind:
            raise UsageError(f"{folder} holds a sweep of `rolegraph {info.kind}`, not of `rolegraph {kind}`")
        weights = None if checkpoint is None else str(checkpoint)
        fixed_settings = (("seed", settings.get("seed"), info.seed), ("checkpoint", weights, info.checkpoint))
        for name, new_value, old_value in fixed_settings:
            if new_value not in (None, old_value):
                raise UsageError(f"{folder} was started with the {name} {old_value}, which cannot change")
        given_source = replace(given_source, overrides=overrides or given_source.overrides)
        source = resumed_source(folder, info, given_source)
        job = cls._of(
            folder,
            SweepInfo.model_validate({**info.model_dump(), **settings, **source_fields(source)}),
            resumed=True,
        )
        for point in job.points:
            check_models(folder, info, given_source, point.flow)
            point.job()  # raises where the point was started with another spec or other data
        return job

    @classmethod
    def _of(cls, folder: Path | None, info: SweepInfo, *, resumed: bool) -> SweepJob:
        """Return the job of a sweep with all its points loaded; raise SpecError for the first point with
        faults."""

        @cache
        def loaded(overrides: tuple[str, ...]) -> Workflow:
            """Load a point's workflow, once for all points that differ only by their seed."""
            flow = open_source(replace(info.source, overrides=overrides))
            flow.check_allowed()
            return flow

        grid = grid_points(info.overrides)
        folder = folder or jobs.new_folder(f"{loaded(split_seed(grid[0])[0]).name}-sweep")
        points: list[SweepPoint] = []
        for point in grid:
            overrides, seed = split_seed(point)
            varied = varied_overrides(info.overrides, point)
            seed = info.seed if seed is None else seed
            points.append(SweepPoint(varied, loaded(overrides), folder / point_name(varied), info, seed))
        return cls(folder, info, points, resumed)

    async def run(self, observe: Observer | None = None) -> SweepResult:
        """Run what is left of each point, one point after the other.

        Args:
            observe: Function that is called with each event of each point; a note with the point's name comes
                first.

        Returns:
            The metrics of every point.

        Raises:
            UsageError: As raised by the points' jobs.
            WorldError: As raised by the points' jobs.
        """
        with self.open_folder():
            for point in self.points:
                if not point.finished:
                    (observe or jobs.ignore_event)(Note(point.name))
                    await point.job().run(observe)
            return self.write_results()

    @contextmanager
    def open_folder(self) -> Generator[None]:
        """Lock the sweep's folder for a `with` block, and write `sweep.json`.

        Raises:
            UsageError: Another process has locked the folder, or a new sweep's folder is not empty.
            WorldError: The folder cannot be written.
        """
        files = (self.folder / NAME, SweepResult(self.folder, ()).picture)
        with sole_writer(self.folder, SWEEP, (*files, *(point.folder for point in self.points))):
            if not self.resumed and (self.folder / NAME).exists():
                hint = "go on with --resume, or choose another folder with --out"
                raise UsageError(f"{self.folder} already holds a sweep; {hint}")
            write_sweep(self.folder, self.info)
            yield

    def write_results(self) -> SweepResult:
        """Draw the sweep's picture from the points that have results, and return the metrics of the points.

        Raises:
            DataError: The files of a point are damaged.
            WorldError: The picture cannot be written.
        """

        points: list[SweepPointFigures] = []
        for point in self.points:
            figures = {}
            if self.info.kind == "eval" and point.finished:
                compared_figures = Evaluation.read(point.folder).figures
                figures = {name: row.checkpoint for name, row in compared_figures.items()}
                figures |= {f"{name} change": row.difference for name, row in compared_figures.items()}
            elif RunFolder(point.folder).info_file.exists():
                figures = figures_of_run(point.folder)
            measured_figures = {name: figure for name, figure in figures.items() if figure.n}
            points.append(SweepPointFigures(point.name, point.overrides, measured_figures))
        result = SweepResult(self.folder, points)
        if draw_sweep := optional_plugin("reports", "sweep"):
            write_whole(result.picture, draw_sweep(self.folder.name, points).encode())
        return result


async def sweep_async(
    spec: str | Path,
    *overrides: str,
    kind: SweepKind = "run",
    out: str | Path | None = None,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    checkpoint: str | Path | None = None,
    observe: Observer | None = None,
    **settings: Unpack[SweepSettings],
) -> SweepResult:
    """Run, train or evaluate a workflow at every point of a grid, each in a folder of its own below `out`.

    Every point is checked before the first starts. `SweepJob.resume` continues a sweep that was stopped.

    Args:
        spec: Path of a spec file, or the name of a shipped spec.
        overrides: Overrides as for `load`, where commas outside brackets and quotes separate values:
            `roles.solver.count=1,2,4`. `seed=0,1,2` runs over seeds.
        kind: Kind of each point: `run`, `train` or `eval`.
        out: Folder of the sweep; by default `runs/NAME-sweep-TIME`.
        model: Model in place of the spec's, as for `load`.
        base_url: URL of the model's endpoint in place of the spec's.
        imports: Python files that register rewards, parsers and so on.
        allow: Permissions of the spec, as for `load`.
        checkpoint: Trained weights, for evaluations: a training's folder or a `tinker://` path.
        observe: Function that is called with each event of each point; a note with the point's name comes
            first.
        settings: Further settings of the points, each by keyword: `seed` (0 by default, unless there is an
            override `seed=…`); `split`, the split of runs (`train` or `validation`); `limit`, the largest
            number of tasks of runs and evaluations (128 by default for evaluations); `rollouts`, the episodes
            of each task of runs and evaluations (1 by default).

    Returns:
        The metrics of every point, and the sweep's picture.

    Raises:
        SpecError: The spec of a point has faults.
        UsageError: No override has several values, `out` holds a sweep, or no checkpoint is named.
        WorldError: A model's endpoint does not answer, or the disk is full.
    """
    source = Source.of(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    job = SweepJob.create(source, kind, out=out, checkpoint=checkpoint, **settings)
    return await job.run(observe)


sweep = jobs.blocking(sweep_async)
