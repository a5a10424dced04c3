"""Training loop: rollouts → groups → advantages → forward_backward → optim_step → new weights → validation.

Input: a TrainingSetup (a plan, open policies and models, a run folder). Output: lines in the folder, and
events for the observer. All randomness follows from the seed and the step, so a run that is resumed at a
checkpoint gives the metrics of an uninterrupted one. With `staleness` only its tasks and seeds are the same:
batches that were under way are sampled again, by the checkpoint's weights.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeVar

from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.errors import AdvantageError, FailedRole, RolegraphError, WorldError
from rolegraph.engine.models.rates import lower_rates
from rolegraph.engine.records import (
    Checkpoint,
    Episode,
    Note,
    StepLogged,
    Trajectory,
    derive_seed,
)
from rolegraph.engine.run.likelihood import check_scorer
from rolegraph.engine.training.advantages.estimates import States, check_state_keys
from rolegraph.engine.training.advantages.group_metrics import Metrics
from rolegraph.engine.training.advantages.ledger import (
    Ledger,
    Membership,
    add_advantages,
    add_signals,
    credit_rows,
)
from rolegraph.engine.training.analysis.constants import best_constants
from rolegraph.engine.training.analysis.divergence import STAGE, Divergence, divergences
from rolegraph.engine.training.analysis.metrics import (
    answer_counts,
    constant_metrics,
    failed_roles,
    failure_lines,
    failures,
    lost_roles,
    mean_metrics,
    sign_warnings,
    start_warnings,
    update_metrics,
)
from rolegraph.engine.training.analysis.routing import route_shares
from rolegraph.engine.training.loop.ending import Usage, stalled
from rolegraph.engine.training.loop.rollouts import Rollouts, TrainingSetup
from rolegraph.engine.training.loop.schedule import ValidationSetup, batch_tasks, learning_rate
from rolegraph.engine.training.loop.step_metrics import batch_metrics, datum_metrics, rewritten_roles
from rolegraph.engine.training.policies.batches import policy_batches
from rolegraph.engine.training.policies.custom_losses import score_starts

T = TypeVar("T")
INTERRUPT_SECONDS = 30.0
"""Seconds that an interrupted training waits for an update that is under way, and again for a checkpoint."""
_LOWER = "train again with a lower learning rate, such as"


async def check_scorers(setup: TrainingSetup) -> None:
    """Check that each teacher can score given tokens.

    Raises:
        UsageError: A teacher gives no log-probabilities of given tokens; names its role.
        WorldError: A teacher does not answer.
    """
    plan, teachers = setup.plan, await setup.teachers()
    for name, signal in plan.signals.items():
        for teacher in signal.all_teachers:
            keys = (
                (plan.weights_of(teacher, name, index), plan.policy_of(name, index))
                for index in range(1, plan.trained[name].count + 1)
                if not plan.is_past(name, index)
            )
            for key, policy in dict.fromkeys(keys):
                ids = setup.policies[policy].chat.turn("?")
                await check_scorer(teachers[key], ids, f"the signal of {name}")


async def train(setup: TrainingSetup, start: Checkpoint | None = None) -> None:
    """Train to the last step, or to the step that `train.stop` or the budget ends the training with.

    Where the task is cancelled, a checkpoint of the last step is saved first.

    Args:
        setup: Plan, data, open policies and models, and the run folder.
        start: Checkpoint that the policies were opened from; None is the beginning.

    Raises:
        WorldError: If the service, a teacher or the disk fails.
        FailedRole: If every answer of a role failed in the same way, unless the setup says `keep_going`.
        AdvantageError: For a missing or invalid reward or advantage, and an estimator, signal or loss that
            fails; the last step is saved. Checkpoints written before an error stay usable.
    """
    async with Rollouts(setup) as rollouts:
        await setup.past.keep_starts(setup.plan.reference_policies)
        await check_scorers(setup)
        await rollouts.check_scorers()
        await _Loop(setup, rollouts, start).run(start.step if start else 0)


@dataclass(slots=True)
class _Step:
    """State of the training after the last policy update, from which its checkpoint is written."""

    number: int
    metrics: Metrics
    batches: int
    """Number of batches drawn up to and including this step."""
    states: States
    logged: bool = False
    """True once the step's metrics, which follow the validation, are on disk."""
    saved: bool = False
    """True once a checkpoint has the step's weights."""
    last: bool = False
    """True for the last step of the training."""


