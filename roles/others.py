"""Rewards that others decide: what roles earned, what they said of this turn or themselves; environments.

Each reads the turns on its own branch, and is None where none of them ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import Reward, RewardInputs, Score
from rolegraph.roles.equality import MATH_SECONDS, Equal, SameMath, as_text, require_math, same_text
from rolegraph.roles.json_text import value_at
from rolegraph.roles.numbers import number_of


def of(role: str, /, *, scale: FiniteFloat = 1.0, offset: FiniteFloat = 0.0) -> Reward:
    """What another role earns, times `scale`, plus `offset`: a scale of -1 is zero-sum.

    role: the role whose reward it is; of several instances the mean
    scale: what it is multiplied by; below 0, it says nothing of right
    offset: what is added
    """
    return Reward(partial(_of, role, scale, offset), roles=(role,), delegates=True)


def _of(role: str, scale: float, offset: float, task: Task, action: Any, seen: RewardInputs) -> Score | None:
    scores = seen.scores[role]
    if not scores:
        return None
    said = [score.is_correct for score in scores if score.is_correct is not None]
    reward = _mean([score.reward for score in scores])
    return Score(scale * reward + offset, all(said) if said and scale > 0 else None)


def rated_by(
    role: str,
    /,
    *,
    path: str | None = None,
    map: dict[str, FiniteFloat] | None = None,
    scale: FiniteFloat = 1.0,
    offset: FiniteFloat = 0.0,
) -> Reward:
    """A number in another role's action, times `scale`, plus `offset`.

    role: the role that rates; of several instances the mean, less those without a number there
    path: where it stands in a JSON action, such as scores.0; `*` is this turn's place in what that role saw
    map: the number that each word stands for, whatever its case, where it is words that rate
    scale: what it is multiplied by
    offset: what is added
    """
    words = None if map is None else {word.strip().lower(): number for word, number in map.items()}
    if words is not None and (not words or len(words) < len(map or ())):
        raise ValueError("map gives each of at least one word a number; case does not count")
    return Reward(partial(_rated_by, role, path, words, scale, offset), views=(role,), delegates=True)


def _rated_by(
    role: str,
    path: str | None,
    words: Mapping[str, float] | None,
    scale: float,
    offset: float,
    task: Task,
    action: Any,
    seen: RewardInputs,
) -> Score | None:
    ratings: list[float] = []
    for view, place in zip(seen.views[role], seen.positions[role], strict=True):
        try:
            said = view.action if path is None else value_at(view.action, path, place)
            ratings.append(_rating(said, words))
        except (LookupError, ValueError):
            continue
    return Score(scale * _mean(ratings) + offset, None) if ratings else None


def _rating(said: object, words: Mapping[str, float] | None) -> float:
    if words is not None:
        return words[as_text(said).strip().lower()]
    return float(said) if isinstance(said, bool) else number_of(said)


def same_as(
    role: str, /, *, equal: Equal = "text", timeout: Annotated[float, Field(gt=0)] = MATH_SECONDS
) -> Reward:
    """1 when the action is the same as another role's.

    role: the role to compare with; of several instances, the share that says the same
    equal: as text, or as mathematics (the math-verify library)
    timeout: seconds until a comparison of mathematics is given up
    """
    if equal == "text":
        return Reward(partial(_same_as, role, same_text), views=(role,))
    require_math()
    return Reward(partial(_same_as, role, SameMath()), views=(role,), timeout=timeout)


def _same_as(
    role: str, equal: Callable[[Any, Any], bool], task: Task, action: Any, seen: RewardInputs
) -> Score | None:
    views = seen.views[role]
    return Score(_mean([float(equal(view.action, action)) for view in views]), None) if views else None


def agrees_with(role: str, /, *, right: str = "correct", wrong: str = "incorrect") -> Reward:
    """1 when the action says `correct` of a role that is right, or `incorrect` of one that is wrong.

    role: the role that is judged; of several instances all must be right, whichever of them were shown
    right: the word for a role that is right
    wrong: the word for one that is wrong
    """
    if right.lower() == wrong.lower():
        raise ValueError("right and wrong must be different words")
    return Reward(partial(_agrees_with, role, right.lower(), wrong.lower()), roles=(role,))


def _agrees_with(
    role: str, right: str, wrong: str, task: Task, action: Any, seen: RewardInputs
) -> Score | None:
    scores = seen.scores[role]
    if not scores:
        return None
    truth = all(score.is_correct for score in scores)
    agrees = str(action).strip().lower() == (right if truth else wrong)
    return Score(float(agrees), agrees)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def env() -> Reward:
    """What the environment gave this player from this turn until its next one; a trajectory earns the sum."""
    return Reward(_env, reads_environment=True)


def _env(task: Task, action: Any, seen: RewardInputs) -> Score | None:
    return None if seen.env_reward is None else Score(seen.env_reward, seen.env_reward >= 1.0)
