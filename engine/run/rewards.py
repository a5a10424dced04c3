"""The rewards of an episode's turns: what each reads, when it is computed, and the score that results.

A reward that reads only its own turn is computed when the turn ends, without holding up other nodes; one that
reads other turns, after all turns have ended. Rewards with a time limit run in a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.records import Failure, FailureName, Task
from rolegraph.engine.records.plain import LARGEST
from rolegraph.engine.run.assembly import steps_of
from rolegraph.engine.run.context import Results, run_nodes
from rolegraph.engine.run.environment import EnvironmentSession
from rolegraph.engine.run.isolation import CallTimeout, Isolation
from rolegraph.engine.run.turn import NodeResult, failure_score
from rolegraph.engine.vocabulary import Reward, RewardInputs, Score
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, finite_number

CreateTask = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
"""Starts a task of the episode. It is passed on and never stored: a reference from an episode to itself would
keep the episode in memory until the garbage collector runs."""
NO_INPUTS = RewardInputs()


class EpisodeStop(Exception):
    """The end of an episode: a node with `then: fail` failed."""


def score_at_once(
    role: RolePlan, task: Task, result: NodeResult, isolation: Isolation, create_task: CreateTask
) -> None:
    """Score a turn that has ended, unless its reward reads other turns.

    Args:
        role: The turn's role.
        task: The episode's task.
        result: The turn, whose score is set.
        isolation: The processes for a reward with a time limit.
        create_task: Starts the task that waits for such a reward.

    Raises:
        EpisodeStop: The turn failed, and its role says `then: fail`.
    """
    reward = role.reward
    if result.failure is None and reward is not None and not reward.is_deferred:
        inputs = _turn_inputs(role, result) if reward.reads_turn else NO_INPUTS
        if reward.timeout is None:
            _score(role, task, result, inputs)
        else:
            create_task(_score_isolated(role, task, result, inputs, isolation))
    if result.failure is not None:
        stop_at_failure(role, result)


def stop_at_failure(role: RolePlan, result: NodeResult) -> None:
    """Raise EpisodeStop where a result failed and its role says `then: fail`."""
    if result.failure is not None and role.spec.on_failure.then == "fail":
        raise EpisodeStop


class LateRewards:
    """The rewards of an episode that read other turns. Nodes and roles are positions in the plan."""

    __slots__ = ("_environment", "_isolation", "_plan", "_positions", "_results", "_task")

    def __init__(
        self,
        plan: Plan,
        task: Task,
        results: Results,
        environment: EnvironmentSession | None,
        isolation: Isolation,
    ) -> None:
        self._plan, self._task, self._results = plan, task, results
        self._environment, self._isolation = environment, isolation
        self._positions: dict[tuple[int, int], Mapping[tuple[int, int], int]] = {}
        """By block and role, what `_positions_of` found."""

    async def score(self, create_task: CreateTask) -> None:
        """Score each turn once the scores that its reward reads are known; raises EpisodeStop."""
        scoring: dict[int, asyncio.Task[None]] = {}
        for role_position in self._plan.reward_order:
            role = self._plan.roles[role_position]
            reward = role.reward
            for node, at in enumerate(self._plan.nodes):
                result = self._results[node]
                if at.role != role_position or result is None or reward is None:
                    continue
                if not _is_scored(role, reward, result):
                    continue
                before = self._scores_before(node, reward, scoring)
                inputs = partial(self._inputs, node, result, reward)
                if before or reward.timeout is not None:
                    scoring[node] = create_task(self._score_after(before, role, result, inputs))
                else:
                    _score(role, self._task, result, inputs())
                    stop_at_failure(role, result)

    def _scores_before(
        self, node: int, reward: Reward, scoring: Mapping[int, asyncio.Task[None]]
    ) -> list[asyncio.Task[None]]:
        """Return the tasks under way whose scores a reward reads."""
        if not scoring:
            return []
        edges = (edge for edge in self._plan.reward_inputs.get(node, ()) if edge.name in reward.roles)
        return [scoring[other] for edge in edges for other in edge.nodes if other in scoring]

    async def _score_after(
        self,
        before: Sequence[asyncio.Task[None]],
        role: RolePlan,
        result: NodeResult,
        inputs: Callable[[], RewardInputs],
    ) -> None:
        if before:
            await asyncio.wait(before)
        await _score_isolated(role, self._task, result, inputs(), self._isolation)

    def _inputs(self, node: int, result: NodeResult, reward: Reward) -> RewardInputs:
        """Return what a reward reads of its own turn, of other turns and of the environment."""
        results, at = self._results, self._plan.nodes[node]
        ran = {edge.name: run_nodes(edge, results) for edge in self._plan.reward_inputs.get(node, ())}
        scores = {
            name: tuple(r.score for n in ran[name] if (r := results[n]) is not None and r.score is not None)
            for name in reward.roles
        }
        views = {
            name: tuple(r.view for n in ran[name] if (r := results[n]) is not None) for name in reward.views
        }
        positions = {
            name: tuple(
                self._positions_in(other, at.role).get((at.id.index, at.id.round)) for other in ran[name]
            )
            for name in reward.views
        }
        environment = self._environment
        env = environment.reward(node) if reward.reads_environment and environment is not None else None
        inputs = _turn_inputs(self._plan.roles[at.role], result) if reward.reads_turn else NO_INPUTS
        return inputs._replace(scores=scores, views=views, positions=positions, env_reward=env)

    def _positions_in(self, node: int, role: int) -> Mapping[tuple[int, int], int]:
        """Return the position of each turn of a role in what a node saw, by index and round.

        A turn that was not seen has the position of the seen turn of its instance.
        """
        key = self._plan.nodes[node].block, role
        if key not in self._positions:
            self._positions[key] = self._positions_of(*key)
        return self._positions[key]

    def _positions_of(self, block: int, role: int) -> Mapping[tuple[int, int], int]:
        for edge in self._plan.blocks[block].inputs:
            if edge.role == role:
                ids = [self._plan.nodes[node].id for node in run_nodes(edge, self._results)]
                rounds = range(1, self._plan.roles[role].rounds + 1)
                of_instance = {(id.index, n): position for position, id in enumerate(ids) for n in rounds}
                return of_instance | {(id.index, id.round): position for position, id in enumerate(ids)}
        return {}


def _turn_inputs(role: RolePlan, result: NodeResult) -> RewardInputs:
    """Return what a reward reads of its own turn."""
    return RewardInputs(turn=result.view, steps=tuple(steps_of(role, result, masked=False)))


def _is_scored(role: RolePlan, reward: Reward, result: NodeResult) -> bool:
    """Return whether a turn's reward is computed.

    A failed turn has the score that `on_failure` sets; without one, its reward is computed where the score
    comes from elsewhere: another role or the environment.
    """
    elsewhere = reward.delegates or reward.reads_environment
    return result.failure is None or (elsewhere and role.spec.on_failure.reward is None)


def _score(role: RolePlan, task: Task, result: NodeResult, inputs: RewardInputs) -> None:
    """Set a result's score; a reward that fails is a `reward_error`."""
    assert role.reward is not None
    try:
        _set_score(role, result, role.reward.score(task, result.view.action, inputs))
    except FOREIGN_ERRORS as error:  # a reward is the user's code
        _fail(role, result, f"the reward raised {describe_error(error)}")


