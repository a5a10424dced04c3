"""The rewards of an episode's turns: what each reads, when it is computed, and the score that results.

A reward that reads only its own turn is computed when the turn ends, while other nodes go on. A reward that
reads other turns is computed after all turns have ended. Rewards with a time limit run in a separate process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.errors import (
    FOREIGN_ERRORS,
    ModelError,
    UnsupportedProgram,
    WorldError,
    describe_error,
    place_of,
)
from rolegraph.engine.prompts import Expression, PromptError
from rolegraph.engine.records import Failure, FailureName
from rolegraph.engine.run.assembly import finished_turns, steps_of
from rolegraph.engine.run.context import EpisodeContext, turns_taken
from rolegraph.engine.run.likelihood import likelihoods_of
from rolegraph.engine.run.turn import NodeResult, failure_score
from rolegraph.engine.vocabulary import UNKNOWN, Reward, RewardInputs, Score, View, Views
from rolegraph.engine.vocabulary.foreign import finite_number, short_repr
from rolegraph.engine.vocabulary.isolation import CallLimit

CreateTask = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
"""Function that starts a task of the episode. It is passed on and never stored: a reference from an episode
to itself would keep the episode in memory until the garbage collector runs."""
NO_INPUTS = RewardInputs()
LARGE_SECONDS = 60.0
"""Time limit in seconds of a reward that reads a large task, in a separate process where it does not block
other episodes."""


class EpisodeStop(Exception):
    """The end of an episode: a node with `then: fail` failed."""


def score_at_once(result: NodeResult, node: int, context: EpisodeContext, create_task: CreateTask) -> None:
    """Score a turn that has ended, unless its reward reads other turns.

    Args:
        result: The turn, whose score is set.
        node: The turn's position in the plan.
        context: The episode.
        create_task: Function that starts the task of a reward with a time limit.

    Raises:
        EpisodeStop: The turn failed, and its role says `then: fail`.
    """
    reward = result.role.reward
    if reward is not None and not reward.is_deferred:
        inputs = _turn_inputs(result) if reward.reads_turn else NO_INPUTS
        later = _score(result, node, context, reward, inputs) if _is_computed(result, reward) else None
        if later is not None:
            create_task(later)
        _score_words(result, node, context, reward, inputs)
    if result.failure is not None:
        stop_at_failure(result)


def _is_computed(result: NodeResult, reward: Reward) -> bool:
    """Return True if the reward of a turn is computed.

    It is for every turn without a failure. For a failed turn, it is computed if the answer was unreadable and
    `on_failure` says `then: reward`, or if the environment scores the turn and `on_failure` gives no reward.
    """
    failing = result.role.spec.on_failure
    if result.failure is None:
        return True
    if failing.then == "reward":
        return result.failure.name.cause == "form"
    return reward.reads_environment and failing.reward is None


def stop_at_failure(result: NodeResult) -> None:
    """Raise EpisodeStop if a turn failed and its role says `then: fail`."""
    if result.failure is not None and result.role.spec.on_failure.then == "fail":
        raise EpisodeStop


class LateRewards:
    """Scoring of an episode's rewards that read other turns, after all turns have ended.

    Nodes and roles are positions in the plan.
    """

    def __init__(self, context: EpisodeContext) -> None:
        self.context, self.plan, self.results = context, context.plan, context.results

    def score(self, create_task: CreateTask) -> None:
        """Start a task for each role with a late reward; a task waits for the tasks of the roles that its
        reward reads."""
        tasks: dict[str, asyncio.Task[None]] = {}
        for position in self.plan.reward_order:
            role = self.plan.roles[position]
            if role.reward is not None:
                before = [tasks[name] for name in role.reward.roles if name in tasks]
                tasks[role.name] = create_task(self._score_role(role, role.reward, before, create_task))

    async def _score_role(
        self, role: RolePlan, reward: Reward, before: Sequence[asyncio.Task[None]], create_task: CreateTask
    ) -> None:
        """Set the scores of a role's turns, once the tasks in `before` are done; raises EpisodeStop.

        A failed turn has the score that `on_failure` sets, unless `_is_computed` says otherwise.
        """
        if before:
            await asyncio.wait(before)
        isolated: list[asyncio.Task[None]] = []
        for node in role.nodes:
            result = self.results[node]
            if result is None:
                continue
            is_computed = _is_computed(result, reward)
            is_needed = is_computed or role.name in self.plan.word_scored
            inputs = self._inputs(node, result, reward) if is_needed else None
            if is_computed and inputs is not None:
                if (later := _score(result, node, self.context, reward, *inputs)) is not None:
                    isolated.append(create_task(later))
                stop_at_failure(result)
            if inputs is not None:
                _score_words(result, node, self.context, reward, *inputs)
        await asyncio.gather(*isolated)

    def _inputs(self, node: int, result: NodeResult, reward: Reward) -> tuple[RewardInputs, dict[str, Views]]:
        """Return the inputs of a turn's reward, with views of other turns and the environment; and the turns
        that its expressions read."""
        plan_node = self.plan.nodes[node]
        environment = self.context.env_of.get(plan_node.role)
        edges = self.plan.reward_inputs.get(node, ())
        ran = {edge.name: turns_taken(edge, self.results) for edge in edges}
        views = {name: tuple(turn.public for _, turn in ran[name]) for name in reward.views}
        env = environment.reward(node) if reward.reads_environment and environment is not None else None
        inputs = _turn_inputs(result) if reward.reads_turn else NO_INPUTS
        inputs = inputs._replace(views=views, env_reward=env)
        if not result.role.formulas:
            return inputs, {}
        loop = self.plan.roles[plan_node.role].loop
        return inputs, {name: finished_turns(self.context, name, taken, loop) for name, taken in ran.items()}


def _turn_inputs(result: NodeResult) -> RewardInputs:
    """Return the inputs of a reward that scores one turn: the turn's action, response and reasoning."""
    return RewardInputs(turn=result.view, steps=tuple(steps_of(result, masked=False)))


