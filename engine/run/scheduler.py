"""Runs one Plan on one task: a node starts the moment what it waits for is done.

In: a Plan, a job, the models of the plan's endpoints. Out: an Episode, whatever failed on the way. There is
no barrier between levels; a node that fails, fails alone. Tasks started here are finished or cancelled before
an episode is over. This file knows no provider, no disk and no training.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import Block, Node
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Clock, LimitedModel
from rolegraph.engine.prompts import ChatPrefix, PromptError, render_messages
from rolegraph.engine.records import (
    Episode,
    EpisodeDone,
    Failure,
    FailureName,
    Message,
    Observer,
    Task,
)
from rolegraph.engine.run.assembly import assemble
from rolegraph.engine.run.endings import LoopEnds
from rolegraph.engine.run.frontier import Frontier
from rolegraph.engine.run.isolation import Isolation
from rolegraph.engine.run.rewarding import EpisodeStop, LateRewards, settle
from rolegraph.engine.run.seeing import EpisodeContext
from rolegraph.engine.run.session import EpisodeJob, NodeResult, take_turn
from rolegraph.engine.run.task_group import TaskGroup
from rolegraph.engine.run.tool_turn import run_turn
from rolegraph.engine.run.tools import OpenTools
from rolegraph.engine.run.world import EnvironmentSession
from rolegraph.engine.vocabulary import EnvironmentFailure, View


def jobs(tasks: Iterable[Task], rollouts: int = 1, seed: int | None = None) -> Iterator[EpisodeJob]:
    """A job for each task and rollout."""
    return (EpisodeJob(task, rollout, seed) for task in tasks for rollout in range(rollouts))


def missing(planned: Iterable[EpisodeJob], finished: Iterable[tuple[str, int]]) -> Iterator[EpisodeJob]:
    """The jobs of whose episodes there is none yet: `finished` ones by their task's id and their rollout."""
    there = Counter(finished)
    for job in planned:
        key = job.task["id"], job.rollout
        if there[key]:
            there[key] -= 1
        else:
            yield job


