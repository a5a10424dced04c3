"""Runs one Plan on one task: an instance starts the moment the roles it needs are done.

In: a Plan, a task, gates to the models. Out: an Episode, whatever failed on the way. There is no barrier
between levels; an instance that fails, fails alone. Tasks started here are finished or cancelled before
`run_episode` returns. This file knows no provider, no disk and no training.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from engine.compile.plan import Plan, RolePlan
from engine.errors import ModelError, RolegraphError
from engine.models.limit import Gate
from engine.models.types import Completion, Request
from engine.prompts.sandbox import PromptError
from engine.records import Episode, Failure, FailureName, Message, Task
from engine.run.isolation import Isolation
from engine.run.outcome import Outcome, assemble, failed, score, score_isolated
from engine.spec.models import ModelRef
from engine.vocabulary import ParseFailure, Seen, Upstream, View, Views

NOTHING_SEEN = Seen({})


@dataclass(frozen=True, slots=True)
class Workflow:
    """A plan with its models: what all episodes of a run share."""

    plan: Plan
    gates: Mapping[ModelRef, Gate]
    isolation: Isolation
    """Where rewards with a time limit run."""
    seed: int | None = None
    """With a seed, the same model gives the same episodes."""

    def run_episode(
        self, task: Task, rollout: int = 0, interrupted: Callable[[Episode], None] | None = None
    ) -> Coroutine[None, None, Episode]:
        """One episode. What fails is named in it; only cancellation and faults of this program raise.

        Before it raises, `interrupted` is given the episode as far as it came.
        """
        return _Run(self, task, rollout, interrupted).episode()


class _Stop(Exception):
    """An instance with `then: fail` failed: the episode ends here."""


class _Run:
    """One episode while it runs. `position` is a role's place in `Plan.roles`, `index` counts from 0."""

    __slots__ = (
        "active",
        "base_seed",
        "finished",
        "interrupted",
        "messages",
        "outcomes",
        "remaining",
        "rollout",
        "shared",
        "stopped",
        "task",
        "tasks",
        "upstream",
        "views",
        "visible",
        "waiting",
    )

    def __init__(
        self,
        shared: Workflow,
        task: Task,
        rollout: int,
        interrupted: Callable[[Episode], None] | None,
    ) -> None:
        roles = shared.plan.roles
        hidden = shared.plan.hidden
        self.shared, self.task, self.rollout, self.interrupted = shared, task, rollout, interrupted
        self.base_seed = None if shared.seed is None else self._hash(shared.seed)
        self.visible = {key: value for key, value in task.items() if key not in hidden}
        self.waiting = [len(role.needs) for role in roles]
        self.remaining = [role.count for role in roles]
        self.outcomes: list[list[Outcome | None]] = [[None] * count for count in self.remaining]
        self.messages: list[Sequence[Message] | Failure] = [()] * len(roles)
        self.views: dict[str, Views] = {}
        self.upstream: list[Upstream] = [{}] * len(roles)
        self.tasks: list[asyncio.Task[None]] = []
        self.active = 0
        self.finished: asyncio.Future[None]
        self.stopped: BaseException | None = None

    async def episode(self) -> Episode:
        self.finished = asyncio.get_running_loop().create_future()
        try:
            for position, needs in enumerate(self.waiting):
                if needs == 0:
                    self._start(self._open(position))
            await self.finished
            if self.stopped is None:
                await self._score_late()
            if self.stopped is not None and not isinstance(self.stopped, _Stop):
                raise self.stopped
        except BaseException:
            if self.interrupted is not None:
                self.interrupted(self._assemble(stopped=True))
            raise
        finally:
            if self.active:
                await self._cancel()
        return self._assemble(stopped=self.stopped is not None)

    def _assemble(self, *, stopped: bool) -> Episode:
        return assemble(self.shared.plan, self.task, self.rollout, self.outcomes, stopped=stopped)

    # which instance runs when

    def _start(self, ready: Sequence[tuple[int, int]]) -> None:
        for position, index in ready:
            self._spawn(self._branch(position, index))

    async def _branch(self, position: int, index: int) -> None:
        """Run an instance, then go on in the same task with one of those that became ready by it."""
        while True:
            outcome = self.outcomes[position][index] = await self._ask(position, index)
            ready = self._release(position)
            if len(ready) > 1:
                self._start(ready[1:])
            self._settle(position, outcome)
            if not ready:
                return
            position, index = ready[0]

    def _open(self, position: int) -> list[tuple[int, int]]:
        """All instances of a role whose needs are met; they share one rendering of the prompt."""
        roles = self.shared.plan.roles
        role = roles[position]
        self.upstream[position] = {roles[need].name: self.views[roles[need].name] for need in role.needs}
        self.messages[position] = self._render(role, self.upstream[position])
        return [(position, index) for index in range(role.count)]

    def _release(self, position: int) -> list[tuple[int, int]]:
        """Note that one instance is done; the instances that became ready by it."""
        self.remaining[position] -= 1
        if self.remaining[position]:
            return []
        role = self.shared.plan.roles[position]
        self.views[role.name] = Views(
            [outcome.view for outcome in self.outcomes[position] if outcome is not None]
        )
        ready: list[tuple[int, int]] = []
        for after in role.feeds:
            self.waiting[after] -= 1
            if self.waiting[after] == 0:
                ready += self._open(after)
        return ready

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self.active += 1
        self.tasks.append(asyncio.create_task(self._watched(work)))

    async def _watched(self, work: Coroutine[None, None, None]) -> None:
        """Do the work, note what went wrong, and tell `episode` when nothing is left to wait for."""
        try:
            await work
        except Exception as error:
            self.stopped = self.stopped or error
        finally:
            self.active -= 1
            if (self.active == 0 or self.stopped is not None) and not self.finished.done():
                self.finished.set_result(None)

    async def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # one instance

    def _render(self, role: RolePlan, upstream: Upstream) -> Sequence[Message] | Failure:
        variables: dict[str, object] = {"task": self.visible, **upstream}
        try:
            turn = {"role": "user", "content": role.prompt.render(variables)}
            if role.system is None:
                return (turn,)
            return ({"role": "system", "content": role.system.render(variables)}, turn)
        except PromptError as error:
            return Failure(FailureName.PROMPT_ERROR, str(error))

    async def _ask(self, position: int, index: int) -> Outcome:
        """Ask until there is an answer that can be read, or no retry is left."""
        role = self.shared.plan.roles[position]
        messages = self.messages[position]
        if isinstance(messages, Failure):
            return failed(role, index, messages)
        gate = self.shared.gates[role.model]
        upstream = self.upstream[position]
        attempt = 0
        while True:
            completion: Completion | None = None
            request = Request(
                messages,
                role.sampling,
                self._seed(role, position, index, attempt),
                self.task["id"],
                self.rollout,
                role.name,
                index + 1,
                attempt,
            )
            try:
                completion = await gate.complete(request, role.timeout)
                action = role.parser.parse(completion.text, upstream)
            except TimeoutError:
                within = "in time" if role.timeout is None else f"within {role.timeout:g} s"
                failure = Failure(FailureName.TIMEOUT, f"no answer {within}")
            except ModelError as error:
                failure = Failure(FailureName.MODEL_ERROR, str(error))
            except ParseFailure as error:
                failure = Failure(error.name, str(error))
            except RolegraphError:
                raise
            except Exception as error:  # a client or parser from elsewhere: its fault ends this instance only
                name = FailureName.MODEL_ERROR if completion is None else FailureName.MALFORMED_OUTPUT
                failure = Failure(name, f"{type(error).__name__}: {error}")
            else:
                view = View(index + 1, action, completion.text, completion.thought)
                return Outcome(view, messages, completion, attempts=attempt + 1)
            if attempt == role.on_failure.retry:
                return failed(role, index, failure, messages, completion, attempt + 1)
            attempt += 1

    def _seed(self, role: RolePlan, position: int, index: int, attempt: int) -> int | None:
        """A seed of this call's own, so that no two calls of a run draw the same numbers."""
        base = self.base_seed if role.sampling.seed is None else self._hash(role.sampling.seed)
        if base is None:
            return None
        return (base + position * 0x9E3779B1 + index * 0x85EBCA6B + attempt * 0xC2B2AE35) & 0x7FFFFFFF

    def _hash(self, seed: int) -> int:
        key = f"{seed}/{self.task['id']}/{self.rollout}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest())

    # what it earns

    def _settle(self, position: int, outcome: Outcome) -> None:
        """Score an outcome whose reward needs no other's; a slow reward does not hold up what comes after."""
        role = self.shared.plan.roles[position]
        if outcome.failure is None and role.reward is not None and not role.reward.roles:
            if role.reward.timeout is None:
                score(role, self.task, outcome, NOTHING_SEEN)
            else:
                self._spawn(self._score_beside(role, outcome))
        if outcome.failure is not None and role.on_failure.then == "fail":
            raise _Stop

    async def _score_beside(self, role: RolePlan, outcome: Outcome) -> None:
        await score_isolated(role, self.task, outcome, NOTHING_SEEN, self.shared.isolation)
        if outcome.failure is not None and role.on_failure.then == "fail":
            raise _Stop

    async def _score_late(self) -> None:
        """Rewards that read other roles' scores, each after those it reads."""
        plan = self.shared.plan
        for position in plan.scoring:
            role = plan.roles[position]
            reads = role.reward.roles if role.reward else ()
            verdicts = {
                other.name: tuple(outcome.verdict for outcome in outcomes if outcome is not None)
                for other, outcomes in zip(plan.roles, self.outcomes, strict=True)
                if other.name in reads
            }
            for outcome in self.outcomes[position]:
                if outcome is not None and outcome.failure is None:
                    await score_isolated(role, self.task, outcome, Seen(verdicts), self.shared.isolation)
                    if outcome.failure is not None and role.on_failure.then == "fail":
                        self.stopped = _Stop()
                        return
