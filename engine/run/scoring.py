"""What a node earns: its role's reward, in place or in a process that is stopped at its limit."""

from __future__ import annotations

import math

from engine.compile import RolePlan
from engine.records import Failure, FailureName, Task
from engine.run.isolation import Isolation, LimitError
from engine.run.session import NO_SCORE, NodeResult
from engine.vocabulary import Score, Seen


def score(role: RolePlan, task: Task, result: NodeResult, seen: Seen) -> None:
    """Set a result's score, here and now; a reward that fails is a `reward_error` and earns nothing."""
    if role.reward is None:
        return
    try:
        _earn(result, role.reward.score(task, result.view.action, seen))
    except Exception as error:  # a reward is the user's code: whatever it raises is its failure, by name
        _fail(result, f"the reward raised {type(error).__name__}: {error}")


async def score_isolated(
    role: RolePlan, task: Task, result: NodeResult, seen: Seen, *, isolation: Isolation
) -> None:
    """As `score`; a reward with a time limit runs in a process that is stopped at it."""
    reward = role.reward
    if reward is None or reward.timeout is None:
        score(role, task, result, seen)
        return
    try:
        arguments = (task, result.view.action, seen)
        _earn(result, await isolation.run(reward.score, *arguments, limit=reward.timeout))
    except LimitError:
        _fail(result, f"the reward took longer than {reward.timeout:g} s")
    except Exception as error:
        _fail(result, f"the reward raised {type(error).__name__}: {error}")


def _earn(result: NodeResult, earned: Score) -> None:
    if math.isfinite(earned.reward):
        result.score = earned
    else:
        _fail(result, f"the reward is {earned.reward}")


def _fail(result: NodeResult, message: str) -> None:
    result.score = NO_SCORE
    result.failure = Failure(FailureName.REWARD_ERROR, message)
