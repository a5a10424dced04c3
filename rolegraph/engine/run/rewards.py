"""The rewards of an episode's turns: what each reads, when it is computed, and the score that results.

A reward that reads only its own turn is computed when the turn ends, while other nodes go on. A reward that
reads other turns is computed after all turns have ended. Rewards with a time limit run in a separate process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
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
        scoring = TurnReward(result, node, context, reward, _turn_inputs(result, reward))
        if scoring.is_computed and (score_task := scoring.score()) is not None:
            create_task(score_task)
        scoring.score_words()
    if result.failure is not None:
        stop_at_failure(result)


def stop_at_failure(result: NodeResult) -> None:
    """Raise EpisodeStop if a turn failed and its role says `then: fail`."""
    if result.failure is not None and result.role.spec.on_failure.then == "fail":
        raise EpisodeStop


def score_late(context: EpisodeContext, create_task: CreateTask) -> None:
    """Score the rewards that read other turns, after all turns have ended.

    Each role with such a reward has a task, which waits for the tasks of the roles that its reward reads.
    """
    tasks: dict[str, asyncio.Task[None]] = {}
    for position in context.plan.reward_order:
        role = context.plan.roles[position]
        if role.reward is not None:
            tasks_before = [tasks[name] for name in role.reward.roles if name in tasks]
            tasks[role.name] = create_task(_score_role(context, role, role.reward, tasks_before, create_task))


async def _score_role(
    context: EpisodeContext,
    role: RolePlan,
    reward: Reward,
    before: Sequence[asyncio.Task[None]],
    create_task: CreateTask,
) -> None:
    """Set the scores of a role's turns, once the tasks in `before` are done; raises EpisodeStop.

    A failed turn has the score that `on_failure` sets, unless `TurnReward.is_computed` says otherwise.
    """
    if before:
        await asyncio.wait(before)
    isolated: list[asyncio.Task[None]] = []
    for node in role.nodes:
        result = context.results[node]
        if result is None:
            continue
        scoring = TurnReward(result, node, context, reward)
        is_computed = scoring.is_computed
        if is_computed or role.name in context.plan.word_scored:
            scoring.read_turns()
        if is_computed:
            if (score_task := scoring.score()) is not None:
                isolated.append(create_task(score_task))
            stop_at_failure(result)
        scoring.score_words()
    await asyncio.gather(*isolated)


def _turn_inputs(result: NodeResult, reward: Reward) -> RewardInputs:
    """Return the inputs that a reward reads of the turn alone: its action, response and reasoning."""
    if not reward.reads_turn:
        return NO_INPUTS
    return RewardInputs(turn=result.view, steps=tuple(steps_of(result, masked=False)))


@dataclass(slots=True)
class TurnReward:
    """Reward of one turn that has ended, with its inputs."""

    result: NodeResult
    """The turn, whose score is set."""
    node: int
    """Position of the turn in the plan."""
    context: EpisodeContext
    reward: Reward
    inputs: RewardInputs = NO_INPUTS
    turns: Mapping[str, Views] = field(default_factory=dict[str, Views])
    """Turns that the reward's expressions read."""

    @property
    def is_computed(self) -> bool:
        """True if the reward of the turn is computed.

        It is for every turn without a failure. For a failed turn, it is computed if the answer was unreadable
        and `on_failure` says `then: reward`, or if the environment scores the turn and `on_failure` gives no
        reward.
        """
        failure, failure_rule = self.result.failure, self.result.role.spec.on_failure
        if failure is None:
            return True
        if failure_rule.then == "reward":
            return failure.name.cause == "form"
        return self.reward.reads_environment and failure_rule.reward is None

    def read_turns(self) -> None:
        """Set the inputs of a reward that reads other turns or the environment, and the turns that its
        expressions read."""
        context, reward, role = self.context, self.reward, self.result.role
        position = context.plan.nodes[self.node].role
        environment = context.env_of.get(position)
        edges = context.plan.reward_inputs.get(self.node, ())
        turns_by_edge = {edge.name: turns_taken(edge, context.results) for edge in edges}
        views = {name: tuple(turn.public for _, turn in turns_by_edge[name]) for name in reward.views}
        env = environment.reward(self.node) if reward.reads_environment and environment is not None else None
        self.inputs = _turn_inputs(self.result, reward)._replace(views=views, env_reward=env)
        if role.formulas:
            self.turns = {
                name: finished_turns(context, name, taken, role.loop) for name, taken in turns_by_edge.items()
            }

    def score(self) -> Coroutine[None, None, None] | None:
        """Score the turn now, or return a coroutine that scores it with log-probabilities of texts or in a
        separate process.

        If the reward fails, or an expression of it cannot be computed, the turn fails with `reward_error`.
        """
        role, limit = self.result.role, self.reward.timeout
        if limit is None and self.context.is_large and self.reward.facts.fields:
            limit = LARGE_SECONDS
        slow_seconds = sum(it.timeout or 0.0 for it in role.formulas.values())
        if slow_seconds or limit is not None or role.likelihoods:
            return self._score_later(limit, slow_seconds)
        try:
            inputs = self._with_values(self.result.view)
            self._set_score(self.reward.score(self.context.task, self.result.view.action, inputs), inputs)
        except FOREIGN_ERRORS as error:  # a reward is the user's code
            self._fail_by(error)
        return None

    def score_words(self) -> None:
        """Set `word_rewards` of the turn: the reward of each answer that the parser allows, if the role is
        `word_scored`."""
        role, view, context = self.result.role, self.result.view, self.context
        if role.name not in context.plan.word_scored or context.is_large or not self.result.calls:
            return
        rewards: dict[str, float] = {}
        for word in role.parser.gives.get("enum", (True, False)):
            try:
                inputs = self._with_values(view._replace(action=word, failure=""))
                score = self.reward.score(context.task, word, inputs)
            except FOREIGN_ERRORS:  # the turn's own score tells the reason
                return
            if score is None or score.reward is None:
                return
            rewards[str(word)] = score.reward
        self.result.word_rewards = rewards

    async def _score_later(self, limit: float | None, slow: float) -> None:
        """Request the log-probabilities that the reward reads, and score the turn; may raise EpisodeStop.

        Args:
            limit: Time limit in seconds of a separate process; None scores in this process.
            slow: Time limit in seconds of the reward's expressions in a separate process; 0 computes them in
                this process.
        """
        result, reward, run = self.result, self.reward, self.context.isolation.run
        try:
            if slow:
                formulas, variables = dict(result.role.formulas), self._variables(result.view)
                values = await run(values_of, formulas, variables, limit=slow, memory=reward.memory)
                inputs = self.inputs._replace(values=values)
            else:
                inputs = self._with_values(result.view)
            if result.role.likelihoods:
                likelihoods = await likelihoods_of(result, self.node, self.context, inputs)
                inputs = inputs._replace(likelihoods=likelihoods)
            arguments = self.context.task, result.view.action, inputs
            if limit is None:
                score = reward.score(*arguments)
            else:
                score = await run(reward.score, *arguments, limit=limit, memory=reward.memory)
            self._set_score(score, inputs)
        except FOREIGN_ERRORS as error:
            self._fail_by(error)
        stop_at_failure(result)

    def _with_values(self, view: View) -> RewardInputs:
        """Return the inputs with the values of the reward's expressions for a view of the turn."""
        formulas = self.result.role.formulas
        return (
            self.inputs._replace(values=values_of(formulas, self._variables(view)))
            if formulas
            else self.inputs
        )

    def _variables(self, view: View) -> Mapping[str, Any]:
        """Return the variables of the reward's expressions: the turn, the task and other turns."""
        return {**self.context.of_turn_end(self.node, view, self.result.role.formulas.values()), **self.turns}

    def _set_score(self, score: Score | None, inputs: RewardInputs) -> None:
        if score is None:
            return
        reward, is_correct, terms = score
        if (right := self.result.role.spec.right) is not None:
            is_correct = None if (verdict := inputs.values[right]) is UNKNOWN else bool(verdict)
        if self.result.failure is not None:  # a failed turn is never correct
            is_correct = False
        try:
            reward = None if reward is None else finite_number(reward, "the reward is")
            terms = {
                str(name): finite_number(term, f"the reward's term {name!r} is")
                for name, term in terms.items()
            }
        except ValueError as error:
            self._fail(str(error))
        else:
            self.result.score = Score(reward, None if is_correct is None else bool(is_correct), terms)

    def _fail_by(self, error: BaseException) -> None:
        """Record that the reward raised `error`; if the sandbox is at fault, remove the turn's score."""
        if isinstance(error, UnsupportedProgram):
            self._fail(str(error), FailureName.UNSUPPORTED_PROGRAM)
        elif isinstance(error, PromptError | CallLimit):
            self._fail(f"the reward {error}")
        else:
            self._fail(f"the reward raised {describe_error(error)}", place=place_of(error))
        if isinstance(error, UnsupportedProgram | WorldError | ModelError):
            self.result.score = None

    def _fail(self, message: str, name: FailureName = FailureName.REWARD_ERROR, place: str = "") -> None:
        result = self.result
        is_set = result.role.spec.on_failure.reward is not None  # else nothing says what the answer is worth
        result.score = failure_score(result.role) if is_set else None
        result.failure = result.failure or Failure(name, message, place)


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