async def _score_isolated(
    role: RolePlan, task: Task, result: NodeResult, inputs: RewardInputs, isolation: Isolation
) -> None:
    """Set a result's score, in a process if the reward has a time limit; raises EpisodeStop."""
    reward = role.reward
    assert reward is not None
    if reward.timeout is None:
        _score(role, task, result, inputs)
    else:
        try:
            arguments = (task, result.view.action, inputs)
            _set_score(role, result, await isolation.run(reward.score, *arguments, limit=reward.timeout))
        except CallTimeout:
            _fail(role, result, f"the reward took longer than {reward.timeout:g} s")
        except FOREIGN_ERRORS as error:
            _fail(role, result, f"the reward raised {describe_error(error)}")
    stop_at_failure(role, result)


def _set_score(role: RolePlan, result: NodeResult, score: Score | None) -> None:
    if score is None:
        return
    reward, is_correct, terms = score
    is_plain = type(reward) is float and abs(reward) <= LARGEST and not terms
    if is_plain and (is_correct is None or type(is_correct) is bool) and result.failure is None:
        result.score = score
        return
    try:
        reward = finite_number(reward, "the reward is")
        terms = {
            str(name): finite_number(term, f"the reward's term {name!r} is") for name, term in terms.items()
        }
    except ValueError as error:
        _fail(role, result, str(error))
        return
    is_correct = None if is_correct is None else bool(is_correct)
    if result.failure is not None:  # a failed turn is never correct
        is_correct = False
    result.score = Score(reward, is_correct, terms)


def _fail(role: RolePlan, result: NodeResult, message: str) -> None:
    result.score = failure_score(role)
    result.failure = result.failure or Failure(FailureName.REWARD_ERROR, message)
