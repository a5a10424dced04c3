"""Rewards that other roles or the environment decide.

Each reads the turns of other roles on its own branch, and is None where none of these ran. A turn that failed
says nothing: neither its default action nor the score that `on_failure` gives it is read. Where no other turn
is left, the reward is that of `else`, or is not known.
"""

from __future__ import annotations

from math import isfinite
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FiniteFloat

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import SCHEDULED, ActionRead, Reward, RewardFacts, RewardInputs, Score
from rolegraph.roles.bounds import UNIT, scaled
from rolegraph.roles.equality import MATH_SECONDS, SAME_MATH, Equal, Seconds, as_text, require_math, same_text
from rolegraph.roles.json_text import value_at
from rolegraph.roles.numbers import number_of


def _number_or_mask(written: object) -> object:
    is_number = isinstance(written, int | float) and not isinstance(written, bool) and isfinite(written)
    if is_number or written in ("mask", None):
        return written
    raise ValueError("expected a finite number, or mask")


Else = Annotated[float | Literal["mask"] | None, BeforeValidator(_number_or_mask)]
"""Score where no turn of the other role can be read; None for the rule of `_unread`."""


def _unread(role: str, else_: Else, inputs: RewardInputs, *, failed: bool) -> Score | None:
    """Return the score where no turn of a role can be read.

    Args:
        role: The role.
        else_: The score where its turns failed or none ran.
        inputs: The inputs of the reward.
        failed: True where a turn failed, so that without `else_` the reward is not known. It is None where
            the turns ran and earned nothing, or none ran.
    """
    if else_ is not None and (failed or role not in inputs.ran):
        return Score(None if else_ == "mask" else else_, None)
    return Score(None, None) if failed else None


def _all_right(role: str, inputs: RewardInputs) -> bool | None:
    """Return False if any turn of a role is wrong, True if all are right; None if unknown or not judged."""
    verdicts = [each.is_correct for each in inputs.scores[role] if each.is_correct is not None]
    if False in verdicts:
        return False
    return None if role in inputs.unknown or not verdicts else True


def of(
    role: str,
    /,
    *,
    scale: Annotated[FiniteFloat, SCHEDULED] = 1.0,
    offset: FiniteFloat = 0.0,
    else_: Else = None,
) -> Reward:
    """Pay another role's reward, times `scale`, plus `offset`: a scale of -1 is zero-sum.

    role: the role whose reward it is; of several instances the mean
    scale: the factor of the reward; below 0, the reward does not judge whether a turn is right
    offset: the number that is added
    else: the reward where that role took no turn or failed: a number, which is not scaled, or mask, which
      keeps the turn out of training; left out, there is no reward, and in a sum no term, but a role that
      failed masks the whole
    """

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        rewards = [each.reward for each in inputs.scores[role] if each.reward is not None]
        verdict = _all_right(role, inputs) if scale > 0 else None
        if rewards:
            return Score(scale * fmean(rewards) + offset, verdict)
        failed = role in inputs.unknown or bool(inputs.scores[role])
        unread = _unread(role, else_, inputs, failed=failed)
        return unread and unread._replace(is_correct=verdict)

    verdicts = (role,) if scale > 0 else ()
    bounds = scaled(UNIT, scale, offset)
    facts = RewardFacts(judges=False, verdicts=verdicts, outcomes=(role,), bounds=bounds)
    return Reward(score, facts, roles=(role,), delegates=True)


def rated_by(
    role: str,
    /,
    *,
    path: str | None = None,
    map: dict[str, FiniteFloat] | None = None,
    scale: Annotated[FiniteFloat, SCHEDULED] = 1.0,
    offset: FiniteFloat = 0.0,
    else_: Else = None,
) -> Reward:
    """Pay a number in another role's action, times `scale`, plus `offset`.

    role: the role that rates; of several instances the mean, less those without a number there
    path: its place in a JSON action, such as scores.0; `*` is this turn's position in the input of that role
    map: the number for each word, whatever its case, where the role rates in words
    scale: the factor of the number
    offset: the number that is added
    else: the reward where that role took no turn or failed: a number, which is not scaled, or mask, which
      keeps the turn out of training; left out, there is no reward, and in a sum no term, but a role that
      failed masks the whole
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
        if not ratings:
            return _unread(role, else_, inputs, failed=unread)
        return Score(scale * fmean(ratings) + offset, None)

    shared = () if by_place else (role,)
    allowed = None if words is None else tuple(words)
    reads = (ActionRead(role, path or "", allowed, has_default=else_ is not None),)
    rated = UNIT if words is None else (min(words.values()), max(words.values()))
    bounds = scaled(rated, scale, offset)
    facts = RewardFacts(judges=False, outcomes=shared, reads=reads, bounds=bounds)
    return Reward(score, facts, views=(role,), delegates=True)


def same_as(
    role: str, /, *, equal: Equal = "text", timeout: Seconds = MATH_SECONDS, else_: Else = None
) -> Reward:
    """Score 1 when the action is the same as another role's.

    role: the role to compare with; of several instances, the share with the same action
    equal: as text, or as mathematics (the math-verify library)
    timeout: seconds until a comparison of mathematics is given up
    else: the reward where that role took no turn or failed: a number, or mask, which keeps the turn out of
      training; left out, there is no reward, and in a sum no term, but a role that failed masks the whole
    """
    if equal == "math":
        require_math()
    same = same_text if equal == "text" else SAME_MATH

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        views = [view for view in inputs.views[role] if not view.failed]
        if not views:
            return _unread(role, else_, inputs, failed=bool(inputs.views[role]))
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
    else: the reward where that role took no turn or failed: a number, or mask, which keeps the turn out of
      training; left out, there is no reward, and in a sum no term, but a role that failed masks the whole
    """
    words = {True: right.lower(), False: wrong.lower()}
    if words[True] == words[False]:
        raise ValueError("right and wrong must be different words")

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        verdict = _all_right(role, inputs)
        unjudged = any(each.is_correct is None for each in inputs.scores[role])
        if verdict is None or (verdict and unjudged):
            return _unread(role, else_, inputs, failed=role in inputs.unknown or unjudged)
        agrees = str(action).strip().lower() == words[verdict]
        return Score(float(agrees), agrees)

    return Reward(score, RewardFacts(compares_verdicts=(role,)), roles=(role,))


def env() -> Reward:
    """Pay the environment's reward from this turn until the player's next; a trajectory earns the sum."""

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        reward = inputs.env_reward
        return None if reward is None else Score(reward, reward >= 1.0)

    return Reward(score, reads_environment=True)
