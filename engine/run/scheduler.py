"""Runs one Plan on one task: a node starts the moment what it waits for is done.

In: a Plan, a job, the models of the plan's endpoints. Out: an Episode, whatever failed on the way. There is
no barrier between levels; a node that fails, fails alone. Tasks started here are finished or cancelled before
an episode is over. This file knows no provider, no disk and no training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence

from engine.compile import Plan, RolePlan
from engine.compile.plan import Block
from engine.models import LimitedModel
from engine.prompts import PromptError, render_messages
from engine.records import (
    Episode,
    EpisodeDone,
    Failure,
    FailureName,
    Message,
    Observer,
    Task,
    derive_seed,
)
from engine.run.assembly import assemble
from engine.run.frontier import Frontier
from engine.run.isolation import Isolation
from engine.run.scoring import score, score_isolated
from engine.run.session import NO_SCORE, Job, NodeResult, Session
from engine.vocabulary import Seen, Upstream, View, Views

SEEN_NOTHING = Seen({})
SEES_NOTHING: Upstream = {}


def jobs(tasks: Iterable[Task], rollouts: int = 1, seed: int | None = None) -> Iterator[Job]:
    """A job for each task and rollout."""
    return (Job(task, rollout, seed) for task in tasks for rollout in range(rollouts))


def run_episode(
    plan: Plan,
    job: Job,
    models: Sequence[LimitedModel],
    *,
    isolation: Isolation,
    observe: Observer | None = None,
) -> Coroutine[None, None, Episode]:
    """One episode. What fails is named in it; only cancellation and faults of this program raise.

    `models` are those of `plan.endpoints`, `isolation` is where rewards with a time limit run. An observer
    hears of an episode that is interrupted too, as far as it came.
    """
    return _Run(plan, job, models, isolation=isolation, observe=observe).episode()


class _Stop(Exception):
    """A node with `then: fail` failed: the episode ends here."""


class _Run:
    """One episode while it runs. Nodes and blocks are known by their positions in the plan."""

    __slots__ = (
        "active",
        "finished",
        "frontier",
        "isolation",
        "job",
        "messages",
        "models",
        "observe",
        "plan",
        "results",
        "seed",
        "stopped",
        "tasks",
        "upstream",
        "visible",
    )

    def __init__(
        self,
        plan: Plan,
        job: Job,
        models: Sequence[LimitedModel],
        *,
        isolation: Isolation,
        observe: Observer | None,
    ) -> None:
        self.plan, self.job, self.models, self.isolation, self.observe = plan, job, models, isolation, observe
        self.seed = None if job.seed is None else self.seed_from(job.seed)
        self.visible = {key: value for key, value in job.task.items() if key not in plan.hidden}
        self.frontier = Frontier(plan.wiring)
        self.results: list[NodeResult | None] = [None] * len(plan.nodes)
        # What the nodes of a block see, and what they are asked.
        self.upstream: list[Upstream] = [SEES_NOTHING] * len(plan.blocks)
        self.messages: list[Sequence[Message] | Failure] = [()] * len(plan.blocks)
        self.tasks: list[asyncio.Task[None]] = []
        self.active = 0
        self.finished: asyncio.Future[None]
        self.stopped: BaseException | None = None

    def seed_from(self, seed: int) -> int:
        """The episode's seed, from which those of its calls follow."""
        return derive_seed(seed, self.job.task["id"], self.job.rollout)

    async def episode(self) -> Episode:
        self.finished = asyncio.get_running_loop().create_future()
        try:
            for block in self.frontier.start():
                self.start(self.open(block))
            await self.finished
            if self.stopped is None:
                try:
                    await self.score_late()
                except _Stop as stop:
                    self.stopped = stop
            if self.stopped is not None and not isinstance(self.stopped, _Stop):
                raise self.stopped
        except BaseException:
            try:
                await self.cancel()
            finally:
                self.tell(self.assembled(stopped=True), finished=False)
            raise
        if self.active:  # a node ended the episode, and others are still at it
            await self.cancel()
        episode = self.assembled(stopped=self.stopped is not None)
        self.tell(episode, finished=True)
        return episode

    def tell(self, episode: Episode, *, finished: bool) -> None:
        if self.observe is not None:
            self.observe(EpisodeDone(episode, finished))

    def assembled(self, *, stopped: bool) -> Episode:
        return assemble(self.plan, self.job.task, self.job.rollout, self.results, stopped=stopped)

    # which node runs when

    def start(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.spawn(self.branch(node))

    async def branch(self, node: int) -> None:
        """Run a node, then go on in the same task with one of those that became ready by it."""
        while True:
            result = self.results[node] = await self.turn(node)
            blocks = self.frontier.done(node)
            if not blocks:
                self.settle(node, result)
                return
            ready = [after for block in blocks for after in self.open(block)]
            self.start(ready[1:])
            self.settle(node, result)
            node = ready[0]

    def open(self, block: int) -> range:
        """The nodes of a block that has nothing to wait for; they share one rendering of the prompt."""
        opened = self.plan.blocks[block]
        if opened.sees:
            self.upstream[block] = {see.name: Views(self.views(see.nodes)) for see in opened.sees}
        self.messages[block] = self.render(opened, self.upstream[block])
        return opened.nodes

    def views(self, nodes: range) -> list[View]:
        return [result.view for result in self.results[nodes.start : nodes.stop] if result is not None]

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        self.active += 1
        self.tasks.append(asyncio.create_task(self.watched(work)))

    async def watched(self, work: Coroutine[None, None, None]) -> None:
        """Do the work, note what went wrong, and tell `episode` when nothing is left to wait for."""
        try:
            await work
        except Exception as error:
            self.stopped = self.stopped or error
        finally:
            self.active -= 1
            if (self.active == 0 or self.stopped is not None) and not self.finished.done():
                self.finished.set_result(None)

    async def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # one node

    def render(self, block: Block, upstream: Upstream) -> Sequence[Message] | Failure:
        role = self.plan.roles[block.role]
        try:
            return render_messages(role.prompt, role.system, {"task": self.visible, **upstream})
        except PromptError as error:
            return Failure(FailureName.PROMPT_ERROR, str(error))

    def turn(self, position: int) -> Coroutine[None, None, NodeResult]:
        node = self.plan.nodes[position]
        role = self.plan.roles[node.role]
        seed = self.seed if role.sampling.seed is None else self.seed_from(role.sampling.seed)
        # By position: every model call passes here.
        session = Session(role, node, self.models[node.endpoint], self.job, seed, self.observe)
        return session.turn(self.messages[node.block], self.upstream[node.block])

    # what it earns

    def settle(self, node: int, result: NodeResult) -> None:
        """Score a result whose reward needs no other's; a slow reward does not hold up what comes after."""
        role = self.plan.roles[self.plan.nodes[node].role]
        if result.failure is None and role.reward is not None and not role.reward.roles:
            if role.reward.timeout is None:
                score(role, self.job.task, result, SEEN_NOTHING)
            else:
                self.spawn(self.score_beside(role, result))
        if result.failure is not None:
            self.stop_at_failure(role, result)

    def stop_at_failure(self, role: RolePlan, result: NodeResult) -> None:
        if result.failure is not None and role.on_failure.then == "fail":
            raise _Stop

    async def score_beside(self, role: RolePlan, result: NodeResult) -> None:
        await score_isolated(role, self.job.task, result, SEEN_NOTHING, isolation=self.isolation)
        self.stop_at_failure(role, result)

    async def score_late(self) -> None:
        """Rewards that read other roles' scores, each after those it reads."""
        plan = self.plan
        for position in plan.scoring:
            role = plan.roles[position]
            reads = role.reward.roles if role.reward else ()
            seen = Seen(
                {
                    other.name: tuple(result.score or NO_SCORE for result in self.of_role(number))
                    for number, other in enumerate(plan.roles)
                    if other.name in reads
                }
            )
            for result in self.of_role(position):
                if result.failure is None:
                    await score_isolated(role, self.job.task, result, seen, isolation=self.isolation)
                    self.stop_at_failure(role, result)

    def of_role(self, position: int) -> list[NodeResult]:
        """The results of a role's instances, in order of index."""
        plan = self.plan
        return [
            result
            for node, result in zip(plan.nodes, self.results, strict=True)
            if node.role == position and result is not None
        ]
