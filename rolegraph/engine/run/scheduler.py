"""Run of one plan on one task: a node starts as soon as the nodes that it waits for are done.

In: a plan, a job, the models of the plan's endpoints. Out: an Episode, whatever failed. There is no barrier
between levels, and a failed node fails alone. Tasks started here have ended before the episode is returned.
Knows no provider, no disk and no training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import Block, Node
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import ChatPrefix, PromptError, render_messages
from rolegraph.engine.records import (
    Episode,
    EpisodeDone,
    Failure,
    FailureName,
    Message,
    Observer,
    StepMetadata,
)
from rolegraph.engine.records.metadata import TurnMetadata
from rolegraph.engine.run.agent import agent_turn
from rolegraph.engine.run.assembly import assemble
from rolegraph.engine.run.context import EpisodeContext
from rolegraph.engine.run.endings import LoopEnds
from rolegraph.engine.run.environment import EnvironmentSession
from rolegraph.engine.run.frontier import Frontier
from rolegraph.engine.run.rewards import EpisodeStop, score_at_once, score_late
from rolegraph.engine.run.task_group import TaskGroup
from rolegraph.engine.run.tools import Answer, Callees
from rolegraph.engine.run.turn import EpisodeJob, NodeResult, model_turn, node_result, tool_turn
from rolegraph.engine.vocabulary import EnvironmentFailure
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.engine.vocabulary.isolation import Isolation


async def run_episode(
    plan: Plan,
    job: EpisodeJob,
    models: Sequence[LimitedModel],
    *,
    isolation: Isolation,
    observe: Observer | None = None,
) -> Episode:
    """Run one episode. Failures are recorded in it; only cancellation and errors in this project's code
    raise.

    Args:
        plan: The workflow.
        job: The task, the rollout and the run's seed.
        models: The models of `plan.endpoints`, in that order.
        isolation: The processes for rewards and tools with a time limit.
        observe: Function that receives the episode's events: each call, and the episode itself. An
            interrupted episode is sent with the turns that it has.

    Raises:
        UsageError: The plan needs permissions that were not given.
    """
    if plan.withheld:
        names = ", ".join(permission.name for permission in plan.withheld)
        raise UsageError(f"{plan.name} runs only where this is allowed: {names}")
    context = EpisodeContext(plan_at(plan, job.step), job, isolation, observe, models)
    run = _Run(context, models)
    try:
        is_stopped = await run.run_nodes()
    except BaseException:
        try:
            await run.tasks.cancel()
        finally:
            run.finish(stopped=True, finished=False)
        raise
    else:
        return run.finish(stopped=is_stopped, finished=True)
    finally:
        if context.tools is not None:
            await context.tools.close()
        for environment in context.environments:
            await environment.close()


class _Run:
    """Scheduler of one running episode; nodes and blocks are positions in the plan."""

    def __init__(self, context: EpisodeContext, models: Sequence[LimitedModel]) -> None:
        plan = context.plan
        self.context, self.plan, self.results, self.models = context, plan, context.results, models
        self.frontier = Frontier(plan.wiring)
        self.tasks = TaskGroup()
        self.loop_ends = LoopEnds(context) if plan.loops else None
        self.messages: dict[int, Sequence[Message] | Failure] = {}
        """Prompt that the nodes of a block share, by block; kept only for opened blocks, since a long loop
        may end early."""

    def finish(self, *, stopped: bool, finished: bool) -> Episode:
        """Assemble the Episode and send it to the observer.

        Args:
            stopped: True if the episode ended before all nodes had run.
            finished: False for a cancelled episode, which the run does not count and `--resume` repeats.
        """
        endings = self.loop_ends.endings if self.loop_ends is not None else {}
        episode = assemble(self.context, endings, stopped=stopped)
        if self.context.observe is not None:
            self.context.observe(EpisodeDone(episode, finished))
        return episode

    # order of the nodes

    async def run_nodes(self) -> bool:
        """Run all turns of the episode and score them; return True if a failed turn stopped the episode."""
        tasks = self.tasks
        try:
            self.start(self.open_blocks(self.plan.wiring.initial_blocks))
            await tasks.wait()
            if self.plan.reward_order:
                score_late(self.context, tasks.create_task)
                await tasks.wait()
        except EpisodeStop:
            return True
        return False

    def start(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.tasks.create_task(self.run_branch(node))

    async def run_branch(self, position: int) -> None:
        """Run a node's turn, start the nodes that become ready, and run one of them next, until none is
        ready."""
        plan, context, create_task = self.plan, self.context, self.tasks.create_task
        while True:
            node = plan.nodes[position]
            role = plan.roles[node.role]
            result = self.results[position] = await self.take_turn(position, node, role)
            if role.group_keys:
                result.group_keys = context.group_keys(position, role)
            ready_nodes = self.frontier.done(position)
            if ready_nodes:
                ready_nodes = self.open_blocks(ready_nodes)
                if len(ready_nodes) > 1:
                    self.start(ready_nodes[1:])
            score_at_once(result, position, context, create_task)
            if not ready_nodes:
                return
            position = ready_nodes[0]

    def open_blocks(self, blocks: Sequence[int]) -> list[int]:
        """Select the turns to run in blocks that are ready, skip the others, and start environment
        transitions.

        Returns:
            The nodes to run, including those of blocks that became ready because nodes were skipped.
        """
        plan, context = self.plan, self.context
        nodes_to_run: list[int] = []
        blocks_to_open = [*blocks]
        for number in blocks_to_open:  # grows while it is read
            if context.environments and (positions := plan.env_at(number)) is not None:
                env_index, transition = positions
                if self.loop_ends is not None and self.loop_ends.is_skipped(plan.envs[env_index].loop):
                    blocks_to_open += self.frontier.skip((transition,))
                else:
                    self.tasks.create_task(self.advance(context.environments[env_index], transition))
                continue
            block = plan.blocks[number]
            role, nodes = plan.roles[block.role], block.nodes
            if block.may_skip:
                nodes = self.select_nodes(number, block, role)
                run_set = frozenset(nodes)
                blocks_to_open += self.frontier.skip(node for node in block.nodes if node not in run_set)
            elif block.inputs:
                context.set_upstream(number, block.inputs)
            if nodes and not role.prompt_per_instance and role.run is None:
                self.messages[number] = self.render(role, context.of_block(role, number))
            nodes_to_run += nodes
        return nodes_to_run

    def select_nodes(self, number: int, block: Block, role: RolePlan) -> Sequence[int]:
        """Return the nodes of a ready block that run: the loop goes on, not all parents were skipped, and
        `when` is true."""
        if role.spec.callable is not None:  # the caller has ended: no further call comes
            return ()
        if role.loop is not None and self.loop_ends is not None and self.loop_ends.is_over(number, role.loop):
            return ()
        context, environment, nodes = self.context, self.context.env_of.get(block.role), block.nodes
        context.set_upstream(number, block.inputs)
        if any(edge.is_parent and not len(context.upstream[number][edge.name]) for edge in block.inputs):
            return ()
        if environment is not None:
            nodes = [node for node in nodes if environment.moves(self.plan.nodes[node])]
        if role.when is None or not nodes:
            return nodes
        if "self" not in role.when.mentions:  # one value for the whole block
            return nodes if context.holds(role.when, context.of_block(role, number), role.name) else ()
        return [node for node in nodes if context.holds(role.when, context.of_node(node), role.name, (node,))]

    async def advance(self, environment: EnvironmentSession, transition: int) -> None:
        """Await the environment's next transition, and start the nodes that waited for it.

        If the environment fails, the last turn of each player fails, and EpisodeStop ends the episode.
        """
        try:
            await environment.advance(self.results)
        except EnvironmentFailure as error:
            for position in environment.last_turns():
                node, result = self.plan.nodes[position], self.results[position]
                role = self.plan.roles[node.role]
                result = result or node_result(role, node, role.parser.default)
                failure = Failure(FailureName.ENVIRONMENT_ERROR, str(error))
                public_view = result.view._replace(failure=failure.name.value).public
                self.results[position] = replace(result, public=public_view, failure=failure, score=None)
            raise EpisodeStop from None
        self.start(self.open_blocks(self.frontier.done(transition)))

    # one node

    def render(
        self, role: RolePlan, variables: Mapping[str, Any], *, is_first: bool = True
    ) -> Sequence[Message] | Failure:
        """Return the messages of a role's prompt, or a `prompt_error` Failure.

        If the prompt is the first of a chat, the system message and the examples come before it.
        """
        assert role.prompt is not None
        system, examples = (role.system, role.examples) if is_first else (None, None)
        try:
            return render_messages(role.prompt, system, examples, variables)
        except PromptError as error:
            return Failure(FailureName.PROMPT_ERROR, str(error))

    def take_turn(self, position: int, node: Node, role: RolePlan) -> Coroutine[None, None, NodeResult]:
        context = self.context
        upstream, prefix, callees = context.upstream[node.block], None, None
        opening = None
        if role.run is not None:
            return tool_turn(role, role.run, node, context, context.of_node(position), upstream)
        if not role.prompt_per_instance:
            messages = self.messages[node.block]
        elif role.spec.memory is not None:
            messages, prefix, opening = self.continue_chat(role, position)
        else:
            messages = self.render(role, context.of_node(position))
        if role.callees:
            plans = {callee.function.name: callee for callee in role.callees}
            callees = Callees(plans, self.plan.callees[position], self.answer_call)
        model = self.models[role.endpoints[node.id.index - 1]]
        if role.agent is not None:
            return agent_turn(role, node, model, context, messages, upstream)
        turn = model_turn(role, node, model, context, messages, upstream, prefix, callees)
        return turn if opening is None else _opened(turn, opening)

    async def answer_call(self, position: int, arguments: Mapping[str, Any]) -> Answer:
        """Run the turn of a role that a model called as a tool; return its action and failure, before its
        reward.

        The turn is a task of the episode, so that if it ends the episode, the other turns are cancelled.
        """
        context, node, create_task = self.context, self.plan.nodes[position], self.tasks.create_task
        role = self.plan.roles[node.role]
        answer_future = asyncio.get_running_loop().create_future()

        async def turn() -> None:
            context.arguments[position] = dict(arguments)
            context.set_upstream(node.block, self.plan.blocks[node.block].inputs)
            result = self.results[position] = await self.take_turn(position, node, role)
            if role.group_keys:
                result.group_keys = context.group_keys(position, role)
            answer_future.set_result((result.view.action, result.failure))
            score_at_once(result, position, context, create_task)

        create_task(turn())
        return await answer_future

    def continue_chat(
        self, role: RolePlan, position: int
    ) -> tuple[Sequence[Message] | Failure, ChatPrefix | None, StepMetadata | None]:
        """Return the messages of a turn in a conversation, the earlier chat as tokens, and the metadata of
        its opening.

        The tokens are None for a first turn, if rendering fails, and after a trunk whose model has other
        tokens. The metadata is None if the turn continues its own conversation.
        """
        plan, variables = self.plan, self.context.of_node(position)
        node_before, opening = self.turn_before(position), None
        if node_before is not None and role.reset is not None:
            try:
                is_reset = role.reset.truth(variables) is True
            except PromptError as error:  # the turn has no conversation that it could go on from
                message = f"memory.reset: {short_repr(role.reset.source)} cannot be computed: {error}"
                return Failure(FailureName.PROMPT_ERROR, message), None, None
            if is_reset:
                self.context.restarted.add(position)
                node_before, opening = None, StepMetadata(restarted=True)
        messages = self.render(role, variables, is_first=node_before is None)
        result = None if node_before is None else self.results[node_before]
        if node_before is None or result is None or isinstance(messages, Failure):
            return messages, None, opening
        last_call, node = result.calls[-1], plan.nodes[node_before]
        prefix = last_call.chat_prefix
        if node.role in role.trunk:
            opening = StepMetadata(forked=TurnMetadata(**node.id._asdict()))
            if not plan.endpoint_of(plan.nodes[position]).same_tokens(plan.endpoint_of(node)):
                prefix = None
        return (*last_call.chat, *messages), prefix, opening

    def turn_before(self, position: int) -> int | None:
        """Return the node whose chat a turn continues: the conversation's last turn that ran and did not
        fail.

        None if the conversation begins with this turn: no such turn exists, or a later turn restarted the
        conversation and failed.
        """
        plan, results, restarted_nodes = self.plan, self.results, self.context.restarted
        while nodes_before := plan.blocks[plan.nodes[position].block].chat_before:
            for turn in reversed(nodes_before):
                result = results[turn]
                if result is not None and result.continues_chat:
                    return turn
                if turn in restarted_nodes:
                    return None
            position = nodes_before[0]
        return None


async def _opened(turn: Coroutine[None, None, NodeResult], opening: StepMetadata) -> NodeResult:
    """Await a turn, and record in its result how its conversation began: forked or restarted."""
    result = await turn
    result.opening = opening
    return result
