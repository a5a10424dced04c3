"""The rewards of an episode's turns: what each reads, when it is computed, and the score that results.

A reward that reads only its own turn is computed when the turn ends, without holding up other nodes; one that
reads other turns, after all turns have ended. Rewards with a time limit run in a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import UnsupportedProgram, WorldError
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.records import Failure, FailureName, Task
from rolegraph.engine.records.plain import LARGEST
from rolegraph.engine.run.assembly import steps_of
from rolegraph.engine.run.context import EpisodeContext, Results, turns_taken
from rolegraph.engine.run.environment import EnvironmentSession
from rolegraph.engine.run.turn import EpisodeSession, NodeResult, failure_score
from rolegraph.engine.vocabulary import Reward, RewardInputs, Score, View
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, finite_number
from rolegraph.engine.vocabulary.isolation import CallLimit, Isolation

CreateTask = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
"""Starts a task of the episode. It is passed on and never stored: a reference from an episode to itself would
keep the episode in memory until the garbage collector runs."""
NO_INPUTS = RewardInputs()
LARGE_SECONDS = 60.0
"""Time limit of a reward that reads fields of a large task; elsewhere it would hold up other episodes."""


class EpisodeStop(Exception):
    """The end of an episode: a node with `then: fail` failed."""


def score_at_once(
    role: RolePlan,
    node: int,
    session: EpisodeSession,
    context: EpisodeContext,
    result: NodeResult,
    create_task: CreateTask,
) -> None:
    """Score a turn that has ended, unless its reward reads other turns.

    Args:
        role: The turn's role.
        node: The turn's position in the plan.
        context: The variables of the reward's expressions.
        session: The episode's task, and the processes for a reward with a time limit.
        result: The turn, whose score is set.
        create_task: Starts the task that waits for such a reward.

    Raises:
        EpisodeStop: The turn failed, and its role says `then: fail`.
    """
    reward = role.reward
    if result.failure is None and reward is not None and not reward.is_deferred:
        inputs = _turn_inputs(role, result) if reward.reads_turn else NO_INPUTS
        if role.formulas:
            inputs = _with_values(role, node, context, result, inputs)
        limit, task = _seconds(reward, session), session.job.task
        if inputs is None:
            pass
        elif limit is None:
            _score(role, task, result, inputs)
        else:
            create_task(_score_isolated(role, limit, task, result, inputs, session.isolation))
    if result.failure is not None:
        stop_at_failure(role, result)


def stop_at_failure(role: RolePlan, result: NodeResult) -> None:
    """Raise EpisodeStop where a result failed and its role says `then: fail`."""
    if result.failure is not None and role.spec.on_failure.then == "fail":
        raise EpisodeStop


@dataclass(slots=True, eq=False)
class LateRewards:
    """The rewards of an episode that read other turns. Nodes and roles are positions in the plan."""

    plan: Plan
    session: EpisodeSession
    results: Results
    environments: Sequence[EnvironmentSession | None]
    """By role, the environment of its loop."""
    context: EpisodeContext
    _positions: dict[tuple[int, int], Mapping[tuple[int, int], int]] = field(init=False, default_factory=dict)
    """By block and role, what `_positions_in` found."""

    def score(self, create_task: CreateTask) -> None:
        """Score each role's turns, in a task that waits for the roles whose scores its reward reads."""
        tasks: dict[str, asyncio.Task[None]] = {}
        for position in self.plan.reward_order:
            role = self.plan.roles[position]
            if role.reward is not None:
                before = [tasks[name] for name in role.reward.roles if name in tasks]
                tasks[role.name] = create_task(self._score_role(role, role.reward, before, create_task))

    async def _score_role(
        self, role: RolePlan, reward: Reward, before: Sequence[asyncio.Task[None]], create_task: CreateTask
    ) -> None:
        """Score the turns of a role; raises EpisodeStop."""
        if before:
            await asyncio.wait(before)
        isolated: list[asyncio.Task[None]] = []
        limit, task = _seconds(reward, self.session), self.session.job.task
        for node in role.nodes:
            result = self.results[node]
            if result is None or not _is_scored(role, reward, result):
                continue
            inputs = _with_values(role, node, self.context, result, self._inputs(node, result, reward))
            if inputs is None:
                stop_at_failure(role, result)
            elif limit is None:
                _score(role, task, result, inputs)
                stop_at_failure(role, result)
            else:
                scoring = _score_isolated(role, limit, task, result, inputs, self.session.isolation)
                isolated.append(create_task(scoring))
        await asyncio.gather(*isolated)

    def _inputs(self, node: int, result: NodeResult, reward: Reward) -> RewardInputs:
        """Return what a reward reads of its own turn, of other turns and of the environment."""
        at = self.plan.nodes[node]
        environment = self.environments[at.role]
        ran = {edge.name: turns_taken(edge, self.results) for edge in self.plan.reward_inputs.get(node, ())}
        scores = {
            name: tuple(turn.score for _, turn in ran[name] if turn.score is not None)
            for name in reward.roles
        }
        views = {name: tuple(self._view(*turn) for turn in ran[name]) for name in reward.views}
        positions = {
            name: tuple(
                self._positions_in(self.plan.nodes[reader].block, at.role).get((at.id.index, at.id.round))
                for reader, _ in ran[name]
            )
            for name in reward.views
        }
        env = environment.reward(node) if reward.reads_environment and environment is not None else None
        inputs = _turn_inputs(self.plan.roles[at.role], result) if reward.reads_turn else NO_INPUTS
        took_turns = frozenset(name for name, turns in ran.items() if turns)
        return inputs._replace(
            scores=scores, views=views, ran=took_turns, positions=positions, env_reward=env
        )

    def _view(self, node: int, turn: NodeResult) -> View:
        """Return a turn as a reward sees it: the message of a failed tool is no rating."""
        run = self.plan.roles[self.plan.nodes[node].role].run
        is_message = turn.failure is not None and run is not None and run.parser is None
        return turn.view._replace(action=None) if is_message else turn.view

    def _positions_in(self, block: int, role: int) -> Mapping[tuple[int, int], int]:
        """Return the position of each turn of a role in what a block's nodes saw, by index and round.

        A turn that was not seen has the position of the seen turn of its instance.
        """
        if (block, role) not in self._positions:
            edges = (edge for edge in self.plan.blocks[block].inputs if edge.role == role)
            taken = [turn for edge in edges for turn in turns_taken(edge, self.results)]
            ids = [self.plan.nodes[node].id for node, _ in taken]
            rounds = range(1, self.plan.roles[role].rounds + 1)
            of_instance = {(id.index, n): position for position, id in enumerate(ids) for n in rounds}
            of_turn = {(id.index, id.round): position for position, id in enumerate(ids)}
            self._positions[block, role] = of_instance | of_turn
        return self._positions[block, role]


