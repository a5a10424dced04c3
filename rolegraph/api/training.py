"""`rolegraph train`: the training of a workflow's roles, in a folder that can be resumed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.api import jobs
from rolegraph.api.recorded import Run
from rolegraph.api.tracking import Table, Tracker, episode_table, tracker
from rolegraph.api.workflow import Workflow, open_served_episodes
from rolegraph.engine.compile import Plan, check_source, few_tasks_message, shared_message
from rolegraph.engine.compile.imitation import demonstration_findings
from rolegraph.engine.compile.leaving import disclosure_rule_of
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.errors import RolegraphError, UsageError, first_line
from rolegraph.engine.models.rates import policy_rates, rate_findings
from rolegraph.engine.plugins import optional_plugin
from rolegraph.engine.records import Event, Note, Observer, RunFolder, Source, StepLogged, Task
from rolegraph.engine.records.data import UsedRows
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.identity import MAIN, derive_seed
from rolegraph.engine.records.info import Checkpoint, RunInfo
from rolegraph.engine.records.ownership import LOCK_FILE
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.loop.ending import NO_BUDGET, Budget
from rolegraph.engine.training.loop.schedule import ValidationSetup, planned_steps, validation_tasks
from rolegraph.engine.vocabulary import shared_rows

if TYPE_CHECKING:
    from rolegraph.engine.models import LimitedModel, Models, Services
    from rolegraph.engine.training.loop.rollouts import RemoteModels, TrainingSetup
    from rolegraph.engine.training.policies.policies import Policies


@dataclass(frozen=True, slots=True, repr=False)
class TrainingJob(Summarized):
    """A training that is ready to start or to continue; `create` or `resume` makes it, `run` does it."""

    flow: Workflow
    folder: RunFolder
    info: RunInfo
    tasks: Sequence[Task]
    """Training tasks."""
    validation: Sequence[Task]
    """Validation tasks; empty if the spec has no such data, or if other workflows validate."""
    start: Checkpoint | None
    """Checkpoint to continue from; None for a training from the beginning."""
    resumed: bool
    others: Sequence[ValidationSetup] = ()
    """Workflows that validate in place of the training's own."""

    @classmethod
    def create(cls, flow: Workflow, *, out: str | Path | None = None, seed: int = 0) -> TrainingJob:
        """Prepare a new training; nothing is written yet.

        Args:
            flow: The workflow; its spec's `train` says how it is trained.
            out: Folder of the training; by default `runs/NAME-TIME`.
            seed: Seed of the order of the data, of all draws and of new adapters.

        Returns:
            The job.

        Raises:
            SpecError: A role cannot learn, or the spec asks for a permission that `allow` does not give.
            UsageError: The folder holds a run, or the spec has no training data.
        """
        folder = RunFolder(Path(out) if out else jobs.new_folder(flow.name))
        folder.check_new("train")
        info, *tasks = _info_and_tasks(flow, seed)
        other_validations = _validations(flow, folder)
        return cls(flow, folder, info, *tasks, start=None, resumed=False, others=other_validations)

    @classmethod
    def resume(
        cls, out: str | Path | None = None, source: Source | None = None, *, seed: int | None = None
    ) -> TrainingJob:
        """Prepare to continue a training from its last checkpoint, with the seed that it was started with.

        Everything after the checkpoint is removed from the folder when the job runs.

        Args:
            out: Folder of the training; by default the newest training in `runs/`, of the spec of `source` if
                it names one.
            source: Spec and options that replace those of the training; the plan must stay the same.
            seed: Seed of all draws; only the training's own is accepted.

        Returns:
            The job.

        Raises:
            SpecError: The spec has faults, a role cannot learn, or a permission is missing.
            UsageError: There is no such training, or it was started with another spec or seed.
        """
        folder = jobs.folder_to_resume(out, source, "train")
        old_info = folder.training()
        flow = jobs.flow_to_resume(folder, old_info, source, seed)
        with jobs.damage_explained(folder):
            folder.metrics()  # `run` reads them, once models have started
            start = folder.last_checkpoint()
        info, *tasks = _info_and_tasks(flow, old_info.seed)
        kept_settings = {"learning_rates": old_info.learning_rates or info.learning_rates}
        if old_info.stopped:
            kept_settings |= {"steps": old_info.steps}
        info = info.model_copy(update=kept_settings)
        other_validations = _validations(flow, folder)
        job = cls(flow, folder, info, *tasks, start=start, resumed=True, others=other_validations)
        folder.check_same(job.info, flow.plan.resolved, job.data)
        for validation in other_validations:
            new_info, rows = _info_and_rows(job, validation)
            validation.folder.check_same(new_info, validation.plan.resolved, rows)
        return job

    def summary(self) -> Summary:
        """Return the folder, and the numbers of planned and of finished steps."""
        rows = [("steps", self.steps), ("done", self.done)]
        return Summary(f"TrainingJob {self.folder.path}", ("", "number"), rows)

    @property
    def data(self) -> Sequence[UsedRows]:
        """Rows that the training uses."""
        return jobs.training_rows(self.flow, self.tasks, self.validation)

    @property
    def validations(self) -> Sequence[ValidationSetup]:
        """Workflows that validate: the training's own if it has validation tasks, or others in its place."""
        own_setup = ValidationSetup(self.flow.plan, self.validation, self.folder)
        return self.others or ([own_setup] if self.validation else [])

    @property
    def plans(self) -> list[Plan]:
        """Plans of the training and of the workflows that validate it."""
        return [self.flow.plan, *self.flow.plan.validations.values()]

    @property
    def untrained(self) -> list[ModelRef]:
        """Models of the endpoints without a policy in training."""
        return [it.model for plan in self.plans for it in plan.endpoints if it.policy is None]

    @property
    def steps(self) -> int:
        """Number of training steps of the whole training."""
        return self.info.steps

    @property
    def done(self) -> int:
        """Number of finished training steps."""
        return self.start.whole_steps if self.start else 0

    async def run(
        self,
        observe: Observer | None = None,
        track: Sequence[str] = (),
        *,
        rollouts_on: str | None = None,
        keep_going: bool = False,
        budget: Budget = NO_BUDGET,
    ) -> Run:
        """Train to the last step, or to the step that `train.stop` or the budget ends the training with.

        Args:
            observe: Function that is called with each event, such as the metrics of a step.
            track: Trackers that metrics are sent to: `tensorboard`, `wandb`, `mlflow`, `trackio`; all but the
                first get tables of episodes and the report as well.
            rollouts_on: Cluster that makes the episodes: `ray`, `ray://HOST:PORT` or the `HOST:PORT` of a Ray
                cluster, whose nodes reach the service that trains; None makes them in this process.
            keep_going: True to go on after a step in which every answer of a role failed in the same way.
            budget: Tokens, time or dollars that this call may use; `resume` continues a training that the
                budget ended.

        Returns:
            The training's folder.

        Raises:
            UsageError: No such model, no key for it, or a tracker or Ray is not installed.
            FailedRole: Every answer of a role failed in the same way in a step.
            WorldError: The service or the cluster does not answer, or the disk is full.
        """
        if rollouts_on is not None and self.flow.plan.spec.train.sample_from is not None:
            raise UsageError("train.sample_from and rollouts on a cluster exclude each other; leave one out")
        if budget.dollars is not None and (unpriced := _unpriced(self.flow.plan)):
            prices = " ".join(f"{key}.price='{{prompt: 0.4, response: 1.2, train: 2}}'" for key in unpriced)
            raise UsageError(f"a budget in dollars needs the price of each trained model, as in {prices}")
        if self.done < self.steps:
            await self._run(observe or jobs.ignore_event, track, rollouts_on, keep_going, budget)
            return Run(self.folder.path)
        is_whole = self.folder.is_whole()  # else it was killed after the last checkpoint
        if not is_whole or (self.folder.path / LOCK_FILE).exists():  # a killed command's lock
            with sole_writer(self.folder.path, RUN, self.folder.written()):
                if not is_whole:
                    with self.folder.ending():
                        _write_results(self.flow.plan, self.folder)
        return Run(self.folder.path)

    async def _run(
        self, observe: Observer, track: Sequence[str], cluster: str | None, keep_going: bool, budget: Budget
    ) -> None:
        """Lock the folder, open trackers, policies, models and workers, and train; everything is closed at
        the end."""
        from rolegraph.engine.models import Services
        from rolegraph.engine.models.limit import left_out
        from rolegraph.engine.run import Isolation

        async with AsyncExitStack() as stack:
            _lock_folder(self, stack)
            trackers = _open_trackers(self, track, stack)
            observe(Note("starting the model …"))
            services = stack.enter_context(Services(self.flow.source.base_url, self.folder.weights))
            policies = await _open_policies(self, services, stack)
            models = await _open_models(self, services, policies, stack)
            _write_start(self, policies)
            notify = stack.enter_context(jobs.logged(self.folder.log, observe))
            for warning in _warnings(self):
                notify(Note(warning, "warning"))
            workers = None
            if cluster is not None:
                workers = await _open_workers(self, cluster, services, policies, notify, stack)
            imports = dict.fromkeys(file for plan in self.plans for file in plan.imports)
            isolation = await stack.enter_async_context(Isolation(tuple(imports)))
            from rolegraph.engine.training.loop.rollouts import TrainingSetup
            from rolegraph.engine.training.policies.past import PastSelves

            setup = TrainingSetup(
                plan=self.flow.plan,
                seed=self.info.seed,
                steps=self.steps,
                tasks=self.tasks,
                validations=self.validations,
                rates=self.info.learning_rates,
                policies=policies,
                past=PastSelves(self.flow.plan.past, policies, self.start),
                models=models,
                isolation=isolation,
                folder=self.folder,
                observe=partial(_track, notify, trackers, self),
                remote=workers,
                keep_going=keep_going,
                budget=budget,
            )
            try:
                await _train(setup, self.start, trackers, notify)
            finally:
                self.folder.add_left_out(left_out(models.items()))