def _variables(
    context: EpisodeContext, node: int, view: View, turns: Mapping[str, Views] | None
) -> Mapping[str, Any]:
    """Return the variables of the expressions in a turn's reward: the turn, the task and other turns."""
    formulas = context.plan.roles[context.plan.nodes[node].role].formulas
    return {**context.of_turn_end(node, view, formulas.values()), **(turns or {})}


def _score(
    result: NodeResult,
    node: int,
    context: EpisodeContext,
    reward: Reward,
    inputs: RewardInputs,
    turns: Mapping[str, Views] | None = None,
) -> Coroutine[None, None, None] | None:
    """Score a turn now, or return a coroutine that scores it with log-probabilities of texts or in a separate
    process.

    If the reward fails, or an expression of it cannot be computed, the turn fails with `reward_error`.

    Args:
        result: The turn, whose score is set.
        node: The turn's position in the plan.
        context: The episode.
        reward: The reward.
        inputs: Inputs of the reward.
        turns: Turns of other roles that the reward's expressions read.
    """
    limit = reward.timeout
    if limit is None and context.is_large and reward.facts.fields:
        limit = LARGE_SECONDS
    formulas = result.role.formulas
    try:
        if formulas:
            variables = _variables(context, node, result.view, turns)
            if slow := sum(it.timeout or 0.0 for it in formulas.values()):
                return _score_later(result, node, context, reward, inputs, limit, variables, slow)
            inputs = inputs._replace(values=values_of(formulas, variables))
        if limit is not None or result.role.likelihoods:
            return _score_later(result, node, context, reward, inputs, limit)
        _set_score(result, reward.score(context.task, result.view.action, inputs), inputs)
    except FOREIGN_ERRORS as error:  # a reward is the user's code
        _fail_by(result, error)
    return None


