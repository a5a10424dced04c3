"""Rewards that other roles or the environment decide.

Each reads the turns of other roles on its own branch, and is None where none of these ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FiniteFloat

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import ActionRead, Reward, RewardFacts, RewardInputs, Score
from rolegraph.roles.equality import MATH_SECONDS, SAME_MATH, Equal, Seconds, as_text, require_math, same_text
from rolegraph.roles.json_text import value_at
from rolegraph.roles.numbers import number_of


def _number_or_mask(written: object) -> object:
    is_number = isinstance(written, int | float) and not isinstance(written, bool) and isfinite(written)
    if is_number or written in ("mask", None):
        return written
    raise ValueError("expected a finite number, or mask")


Else = Annotated[float | Literal["mask"] | None, BeforeValidator(_number_or_mask)]
"""Score where no turn of the other role ran; None for no score."""


def _without_turns(role: str, else_: Else, inputs: RewardInputs) -> Score | None:
    """Return the score where no turn of a role can be read: that of `else`, if none ran."""
    if else_ is None or role in inputs.ran:
        return None
    return Score(None if else_ == "mask" else else_, None)


def of(role: str, /, *, scale: FiniteFloat = 1.0, offset: FiniteFloat = 0.0, else_: Else = None) -> Reward:
    """Pay another role's reward, times `scale`, plus `offset`: a scale of -1 is zero-sum.

    role: the role whose reward it is; of several instances the mean
    scale: the factor of the reward; below 0, the reward does not judge whether a turn is right
    offset: the number that is added
    else: the reward where that role took no turn: a number, which is not scaled, or mask, which keeps the
      turn out of training; left out, there is no reward, and in a sum no term
    """

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        scores = inputs.scores[role]
        if not scores:
            return _without_turns(role, else_, inputs)
        verdicts = [each.is_correct for each in scores if each.is_correct is not None]
        rewards = [each.reward for each in scores if each.reward is not None]
        reward = scale * fmean(rewards) + offset if rewards else None
        return Score(reward, all(verdicts) if verdicts and scale > 0 else None)

    verdicts = (role,) if scale > 0 else ()
    facts = RewardFacts(judges=False, verdicts=verdicts, outcomes=(role,))
    return Reward(score, facts, roles=(role,), delegates=True)


def rated_by(
    role: str,
    /,
    *,
    path: str | None = None,
    map: dict[str, FiniteFloat] | None = None,
    scale: FiniteFloat = 1.0,
    offset: FiniteFloat = 0.0,
    else_: Else = None,
) -> Reward:
    """Pay a number in another role's action, times `scale`, plus `offset`.

    role: the role that rates; of several instances the mean, less those without a number there
    path: its place in a JSON action, such as scores.0; `*` is this turn's position in the input of that role
    map: the number for each word, whatever its case, where the role rates in words
    scale: the factor of the number
    offset: the number that is added
    else: the reward where that role took no turn: a number, which is not scaled, or mask, which keeps the
      turn out of training; left out, there is no reward, and in a sum no term
    """
    words = None if map is None else {word.strip().lower(): number for word, number in map.items()}
    if words is not None and (not words or len(words) < len(map or ())):
        raise ValueError("map gives each of at least one word a number; case does not count")

    def rating(action: object, position: int | None) -> float:
        rated = action if path is None else value_at(action, path, position)
        if words is not None:
            return words[as_text(rated).strip().lower()]
        return float(rated) if isinstance(rated, bool) else number_of(rated)

    by_place = path is not None and "*" in path.split(".")

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        ratings: list[float] = []
        unread = False
        for view, position in zip(inputs.views[role], inputs.positions[role], strict=True):
            try:
                ratings.append(rating(view.action, position))
            except (LookupError, ValueError):
                # A turn that the rater did not see has no place in its list, and no rating to read.
                unread = unread or view.failed or not by_place or position is not None
        if not ratings and unread:
            return Score(None, None)
        if not ratings:
            return _without_turns(role, else_, inputs)
        return Score(scale * fmean(ratings) + offset, None)

    shared = () if by_place else (role,)
    reads = (ActionRead(role, path or "", None if words is None else tuple(words)),)
    facts = RewardFacts(judges=False, outcomes=shared, reads=reads)
    return Reward(score, facts, views=(role,), delegates=True)


def same_as(
    role: str, /, *, equal: Equal = "text", timeout: Seconds = MATH_SECONDS, else_: Else = None
) -> Reward:
    """Score 1 when the action is the same as another role's.

    role: the role to compare with; of several instances, the share with the same action
    equal: as text, or as mathematics (the math-verify library)
    timeout: seconds until a comparison of mathematics is given up
    else: the reward where that role took no turn: a number, or mask, which keeps the turn out of training;
      left out, there is no reward, and in a sum no term
    """
    if equal == "math":
        require_math()
    same = same_text if equal == "text" else SAME_MATH

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        views = inputs.views[role]
        if not views:
            return _without_turns(role, else_, inputs)
        return Score(fmean(same(view.action, action) for view in views), None)

    limit = None if equal == "text" else timeout
    return Reward(score, RewardFacts(judges=False), views=(role,), timeout=limit)


def agrees_with(
    role: str, /, *, right: str = "correct", wrong: str = "incorrect", else_: Else = None
) -> Reward:
    """Score 1 when the action says `correct` of a right role, or `incorrect` of a wrong role.

    role: the role that is judged; of several instances all must be right, whichever of them were shown
    right: the word for a role that is right
    wrong: the word for a role that is wrong
    else: the reward where that role took no turn: a number, or mask, which keeps the turn out of training;
      left out, there is no reward, and in a sum no term
    """
    words = {True: right.lower(), False: wrong.lower()}
    if words[True] == words[False]:
        raise ValueError("right and wrong must be different words")

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        scores: Sequence[Score] = inputs.scores[role]
        if not scores:
            return _without_turns(role, else_, inputs)
        agrees = str(action).strip().lower() == words[all(each.is_correct for each in scores)]
        return Score(float(agrees), agrees)

    return Reward(score, roles=(role,))


def env() -> Reward:
    """Pay the environment's reward from this turn until the player's next; a trajectory earns the sum."""

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        reward = inputs.env_reward
        return None if reward is None else Score(reward, reward >= 1.0)

    return Reward(score, reads_environment=True)
