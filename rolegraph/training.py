"""`rolegraph train`: every trainable role of a workflow, as its spec's `train` says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.records import (
    MAIN,
    Checkpoint,
    Control,
    Event,
    Note,
    Observer,
    RunFolder,
    RunInfo,
    StepLogged,
    Task,
    derive_seed,
    read_episodes,
)
from rolegraph.engine.records.folder import newest
from rolegraph.engine.spec import load_spec
from rolegraph.engine.training.schedule import planned_steps, validation_tasks
from rolegraph.engine.training.trackers import Tracker, TrackerName, open_tracker
from rolegraph.run_log import logged
from rolegraph.running import RUNS, blocking, command_line, describe, load_begun, new_folder, nobody
from rolegraph.workflow import Workflow


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A training's folder, when the training is over."""

    folder: Path

    @property
    def best(self) -> str:
        """The weights whose validation was best, as `evaluate` and a spec's `model.checkpoint` take them.

        The folder of a run on this machine, which holds them; else a tinker:// path.
        """
        return RunFolder(self.folder).weights_to_sample()

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """Oldest first."""
        return RunFolder(self.folder).checkpoints()

    @property
    def metrics(self) -> Sequence[Mapping[str, float]]:
        """A mapping for each step; that of step 0 is the validation before training."""
        return RunFolder(self.folder).metrics()

    @property
    def controls(self) -> Sequence[Control]:
        """What the trained workflow is compared with; nothing without validation data."""
        return RunFolder(self.folder).controls()

    @property
    def report(self) -> Path:
        """The run as a page that opens offline."""
        return RunFolder(self.folder).report


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training that is about to begin, or to go on; see `begin_training`."""

    flow: Workflow
    folder: RunFolder
    info: RunInfo
    tasks: Sequence[Task]
    start: Checkpoint | None
    """Where it goes on; None is the beginning."""
    resumed: bool

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return self.info.steps

    @property
    def done(self) -> int:
        """How many of them are done."""
        return self.start.step if self.start else 0

    async def run(self, observe: Observer | None = None, track: Sequence[TrackerName] = ()) -> TrainingResult:
        """Train to the last step; raises as `train` does."""
        if self.done < self.steps:
            await _run(self, observe or nobody, track)
        return TrainingResult(self.folder.path)


async def train_async(
    flow: Workflow,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    track: Sequence[TrackerName] = (),
    observe: Observer | None = None,
) -> TrainingResult:
    """Train every trainable role of a workflow, and leave metrics, episodes, checkpoints and a report.

    `seed` is of data order, draws and new adapters. `track` sends metrics to tensorboard or wandb as well;
    `observe` hears of each step, of each model call and episode in it, and of what goes on between. Raises
    SpecError (a role that cannot learn), UsageError and WorldError. What was saved stays usable, also where
    it is cancelled, and `resume_training` goes on from it.
    """
    return await begin_training(flow, out=out, seed=seed).run(observe, track)


train = blocking(train_async)


def begin_training(flow: Workflow, *, out: str | Path | None = None, seed: int = 0) -> TrainingJob:
    """What `train` is about to do, before any of it is done: arguments and errors as there."""
    folder = RunFolder(Path(out) if out else new_folder(flow.name))
    folder.check_new("train")
    return _training(flow, folder, seed, resumed=False)


def resume_training(
    out: str | Path | None = None,
    spec: str | Path | None = None,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
) -> TrainingJob:
    """A training that goes on at its last checkpoint, with the seed it had; `run` it.

    The newest one in `runs/` (of `spec`) unless its folder `out` is named. What is not given is as it began;
    raises UsageError where that makes it another spec.
    """
    folder = RunFolder(Path(out)) if out else newest(RUNS, load_spec(spec).spec.name if spec else None)
    begun = folder.training()
    flow = load_begun(begun, spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    return _training(flow, folder, begun.seed, resumed=True)


def _training(flow: Workflow, folder: RunFolder, seed: int, *, resumed: bool) -> TrainingJob:
    flow.check_allowed()
    if any(training_findings(flow.plan)):
        flow.source.check(training_findings).valid()  # raises, with their places
    tasks = flow.tasks("train")
    steps = planned_steps(flow.plan.spec.train, len(tasks))
    info = describe(flow, "train", seed=seed).model_copy(update={"steps": steps})
    start = None
    if resumed:
        folder.check_same(info, flow.plan.resolved)
        start = folder.rewind()
    return TrainingJob(flow, folder, info, tasks, start, resumed)


async def _run(training: TrainingJob, observe: Observer, track: Sequence[TrackerName]) -> None:
    from rolegraph.engine.models import Models, Services
    from rolegraph.engine.run import Isolation

    plan, folder, info, start = training.flow.plan, training.folder, training.info, training.start
    async with AsyncExitStack() as stack:
        config = info.model_dump(mode="json", exclude={"templates"}, exclude_defaults=True)
        trackers = [open_tracker(name, folder.path, plan.name, config) for name in track]
        for tracker in trackers:
            stack.callback(tracker.close)
        observe(Note("starting the model …"))
        services = stack.enter_context(Services(training.flow.source.base_url, folder.weights))
        located = await asyncio.gather(
            *(services.located(policy.model, to_train=True) for policy in plan.policies.values())
        )
        # The SDK takes seconds to import: the service has been starting meanwhile.
        from rolegraph.engine.training import loop
        from rolegraph.engine.training.policies import Policies, PolicyStart
        from rolegraph.engine.training.rollouts import TrainingSetup

        starts = {
            name: PolicyStart(
                served,
                policy.lora,
                info.seed if name == MAIN else derive_seed(info.seed, "policy", name),
                start.policies[name] if start else None,
            )
            for (name, policy), served in zip(plan.policies.items(), located, strict=True)
        }
        policies = await stack.enter_async_context(Policies.open(starts))
        models = await stack.enter_async_context(Models(services.open))
        frozen = {e.model: await models.model(e.model) for e in plan.endpoints if e.policy is None}
        teachers = {
            signal.teacher: await models.teacher(signal.teacher, policies.chat(policy), role)
            for role, signal in plan.signals.items()
            if signal.teacher is not None
            for policy in plan.policies_of(role)
        }
        if training.resumed:
            folder.resume(command_line())
        else:
            names = dict.fromkeys(policies.model(name) for name in plan.policies)
            folder.begin(info.model_copy(update={"model": ", ".join(names)}), plan.resolved)
        told = stack.enter_context(logged(folder.log, command_line(), observe))
        setup = TrainingSetup(
            plan=plan,
            seed=info.seed,
            steps=info.steps,
            tasks=training.tasks,
            validation_tasks=validation_tasks(plan),
            policies=policies,
            models=frozen | teachers,
            isolation=await stack.enter_async_context(Isolation(plan.imports)),
            folder=folder,
            observe=partial(_hear, told, trackers),
        )
        with folder.ending():
            try:
                await loop.train(setup, start)
            except BaseException:
                with contextlib.suppress(RolegraphError):  # what ended the run is what the person should see
                    await asyncio.to_thread(_conclude, plan, folder, info.steps)
                raise
            await asyncio.to_thread(_conclude, plan, folder, info.steps)


def _hear(observe: Observer, trackers: Sequence[Tracker], event: Event) -> None:
    """Passes on what happens, and each step's metrics to the trackers as well."""
    if isinstance(event, StepLogged):
        for tracker in trackers:
            tracker.log(event.step, event.metrics)
    observe(event)


def _conclude(plan: Plan, folder: RunFolder, steps: int) -> None:
    """What is there after a run, finished or not: the controls and the report."""
    from rolegraph.engine.report import write_report
    from rolegraph.engine.training.compare import controls

    first, last = (folder.episodes_file("validation", step) for step in (0, steps))
    if first.exists() and last.exists():
        folder.write_controls(controls(plan, [*read_episodes(first)], [*read_episodes(last)]))
    if folder.metrics_file.exists():
        write_report(folder.path)