def run_episode(
    plan: Plan,
    job: EpisodeJob,
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


class _Run:
    """One episode while it runs. Nodes and blocks are known by their positions in the plan."""

    __slots__ = (
        "began",
        "clock",
        "ends",
        "frontier",
        "isolation",
        "job",
        "messages",
        "models",
        "observe",
        "plan",
        "results",
        "seed",
        "sight",
        "tasks",
        "tools",
        "world",
    )

    def __init__(
        self,
        plan: Plan,
        job: EpisodeJob,
        models: Sequence[LimitedModel],
        *,
        isolation: Isolation,
        observe: Observer | None,
    ) -> None:
        self.plan, self.job, self.models, self.isolation, self.observe = plan, job, models, isolation, observe
        self.seed = None if job.seed is None else job.seeded(job.seed)
        self.frontier = Frontier(plan.wiring)
        self.results: list[NodeResult | None] = [None] * len(plan.nodes)
        self.world = None if plan.env is None else EnvironmentSession(plan.env, job.task)
        self.sight = EpisodeContext(plan, job.task, self.results, self.world)
        self.ends: LoopEnds | None = None
        if plan.loops:
            self.ends = LoopEnds(plan, self.results, self.sight, self.frontier, self.world)
        self.messages: dict[int, Sequence[Message] | Failure] = {}
        """By block, what its nodes are asked; of blocks that opened, as a long loop may end early."""
        self.tools: OpenTools | None = None
        """Those in use; None until there is a first."""
        self.tasks: TaskGroup
        self.clock: Clock
        """The event loop's."""
        self.began = 0.0
        """When the episode did, by the clock."""

    async def episode(self) -> Episode:
        """The episode; what was opened for it is closed whatever happens."""
        if self.plan.withheld:
            names = ", ".join(permission.name for permission in self.plan.withheld)
            raise UsageError(f"{self.plan.name} runs only where this is allowed: {names}")
        loop = asyncio.get_running_loop()
        self.clock, self.began = loop.time, loop.time()
        self.tasks = TaskGroup(loop)
        try:
            stopped = await self.turns()
        except BaseException:
            try:
                await self.tasks.cancel()
            finally:
                self.tell(self.assembled(stopped=True), finished=False)
            raise
        else:
            episode = self.assembled(stopped=stopped)
            self.tell(episode, finished=True)
            return episode
        finally:
            if self.tools is not None:
                await self.tools.close()
            if self.world is not None:
                await self.world.close()

    def tell(self, episode: Episode, *, finished: bool) -> None:
        if self.observe is not None:
            self.observe(EpisodeDone(episode, finished))

    def assembled(self, *, stopped: bool) -> Episode:
        job, world = self.job, self.world
        noted: dict[str, object] = {}
        if self.sight.uncomputed:
            noted["uncomputed_conditions"] = self.sight.uncomputed
        if world is not None and world.info:
            noted["environment"] = world.info
        over = world.loop if world is not None and world.over else None
        endings = self.ends.endings if self.ends is not None else {}
        return assemble(
            self.plan, job.task, job.rollout, self.results, endings, over, stopped=stopped, noted=noted
        )

    # which node runs when

    async def turns(self) -> bool:
        """Take and score all of them; whether a node ended the episode before."""
        tasks = self.tasks
        try:
            self.start(self.opened(self.plan.wiring.initial_blocks))
            await tasks.settled()
            if self.plan.reward_order:
                late = LateRewards(self.plan, self.job.task, self.results, self.world, self.isolation)
                tasks.spawn(late.score(tasks.spawn))
                await tasks.settled()
        except EpisodeStop:
            return True
        return False

    def start(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.tasks.spawn(self.branch(node))

    async def branch(self, position: int) -> None:
        """Run a node, then go on in the same task with one of those that became ready by it."""
        plan = self.plan
        while True:
            node = plan.nodes[position]
            role = plan.roles[node.role]
            result = self.results[position] = await self.turn(position, node, role)
            ready = self.frontier.done(position)
            if ready:
                ready = self.opened(ready)
                self.start(ready[1:])
            settle(role, self.job.task, result, self.isolation, self.tasks.spawn)
            if not ready:
                return
            position = ready[0]

    def opened(self, blocks: Sequence[int]) -> list[int]:
        """The nodes to run of blocks that have nothing to wait for; who is skipped lets others go on."""
        plan, sight = self.plan, self.sight
        ready: list[int] = []
        todo = [*blocks]
        for number in todo:  # and those that are released on the way
            if self.world is not None and (transition := plan.transition_at(number)) is not None:
                self.tasks.spawn(self.go_on(transition))
                continue
            block = plan.blocks[number]
            role = plan.roles[block.role]
            if role.loop is not None and self.ends is not None and self.ends.is_over(number, role.loop):
                todo += self.ends.end(block, role.loop)
                continue
            if block.inputs:
                sight.join(number, block.inputs)
            nodes = block.nodes
            if block.may_skip:
                nodes = self.running(block, role, number)
                if len(nodes) < len(block.nodes):
                    running = frozenset(nodes)
                    todo += self.frontier.skip(node for node in block.nodes if node not in running)
            if nodes and not role.prompt_per_instance and role.run is None:
                self.messages[number] = self.render(role, sight.of_block(role, number))
            ready += nodes
        return ready

    # who is skipped

    def running(self, block: Block, role: RolePlan, number: int) -> Sequence[int]:
        """The nodes of a block that run: a parent ran, its condition is true."""
        if any(see.is_parent and not len(self.sight.upstream[number][see.name]) for see in block.inputs):
            return ()
        nodes = block.nodes
        if self.plan.never_run:
            nodes = [node for node in nodes if node not in self.plan.never_run]
        if self.world is not None and self.world.loop == role.loop:
            nodes = [node for node in nodes if self.world.moves(self.plan.nodes[node])]
        if role.when is None or not nodes:
            return nodes
        if "self" not in role.when.mentions:  # the same for all of them
            return nodes if self.sight.holds(role.when, self.sight.of_block(role, number)) else ()
        return [node for node in nodes if self.sight.holds(role.when, self.sight.of_node(node))]

    async def go_on(self, transition: int) -> None:
        """Let the environment answer the turns of a round, and open what waited for that."""
        assert self.world is not None
        try:
            await self.world.go_on(self.results)
        except EnvironmentFailure as error:
            self.stop_at_environment(self.world, str(error))
            raise EpisodeStop from None
        self.start(self.opened(self.frontier.done(transition)))

    def stop_at_environment(self, world: EnvironmentSession, message: str) -> None:
        """Say in each player's last turn that nothing came of it."""
        for place in world.stopped():
            node = self.plan.nodes[place]
            result = self.results[place]
            if result is None:
                default = self.plan.roles[node.role].parser.default
                view = View(
                    node.id.index, default, round=node.id.round, lineage=node.lineage, role=node.id.role
                )
                result = self.results[place] = NodeResult(view)
            result.failure, result.score = Failure(FailureName.ENVIRONMENT_ERROR, message), None

    # one node

    def render(
        self, role: RolePlan, variables: Mapping[str, Any], *, first: bool = True
    ) -> Sequence[Message] | Failure:
        """What a role is asked; only the first turn of a conversation has the system's."""
        assert role.prompt is not None
        try:
            return render_messages(role.prompt, role.system if first else None, variables)
        except PromptError as error:
            return Failure(FailureName.PROMPT_ERROR, str(error))

    def turn(self, position: int, node: Node, role: RolePlan) -> Coroutine[None, None, NodeResult]:
        upstream = self.sight.upstream[node.block]
        if role.run is not None:
            return run_turn(
                role,
                role.run,
                node,
                self.sight.of_node(position),
                upstream,
                tools=self.opened_tools(),
                isolation=self.isolation,
                clock=self.clock,
                began=self.began,
            )
        assert node.endpoint is not None
        continues = tools = None
        if not role.prompt_per_instance:
            asked = self.messages[node.block]
        elif role.spec.memory == "chat":
            asked, continues = self.next_of_chat(role, position)
        else:
            asked = self.render(role, self.sight.of_node(position))
        if role.tools:
            tools = self.opened_tools()
        # By position: every model call passes here.
        return take_turn(
            role,
            node,
            self.models[node.endpoint],
            self.job,
            self.seed,
            self.observe,
            self.clock,
            self.began,
            asked,
            upstream,
            tools,
            continues,
        )

    def opened_tools(self) -> OpenTools:
        self.tools = self.tools or OpenTools()
        return self.tools

    def next_of_chat(
        self, role: RolePlan, position: int
    ) -> tuple[Sequence[Message] | Failure, ChatPrefix | None]:
        """What goes on with the last turn of its instance that was neither skipped nor failed, and the tokens
        which that left."""
        number = self.plan.nodes[position].id.round
        earlier = (self.results[position - role.count * back] for back in range(1, number))
        last = next((result for result in earlier if result is not None and result.is_remembered), None)
        asked = self.render(role, self.sight.of_node(position), first=last is None)
        if last is None or isinstance(asked, Failure):
            return asked, None
        return (*last.calls[-1].chat, *asked), last.calls[-1].continued