class _Loop:
    """Runner of the training's steps, with the metrics so far, the best validation, and the warnings
    given."""

    def __init__(self, setup: TrainingSetup, rollouts: Rollouts, start: Checkpoint | None) -> None:
        self.setup, self.rollouts = setup, rollouts
        self.train = setup.plan.spec.train
        self.trained_roles = setup.plan.trained
        self.lines = setup.folder.metrics()
        """Metrics of all steps so far."""
        # Step 0 counts: weights that never beat the untrained model are not the best.
        self.best = max(
            (line[self._best_metric] for line in self.lines if self._best_metric in line), default=None
        )
        self.warned: set[str] = set()
        """Subjects of the warnings given so far; a resumed training warns again."""
        self.constants: dict[str, str] = {}
        """Best constant answer of each role in the latest batch."""
        self.states: States = start.estimators if start else {}
        """States of the stateful estimators."""
        check_state_keys(self.trained_roles.values(), setup.tasks)
        self.drawn = start.batches if start else 0
        """Number of batches drawn so far, those of `pending` included."""
        self.step: _Step | None = None
        if start is not None:
            self.step = _Step(start.step, dict(start.metrics or {}), self.drawn, self.states)
            self.step.logged, self.step.saved = start.metrics is None, True
            self.step.last = stalled(self.lines, self.train) is not None
        self.updating = False
        """True while an update is under way, when the weights belong to no known step."""
        self.pending: deque[asyncio.Task[list[Episode]]] = deque()
        """Batches that are under way, oldest first."""
        self.began = monotonic()
        self.trained_for, self.logged_dollars = 0.0, 0.0
        """Dollars spent on updates by this command, and dollars that lines of metrics already report."""
        self.used = Usage(0, 0)
        """Usage of this command up to the latest step."""

    @property
    def _best_metric(self) -> str:
        return f"validation/{self.train.validation.best}"

    async def run(self, done: int) -> None:
        """Train from the step after `done`; validate first if `done` is 0.

        An interruption, or an error of an estimator, signal or loss, loses no finished step.
        """
        try:
            await self._run(done)
        except (asyncio.CancelledError, AdvantageError):
            await self.save_interrupted()
            raise

    async def _run(self, done: int) -> None:
        setup, train = self.setup, self.train
        if done == 0:
            metrics = await self.validate(0)
            metrics |= await self.validate_greedy(0, metrics)
            self.best = metrics.get(self._best_metric)
            self.log(0, metrics)
        elif self.step is not None and not self.step.logged:  # it was interrupted in its validation
            times = {name: value for name, value in self.step.metrics.items() if name.startswith("time/")}
            await self.end_step(self.step, times, monotonic() - sum(times.values()))
        self.used = self._usage  # the first step's usage is without that of the start
        drawn_step = done
        for step in range(done + 1, setup.steps + 1):
            if self.step is not None and self.step.last:
                break
            step_train = plan_at(setup.plan, step).spec.train
            self._note(f"step {step}: rollouts", step_train.batch_size * step_train.rollouts)
            start_time = monotonic()
            while drawn_step < min(step + train.staleness, setup.steps):
                drawn_step += 1
                self.pending.append(await self.draw(drawn_step))
            plan = plan_at(setup.plan, step)
            members = Membership(plan.trained, plan.policy_of).add(await self.pending.popleft())
            kept_tasks = await self.refill(step, members) if step_train.refill else None
            times = {"time/rollout": monotonic() - start_time}
            await self.end_step(await self.learn(step, members, times, kept_tasks), times, start_time)
        if (reason := stalled(self.lines, train)) and self.lines[-1]["step"] < setup.steps:
            setup.folder.stop(int(self.lines[-1]["step"]), reason)

    async def end_step(self, step: _Step, times: Metrics, began: float) -> None:
        """Validate if a validation is due, write the metrics, and save a checkpoint if one is due.

        Args:
            step: The step, after its update.
            times: Durations of the step's parts, to which further durations are added.
            began: Time of `monotonic` at which the step began.
        """
        interval, metrics = self.train.validation.every, step.metrics
        usage_before, self.used = self.used, self._usage
        affords_another = self.setup.budget.allows(self.used, self.used.since(usage_before))
        step.last = step.number == self.setup.steps or not affords_another
        if step.last or (interval and step.number % interval == 0):
            metrics = metrics | await self.validate(step.number, times)
        step.last |= stalled([*self.lines, {"step": float(step.number), **metrics}], self.train) is not None
        if step.last:
            metrics = metrics | await self.validate_greedy(step.number, step.metrics)
        metrics = metrics | times | {"time/step": monotonic() - began}
        self.log(step.number, metrics)
        step.metrics, step.logged = metrics, True
        await self.checkpoint(step)

    @property
    def _usage(self) -> Usage:
        """Usage of this command so far."""
        dollars = self.rollouts.dollars + self.trained_for
        return Usage(self.rollouts.tokens, monotonic() - self.began, dollars)

    async def save_interrupted(self) -> None:
        """Cancel the episodes, and save a checkpoint of the last updated step unless it is saved."""
        step = self.step
        if step is None or step.saved or self.updating:
            return
        self._note(f"interrupted: saving a checkpoint of step {step.number} …")
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await self.rollouts.cancel()
                await self.save(step)
        except (TimeoutError, RolegraphError) as error:
            reason = str(error) or f"it took more than {INTERRUPT_SECONDS:g} s"
            text = f"interrupted: no checkpoint of step {step.number} was saved: {reason}"
            self.setup.observe(Note(text, "warning"))

    async def draw(self, step: int, exclusions: Collection[str] = ()) -> asyncio.Task[list[Episode]]:
        """Start the episodes of the next batch, and return the asyncio task that runs them.

        Args:
            step: The step that learns from the batch.
            exclusions: Ids of tasks of the data to leave out.
        """
        setup, train = self.setup, plan_at(self.setup.plan, step).spec.train
        self.drawn += 1
        tasks = batch_tasks(setup.tasks, train, setup.seed, self.drawn)
        tasks = [task for task in tasks if task["id"] not in exclusions]
        seed = derive_seed(setup.seed, "train", self.drawn)
        opponents = setup.past.draw(tasks, seed)
        return await self.rollouts.start(tasks, train.rollouts, seed, opponents, step)

    async def refill(self, step: int, members: Membership) -> set[str]:
        """Draw further batches until enough tasks are informative.

        Args:
            step: The step's number.
            members: Groups of the step's first batch, to which the episodes of further batches are added.

        Returns:
            Ids of the tasks to learn from: the first `batch_size` informative tasks.
        """
        train = plan_at(self.setup.plan, step).spec.train
        tasks = members.informative()
        for _ in range(train.refill):
            if len(tasks) >= train.batch_size:
                break
            text = f"step {step}: rollouts again, as {len(tasks)} of {train.batch_size} tasks are informative"
            self._note(text, train.batch_size * train.rollouts)
            # A step can pass the end of an epoch; a task that comes again would be in two groups of one name.
            members.add(await (await self.draw(step, {episode.task_id for episode in members.episodes})))
            tasks = members.informative()
        return {*tasks[: train.batch_size]}

    async def learn(
        self, step: int, members: Membership, times: Metrics, kept: Collection[str] | None = None
    ) -> _Step:
        """Compute the advantages of a batch, update the policies, and return the step with its metrics.

        Args:
            step: The step's number.
            members: Groups of all episodes of the step; the metrics cover all of them.
            times: Durations of the step's parts, to which further durations are added.
            kept: Ids of the tasks that the update uses; None for all tasks.
        """
        setup, plan, episodes = self.setup, plan_at(self.setup.plan, step), members.episodes
        self._check_answers(step, episodes)
        self._note(f"step {step}: advantages")
        start_time = monotonic()
        chats = {name: setup.policies[name].chat for name in plan.policies}
        ledger = await add_signals(members.ledger(kept, self._version), plan, await setup.teachers(), chats)
        ledger = add_advantages(ledger, self.states)
        rows = [*credit_rows(ledger, step)]
        self._warn(ledger.warnings)
        times["time/advantage"] = monotonic() - start_time
        setup.folder.write_credit(step, rows)  # before the episodes, whose file says that the step has both
        setup.folder.write_episodes("train", step, ledger.filled_episodes())
        # Imitation is what mends a form that every answer lacks.
        imitators = {name for name, signal in plan.signals.items() if signal.demonstration is not None}
        failed_ones = (t for t in failed_roles(episodes) if t.name not in imitators or t.failed_by != "form")
        self._check_roles(step, failed_ones, episodes)
        self._warn_of_failures(step, episodes)
        if step == 1 and not setup.validations:
            self._warn([*start_warnings(plan, episodes, "in the first step")])
        return await _completed(self._learn(step, ledger, batch_metrics(ledger, rows, plan), times))

    async def _learn(self, step: int, ledger: Ledger, metrics: Metrics, times: Metrics) -> _Step:
        """Update the policies from a batch; return the step, which now counts as done, with its metrics."""
        plan = plan_at(self.setup.plan, step)
        metrics |= await self.update(step, ledger, times)
        if (number := self.setup.plan.stage_number(step)) is not None:
            metrics[STAGE] = float(number)
        self.constants = self._best_constants(ledger.episodes)
        self._warn([*sign_warnings([*self.lines, metrics], plan)])
        self._warn_of_divergence({"step": float(step), **metrics})
        metrics |= times
        metrics["tokens/per_second"] = metrics["tokens/response"] / max(1e-9, times["time/rollout"])
        self.states = ledger.estimates.states
        self.step = _Step(step, metrics, self.drawn - len(self.pending), self.states)
        return self.step

    async def update(self, step: int, ledger: Ledger, times: Metrics) -> Metrics:
        """Send the step's datums to the training service with an optimizer step; return the update's
        metrics."""
        plan = plan_at(self.setup.plan, step)
        stage = self.setup.plan.stage_at(step)
        stage_rate = stage.stage.learning_rate if stage is not None else None
        rates = {
            name: learning_rate(self.train.schedule, stage_rate or rate, step, self.setup.steps)
            for name, rate in self.setup.rates.items()
        }
        data = policy_batches(ledger)
        metrics = datum_metrics(data, rates, plan)
        for role in rewritten_roles(data):
            text = (
                f"{role}: the chat template renders earlier turns in other tokens than were sampled, so "
                "that each turn is a sequence of its own"
            )
            self._warn([Note(text, "warning", f"rewritten/{role}")])
        if not data:
            if not self.lines or self.lines[-1].get("optim/data") != 0:  # the first of several in a row
                text = f"step {step} has no gradient: every advantage in it is 0"
                self.setup.observe(Note(text, "warning"))
            return metrics
        await score_starts(data, self.setup.past.start_of)
        self._note(f"step {step}: update")
        start_time = monotonic()
        self.updating = True
        try:
            updates = await self.setup.policies.update_all(data, rates, self.train.gradient_clip)
        except AdvantageError:  # of a loss, before any policy was updated
            self.updating = False
            raise
        for name, batches in data.items():
            if price := plan.policies[name].model.price:
                token_count = sum(datum.model_input.length for batch in batches for datum in batch.data)
                self.trained_for += price.of(0, 0, trained=token_count)
        if not any(update.made for update in updates.values()):
            self._warn(
                [Note(f"step {step} has no gradient: that of every loss is 0", "warning", "no gradient")]
            )
        await self.setup.past.refresh()
        self.updating = False
        times["time/update"] = monotonic() - start_time
        return metrics | update_metrics(updates, several=len(plan.policies) > 1)

    async def validate(self, step: int, times: Metrics | None = None) -> Metrics:
        """Run the validation tasks with the current weights, write their episodes, and return the metrics.

        The seeds are the same at every step.
        """
        rollouts, start_time, metrics = self.train.validation.rollouts, monotonic(), Metrics()
        for setup in self.setup.validations:
            episodes = await self._validated(step, setup, rollouts, "validation")
            self._check_answers(step, episodes)
            # A small validation may fail by the answers' form by chance; only training batches stop for that.
            reward_failures = (failed for failed in failed_roles(episodes) if failed.failed_by == "reward")
            self._check_roles(step, reward_failures, episodes)
            self._warn_of_failures(step, episodes)
            if step == 0 and not setup.prefix:
                self._warn([*start_warnings(plan_at(setup.plan, 1), episodes, "before training")])
                self.constants = self._best_constants(episodes)
            constants = constant_metrics(setup.plan.asking, episodes)
            metrics |= mean_metrics(setup.plan, episodes, f"validation/{setup.prefix}".removesuffix("/"))
            routes = route_shares(setup.plan, episodes)
            for name, value in (constants | failures(episodes) | routes).items():
                metrics[f"validation/{setup.prefix}{name}"] = value
        if times is not None and metrics:
            times["time/validate"] = monotonic() - start_time
        if metrics and self._best_metric not in metrics:
            metric = self.train.validation.best
            text = (
                f"step {step}: no episode of the validation has {metric}, so these weights cannot be the best"
            )
            self._warn([Note(text, "warning", self._best_metric)])
        return metrics

    async def validate_greedy(self, step: int, so_far: Metrics) -> Metrics:
        """Run one greedy episode of each validation task, write the episodes, and return the metrics,
        `greedy/*`, with the time that it took.

        Weights that diverge have none: at temperature 0 their answers repeat themselves up to `max_tokens`.

        Args:
            step: The first or the last step, from 0.
            so_far: Metrics of the step.
        """
        validations, start_time, metrics = self.setup.validations, monotonic(), Metrics()
        if not validations or self._diverged({"step": float(step), **so_far}):
            return {}
        for setup in validations:
            episodes = await self._validated(step, setup, 1, "greedy")
            metrics |= mean_metrics(setup.plan, episodes, f"greedy/{setup.prefix}".removesuffix("/"))
        return metrics | {"time/greedy": monotonic() - start_time}

    async def _validated(
        self, step: int, it: ValidationSetup, rollouts: int, part: Literal["validation", "greedy"]
    ) -> list[Episode]:
        """Run the episodes of a workflow that validates, and write them to the workflow's folder.

        Args:
            step: The step's number.
            it: The workflow with its tasks.
            rollouts: Number of episodes for each task.
            part: Kind of the validation.
        """
        seed, is_greedy = derive_seed(self.setup.seed, "validation"), part == "greedy"
        word = "greedy validation" if is_greedy else "validation"
        suffix = "" if it.plan is self.setup.plan else f" of {it.plan.name}"
        self._note(f"step {step}: {word}{suffix}", len(it.tasks) * rollouts)
        episodes = await (await self.rollouts.start(it.tasks, rollouts, seed, plan=it.plan, greedy=is_greedy))
        it.folder.write_episodes(part, step, episodes)
        self._check_roles(step, lost_roles(episodes), episodes, "most answers")
        return episodes

    async def checkpoint(self, step: _Step) -> None:
        """Save a checkpoint if one is due or the validation is the best so far; then delete old checkpoints.

        A tie counts as better, so the later weights win, except a tie with the untrained model.
        """
        value = step.metrics.get(self._best_metric)
        untrained_value = self.lines[0].get(self._best_metric)
        is_tie = value is not None and value == self.best and value != untrained_value
        is_better = is_tie or (value is not None and (self.best is None or value > self.best))
        # A step that is saved already was interrupted, and its checkpoint lacks the validation.
        if not (step.last or is_better or step.saved or step.number % self.train.checkpoint_every == 0):
            return
        self._note(f"step {step.number}: checkpoint")
        await self.save(step, is_better)
        dropped_checkpoints = await self.drop_old(step.number)
        if not self.pending:  # a batch that is under way may still ask an old copy
            await self.setup.past.prune(self.setup.folder.checkpoints(), dropped_checkpoints)
        if is_better:
            self.best = value

    async def save(self, step: _Step, better: bool = False) -> None:
        """Save the policies' weights at the service, and add the step's checkpoint to the folder."""
        saved_policies = await self.setup.policies.save(f"step-{step.number:06d}")
        validation = {name: value for name, value in step.metrics.items() if name.startswith("validation/")}
        self.setup.folder.add_checkpoint(
            Checkpoint(
                step=step.number,
                policies=dict(saved_policies),
                best=better,
                validation=validation,
                batches=step.batches,
                past=self.setup.past.kept,
                starts=self.setup.past.starts,
                estimators={role: dict(states) for role, states in step.states.items()},
                metrics=None if step.logged else step.metrics,
            )
        )
        step.saved = True

    async def drop_old(self, step: int) -> list[Checkpoint]:
        """Delete episodes and checkpoints, with their weights, beyond `train.keep`; return the deleted
        checkpoints."""
        keep, setup = self.train.keep, self.setup
        if keep.episodes is not None:
            setup.folder.drop_episodes("train", step - keep.episodes + 1)
        if keep.checkpoints is None:
            return []
        removed = setup.folder.drop_checkpoints(keep.checkpoints)  # before their weights, as a kill may come
        for checkpoint in removed:
            for name, saved_policy in checkpoint.policies.items():
                await setup.policies[name].delete_copy(saved_policy.state)
                await setup.policies[name].delete_copy(saved_policy.sampler)
        return removed

    def log(self, step: int, metrics: Metrics) -> None:
        """Append a step's metrics to `metrics.jsonl`, and send them to the observer."""
        metrics = {"step": float(step), **metrics}
        if (dollars := self._usage.dollars) > self.logged_dollars:
            metrics["cost/step"] = dollars - self.logged_dollars
            self.logged_dollars = dollars
        self.setup.folder.add_metrics(metrics)
        self.lines.append(metrics)
        self.setup.observe(StepLogged(step, metrics, self.constants))

    def _version(self, trajectory: Trajectory) -> int | None:
        """Return the number of updates of a trajectory's policy, from which the staleness of its steps is
        computed.

        The number is 0 for a frozen model, and None for past copies, which are old on purpose.
        """
        plan = self.setup.plan
        policy = plan.policy_of(trajectory.name, trajectory.index)
        if plan.is_past(trajectory.name, trajectory.index):
            return None
        return self.setup.policies[policy].version if policy in plan.policies else 0

    def _note(self, text: str, episodes: int = 0) -> None:
        self.setup.observe(Note(text, episodes=episodes))

    def _warn(self, warnings: Sequence[Note]) -> None:
        """Send warnings to the observer, only the first about each subject."""
        for warning in warnings:
            if warning.about not in self.warned:
                self.warned.add(warning.about)
                self.setup.observe(warning)

    def _warn_of_failures(self, step: int, episodes: Sequence[Episode]) -> None:
        """Warn once about each trained role whose answers in a batch all failed."""
        lines = failure_lines(self.trained_roles.values(), episodes, every=True)
        self._warn([Note(f"step {step}: {line}", "warning", f"failures of {role}") for role, line in lines])

    def _check_roles(
        self,
        step: int,
        failed: Iterable[Trajectory],
        episodes: Sequence[Episode],
        number: str = "every answer",
    ) -> None:
        """Raise FailedRole or WorldError for a role without usable answers; with `keep_going` only warn.

        Args:
            step: The step's number.
            failed: First failed trajectory of each such role.
            episodes: All episodes of the step.
            number: Words for how many of the role's answers failed, for the message.
        """
        for trajectory in failed:
            assert trajectory.failure is not None
            text = f"step {step}: {number} of {trajectory.name} failed; the first: {trajectory.failure_line}"
            if self.setup.keep_going:
                self._warn([Note(text, "warning", f"failures of {trajectory.name}")])
                continue
            kind = WorldError if trajectory.failed_by == "world" else FailedRole
            line = {"step": float(step), **answer_counts(self.trained_roles, episodes), **failures(episodes)}
            if diverging := [divergence.role for divergence in self._diverged(line)]:
                text += f"; {', '.join(diverging)} diverged, as answers did not fail in the first step"
                remedy = f"{_LOWER} {self._lower_rates(diverging)}"
            else:
                remedy = "mend it and train again"
            raise kind(f"{text}; {remedy}, or go on without it: --keep-going")

    def _best_constants(self, episodes: Sequence[Episode]) -> dict[str, str]:
        return best_constants({role.name: role.allowed_answers for role in self.setup.plan.asking}, episodes)

    def _diverged(self, line: Metrics) -> list[Divergence]:
        """Return the divergences of roles at a step that has the metrics `line`."""
        return divergences([*self.lines, line], [*self.trained_roles])

    def _lower_rates(self, roles: Sequence[str]) -> str:
        return " ".join(lower_rates(self.setup.plan, roles))

    def _warn_of_divergence(self, line: Metrics) -> None:
        """Warn once of each role that diverges."""
        for divergence in self._diverged(line):
            text = f"{divergence}; {_LOWER} {self._lower_rates([divergence.role])}"
            self._warn([Note(text, "warning", f"diverged/{divergence.role}")])

    def _check_answers(self, step: int, episodes: Sequence[Episode]) -> None:
        """Raise WorldError if no model call of a batch was answered, as when a service has stopped."""
        trajectories = [t for episode in episodes for t in episode.trajectories]
        if any(t.steps for t in trajectories):
            return
        message = next((t.failure.message for t in trajectories if t.failure), "no trajectory was finished")
        raise WorldError(f"no model call of step {step} was answered: {message}")


async def _completed(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; if the caller is cancelled, let the coroutine finish before raising
    CancelledError."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=INTERRUPT_SECONDS)
        task.cancel()
        raise