async def train_async(
    flow: Workflow,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    track: Sequence[str] = (),
    observe: Observer | None = None,
    rollouts_on: str | None = None,
    keep_going: bool = False,
    budget: str | None = None,
    progress: bool = True,
) -> Run:
    """Train every trainable role of a workflow, as its spec's `train` says.

    The folder gets metrics, episodes, checkpoints and a report. A training that is cancelled keeps them;
    `TrainingJob.resume` continues it from the last checkpoint.

    Args:
        flow: The workflow.
        out: Folder of the training; by default `runs/NAME-TIME`.
        seed: Seed of the order of the data, of all draws and of new adapters.
        track: Trackers that metrics are sent to: `tensorboard`, `wandb`, `mlflow`, `trackio`; all but the
            first get tables of episodes and the report as well.
        observe: Function that is called with each event: model calls, notes, episodes, metrics of a step.
        rollouts_on: Cluster that makes the episodes, as for `TrainingJob.run`.
        keep_going: True to go on after a step in which every answer of a role failed in the same way.
        budget: Tokens, time or dollars that this call may use, such as `2M-tokens`, `30m` or `$5`. The
            training ends with the step after which another one would pass it; `TrainingJob.resume`
            continues it.
        progress: True to show a progress bar in a terminal and in a notebook.

    Returns:
        The training's folder, with its best weights, checkpoints and metrics.

    Raises:
        SpecError: A role cannot learn, or the spec asks for a permission that `allow` does not give.
        UsageError: The folder holds a run, no training data, no such model, or no key for it.
        FailedRole: Every answer of a role failed in the same way in a step.
        WorldError: The service does not answer, or the disk is full.
    """
    limit = Budget.parse(budget)
    job = TrainingJob.create(flow, out=out, seed=seed)
    with jobs.shown_progress(observe, progress, job.steps) as observer:
        return await job.run(observer, track, rollouts_on=rollouts_on, keep_going=keep_going, budget=limit)