def _seconds(reward: Reward, session: EpisodeSession) -> float | None:
    """Return the time limit of a reward in a process of its own; None for a reward that runs in place."""
    if reward.timeout is not None:
        return reward.timeout
    return LARGE_SECONDS if reward.fields and session.job.is_large else None


def _turn_inputs(role: RolePlan, result: NodeResult) -> RewardInputs:
    """Return the inputs of a reward that scores one turn: the turn's action, response and reasoning."""
    return RewardInputs(turn=result.view, steps=tuple(steps_of(role, result, masked=False)))


def _with_values(
    role: RolePlan, node: int, context: EpisodeContext, result: NodeResult, inputs: RewardInputs
) -> RewardInputs | None:
    """Return the inputs with the values of the reward's expressions; None, and a failed turn, where one of
    them cannot be computed."""
    if not role.formulas:
        return inputs
    try:
        return inputs._replace(values=context.values(node, role, result.view))
    except PromptError as error:
        _fail(role, result, f"the reward {error}")
        return None


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
        _fail_by(role, result, error)


async def _score_isolated(
    role: RolePlan, limit: float, task: Task, result: NodeResult, inputs: RewardInputs, isolation: Isolation
) -> None:
    """Set a result's score, computed in a process with limits; raises EpisodeStop."""
    assert role.reward is not None
    try:
        arguments = (task, result.view.action, inputs)
        score = isolation.run(role.reward.score, *arguments, limit=limit, memory=role.reward.memory)
        _set_score(role, result, await score)
    except CallLimit as error:
        _fail(role, result, f"the reward {error}")
    except FOREIGN_ERRORS as error:
        _fail_by(role, result, error)
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
        reward = None if reward is None else finite_number(reward, "the reward is")
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


def _fail_by(role: RolePlan, result: NodeResult, error: BaseException) -> None:
    """Fail a turn whose reward raised; without a score where the sandbox is at fault, and no role."""
    name, message = FailureName.REWARD_ERROR, f"the reward raised {describe_error(error)}"
    if isinstance(error, UnsupportedProgram):
        name, message = FailureName.UNSUPPORTED_PROGRAM, str(error)
    _fail(role, result, message, name)
    if isinstance(error, UnsupportedProgram | WorldError):
        result.score = None


def _fail(
    role: RolePlan, result: NodeResult, message: str, name: FailureName = FailureName.REWARD_ERROR
) -> None:
    result.score = failure_score(role)
    result.failure = result.failure or Failure(name, message)