def _score_words(
    result: NodeResult,
    node: int,
    context: EpisodeContext,
    reward: Reward,
    inputs: RewardInputs,
    turns: Mapping[str, Views] | None = None,
) -> None:
    """Set `word_rewards` of a turn: the reward of each answer that the parser allows, if the role is
    `word_scored`."""
    role = result.role
    if role.name not in context.plan.word_scored or context.is_large or not result.calls:
        return
    rewards: dict[str, float] = {}
    for word in role.parser.gives.get("enum", (True, False)):
        view = result.view._replace(action=word, failure="")
        try:
            if role.formulas:
                values = values_of(role.formulas, _variables(context, node, view, turns))
                inputs = inputs._replace(values=values)
            score = reward.score(context.task, word, inputs)
        except FOREIGN_ERRORS:  # the turn's own score tells the reason
            return
        if score is None or score.reward is None:
            return
        rewards[str(word)] = score.reward
    result.word_rewards = rewards


async def _score_later(
    result: NodeResult,
    node: int,
    context: EpisodeContext,
    reward: Reward,
    inputs: RewardInputs,
    limit: float | None,
    variables: Mapping[str, Any] | None = None,
    slow: float = 0.0,
) -> None:
    """Request the log-probabilities that a turn's reward reads, and score the turn; may raise EpisodeStop.

    Args:
        result: The turn, whose score is set.
        node: The turn's position in the plan.
        context: The episode.
        reward: The reward.
        inputs: Inputs of the reward.
        limit: Time limit in seconds of a separate process; None scores in this process.
        variables: Variables with which the reward's expressions are computed first; None if they are computed
            already.
        slow: Time limit in seconds of the expressions.
    """
    try:
        if variables is not None:
            formulas, run = dict(result.role.formulas), context.isolation.run
            values = await run(values_of, formulas, variables, limit=slow, memory=reward.memory)
            inputs = inputs._replace(values=values)
        if result.role.likelihoods:
            inputs = inputs._replace(likelihoods=await likelihoods_of(result, node, context, inputs))
        arguments = context.task, result.view.action, inputs
        if limit is None:
            score = reward.score(*arguments)
        else:
            run = context.isolation.run
            score = await run(reward.score, *arguments, limit=limit, memory=reward.memory)
        _set_score(result, score, inputs)
    except FOREIGN_ERRORS as error:
        _fail_by(result, error)
    stop_at_failure(result)


def values_of(formulas: Mapping[str, Expression], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the expressions in a role's reward, by their texts.

    Raises:
        PromptError: An expression cannot be computed.
    """
    values: dict[str, Any] = {}
    for text, formula in formulas.items():
        if variables["tokens"] is UNKNOWN and "tokens" in formula.mentions:
            raise PromptError("tokens: the endpoint gave neither token ids nor a number of tokens")
        try:
            values[text] = formula.value(variables)
        except PromptError as error:
            raise PromptError(f"{short_repr(text)} cannot be computed: {error}") from error
    return values


def _set_score(result: NodeResult, score: Score | None, inputs: RewardInputs) -> None:
    if score is None:
        return
    reward, is_correct, terms = score
    if (right := result.role.spec.right) is not None:
        is_correct = None if (verdict := inputs.values[right]) is UNKNOWN else bool(verdict)
    if result.failure is not None:  # a failed turn is never correct
        is_correct = False
    try:
        reward = None if reward is None else finite_number(reward, "the reward is")
        terms = {
            str(name): finite_number(term, f"the reward's term {name!r} is") for name, term in terms.items()
        }
    except ValueError as error:
        _fail(result, str(error))
    else:
        result.score = Score(reward, None if is_correct is None else bool(is_correct), terms)


def _fail_by(result: NodeResult, error: BaseException) -> None:
    """Record that a turn's reward raised `error`; if the sandbox is at fault, remove the turn's score."""
    if isinstance(error, UnsupportedProgram):
        _fail(result, str(error), FailureName.UNSUPPORTED_PROGRAM)
    elif isinstance(error, PromptError | CallLimit):
        _fail(result, f"the reward {error}")
    else:
        _fail(result, f"the reward raised {describe_error(error)}", place=place_of(error))
    if isinstance(error, UnsupportedProgram | WorldError | ModelError):
        result.score = None


def _fail(
    result: NodeResult, message: str, name: FailureName = FailureName.REWARD_ERROR, place: str = ""
) -> None:
    is_set = result.role.spec.on_failure.reward is not None  # else nothing says what the answer is worth
    result.score = failure_score(result.role) if is_set else None
    result.failure = result.failure or Failure(name, message, place)