train = jobs.blocking(train_async)


def _validations(flow: Workflow, folder: RunFolder) -> list[ValidationSetup]:
    """Return the validation workflows that replace the training's own, with their tasks."""
    plan, count = flow.plan, flow.plan.spec.train.validation.tasks
    return [
        ValidationSetup(
            other, validation_tasks(other, count), RunFolder(folder.validated / other.name), prefix
        )
        for prefix, other in (plan.validating if plan.validations else ())
    ]


def _info_and_rows(job: TrainingJob, it: ValidationSetup) -> tuple[RunInfo, list[UsedRows]]:
    """Return (RunInfo for the folder of a workflow that validates, rows that the workflow uses)."""
    flow = replace(job.flow, plan=it.plan)
    info = jobs.describe(flow, "train", seed=job.info.seed)
    return info, [jobs.used_rows(flow, "validation", it.tasks)]


def _info_and_tasks(flow: Workflow, seed: int) -> tuple[RunInfo, list[Task], list[Task]]:
    """Check that a workflow can be trained; return (RunInfo, training tasks, validation tasks)."""
    flow.check_allowed()
    if any(training_findings(flow.plan)):
        check_source(flow.source, training_findings).valid()  # raises SpecError with the places
    tasks = flow.tasks("train")
    find_unfit = partial(demonstration_findings, rows=tasks)
    if any(find_unfit(flow.plan)):
        check_source(flow.source, find_unfit).valid()
    rates = {name: rate.value for name, rate in policy_rates(flow.plan).items()}
    steps = planned_steps(flow.plan.spec.train, len(tasks))
    info = jobs.describe(flow, "train", seed=seed, steps=steps, learning_rates=rates)
    return info, tasks, validation_tasks(flow.plan)


def _lock_folder(job: TrainingJob, stack: AsyncExitStack) -> None:
    """Lock a job's folder until `stack` closes; raise UsageError if the folder has changed since the job was
    created."""
    stack.enter_context(sole_writer(job.folder.path, RUN, job.folder.written()))
    if not job.resumed:
        job.folder.check_new("train")
    elif job.folder.last_checkpoint() != job.start:
        raise jobs.changed(job.folder)


def _open_trackers(job: TrainingJob, names: Sequence[str], stack: AsyncExitStack) -> list[Tracker]:
    """Start a run of the training in each tracker."""
    config = job.info.model_dump(mode="json", exclude={"templates"}, exclude_defaults=True)
    return [stack.enter_context(tracker(name, job.folder.path, job.flow.plan.name, config)) for name in names]


async def _open_policies(job: TrainingJob, services: Services, stack: AsyncExitStack) -> Policies:
    """Open the training clients of a job's policies, at the weights of its checkpoint."""
    from rolegraph.engine.models import ServedModel

    plan, seed, start = job.flow.plan, job.info.seed, job.start
    served_models = await asyncio.gather(
        *(services.located(policy.model, to_train=True) for policy in plan.policies.values())
    )
    await stack.enter_async_context(services.watched())
    # The SDK takes seconds to import, so it is imported while the service starts.
    from rolegraph.engine.training.policies.policies import Policies, PolicyStart

    starts = {
        name: PolicyStart(
            start_model,
            policy.lora,
            seed if name == MAIN else derive_seed(seed, "policy", name),
            start.policies[name] if start else None,
            sample_from=ServedModel(server) if (server := plan.spec.train.sample_from) else None,
            adapters=job.folder.adapters,
        )
        for (name, policy), start_model in zip(plan.policies.items(), served_models, strict=True)
    }
    policies = await stack.enter_async_context(Policies.open(starts))
    policies.check(plan)
    return policies


async def _open_models(
    job: TrainingJob, services: Services, policies: Policies, stack: AsyncExitStack
) -> dict[ModelRef, LimitedModel]:
    """Open the models of the endpoints without a policy, and those of the teachers."""
    from rolegraph.engine.models import Models

    models = await stack.enter_async_context(Models(services.open))
    frozen_models = {ref: await models.model(ref) for ref in job.untrained}
    return frozen_models | await _open_teachers(job.flow.plan, models, policies)


def _write_start(job: TrainingJob, policies: Policies) -> None:
    """Write the start of a training into its folder; for a resumed training, first remove everything after
    the checkpoint."""
    plan, folder = job.flow.plan, job.folder
    if job.resumed:
        folder.rewind()
        folder.resume(jobs.command_line(), plan.resolved, data=job.data)
        for it in job.others:
            it.folder.resume(jobs.command_line(), it.plan.resolved, data=_info_and_rows(job, it)[1])
        return
    # A service that is asked for no model by name serves one of its own choice.
    names = dict.fromkeys(
        jobs.model_name(policy.model)
        if policy.model.name or policy.model.provider == "local"
        else policies[name].model
        for name, policy in plan.policies.items()
    )
    run_fields = {"model": ", ".join(names)}
    for it in job.others:  # before the training's own file, which lists them
        info, rows = _info_and_rows(job, it)
        it.folder.begin(info.model_copy(update=run_fields), it.plan.resolved, rows)
    folder.begin(job.info.model_copy(update=run_fields), plan.resolved, job.data)


def _unpriced(plan: Plan) -> list[str]:
    """Return the spec's key of each trained model without a price."""
    unpriced = [name for name, policy in plan.policies.items() if policy.model.price is None]
    keys = {name: f"policies.{name}.model" for name, policy in plan.spec.policies.items() if policy.model}
    return [*dict.fromkeys(keys.get(name, "model") for name in unpriced)]


def _warnings(job: TrainingJob) -> Iterator[str]:
    """Yield the warnings about a training's data, learning rates and prompts."""
    plan = job.flow.plan
    if prompt_warning := jobs.foreign_prompts(plan):
        yield prompt_warning
    for tasks in [validation.tasks for validation in job.validations] or [()]:
        if few_tasks_warning := few_tasks_message(plan, len(tasks)):
            yield few_tasks_warning
        if shared_warning := shared_rows(job.tasks, tasks):
            yield shared_message(shared_warning)
    for finding in rate_findings(plan):
        yield f"{finding.message}; {finding.hint}"


async def _open_workers(
    job: TrainingJob, name: str, services: Services, policies: Policies, log: Observer, stack: AsyncExitStack
) -> RemoteModels:
    """Open the workers of a cluster, which make the episodes.

    Args:
        job: The training.
        name: Address of the cluster.
        services: Local services, which the workers reach.
        policies: The policies in training.
        log: Observer of the workers' events.
        stack: Stack that closes the workers.
    """
    from rolegraph.engine.training.loop.rollouts import RemoteModels

    opener = partial(open_served_episodes, job.flow)
    # As many episodes on a node as its model takes calls; a batch is spread over the nodes evenly.
    slots = job.flow.plan.spec.model.concurrency
    pool = jobs.open_cluster(name)(opener, name, slots=slots, observe=log)
    maker = await stack.enter_async_context(pool)
    served_models = {ref: await services.located(ref) for ref in job.untrained}
    return RemoteModels(maker, policies, served_models, job.flow.plan.spec.train.staleness)


async def _train(
    setup: TrainingSetup, start: Checkpoint | None, trackers: list[Tracker], notify: Observer
) -> None:
    """Run the training loop, then write the results, even if the training fails or is cancelled."""
    from rolegraph.engine.training.loop import loop

    async def write_results() -> None:
        await asyncio.to_thread(_write_results, setup.plan, setup.folder)
        if setup.folder.report.exists():
            _send(notify, trackers, lambda one: one.add_file(setup.folder.report))

    with setup.folder.ending():
        try:
            await loop.train(setup, start)
        except BaseException:
            with contextlib.suppress(RolegraphError):  # the first error is the one to report
                await write_results()
            raise
        await write_results()


async def _open_teachers(plan: Plan, models: Models, trained: Policies) -> dict[ModelRef, LimitedModel]:
    """Open the models of the teachers; raise UsageError for a teacher with another vocabulary than its
    student's."""
    from rolegraph.engine.models.opening import other_vocabulary

    teacher_models: dict[ModelRef, LimitedModel] = {}
    for role, signal in plan.signals.items():
        for teacher in signal.all_teachers:
            for student in sorted(plan.policies_of(role)):
                chat = trained[student].chat
                if teacher.model is not None:
                    teacher_models[teacher.model] = await models.teacher(teacher.model, chat, role)
                elif not trained[teacher.policy or student].chat.same_tokens(chat):
                    raise UsageError(other_vocabulary(role))
    return teacher_models


def _track(observe: Observer, trackers: list[Tracker], job: TrainingJob, event: Event) -> None:
    """Pass an event to `observe`; for a finished step, log its metrics and episodes to the trackers first."""
    if isinstance(event, StepLogged) and trackers:
        tables: dict[str, Table] = {}
        episode_files = [("train", job.folder.episodes_file("train", event.step), job.flow.plan)]
        for validation in job.validations:
            file = validation.folder.episodes_file("validation", event.step)
            episode_files.append((f"validation/{validation.prefix}".rstrip("/"), file, validation.plan))
        for name, file, plan in episode_files if any(tracker_.has_tables for tracker_ in trackers) else ():
            if file.exists():
                tables[f"episodes/{name}"] = episode_table(read_episodes(file), disclosure_rule_of(plan))
        _send(observe, trackers, lambda one: one.log(event.step, event.metrics, tables))
    observe(event)


def _send(observe: Observer, trackers: list[Tracker], send: Callable[[Tracker], None]) -> None:
    """Call `send` with each tracker; a tracker that raises an error is removed, with a warning."""
    for tracker_ in [*trackers]:
        try:
            send(tracker_)
        except Exception as error:  # a tracker's library may raise anything
            trackers.remove(tracker_)
            warning = f"{tracker_.name} failed, and gets nothing more of this training: {first_line(error)}"
            observe(Note(warning, "warning"))


def _write_results(plan: Plan, folder: RunFolder) -> None:
    """Write the report into a training's folder, and `controls.json` if the start and the last checkpoint
    were validated.

    If several workflows validate, the first is used.
    """
    from rolegraph.engine.training.analysis.compare import controls

    last_checkpoint, validation = folder.last_checkpoint(), folder.validation
    steps = (0, last_checkpoint.step if last_checkpoint else 0)
    first_file, last_file = (validation.episodes_file("validation", step) for step in steps)
    if last_checkpoint and first_file.exists() and last_file.exists():
        plan_ = plan.validating[0][1]
        folder.write_controls(controls(plan_, [*read_episodes(first_file)], [*read_episodes(last_file)]))
    if folder.metrics_file.exists() and (write_report := optional_plugin("reports", "train")):
        write_report(folder.path)
