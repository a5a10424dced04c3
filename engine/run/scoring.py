"""What a node earns: its role's reward, in place or in a process that is stopped at its limit."""

from __future__ import annotations

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import Failure, FailureName, Task
from rolegraph.engine.records.plain import LARGEST
from rolegraph.engine.run.isolation import CallTimeout, Isolation
from rolegraph.engine.run.session import NodeResult, failing_earns
from rolegraph.engine.vocabulary import RewardInputs, Score
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, finite_number

_RIGHT = (bool, type(None))


def score(role: RolePlan, task: Task, result: NodeResult, seen: RewardInputs) -> None:
    """Set a result's score, here and now; a reward that fails is a `reward_error` and earns nothing."""
    if role.reward is None:
        return
    try:
        _earn(role, result, role.reward.score(task, result.view.action, seen))
    except FOREIGN_ERRORS as error:  # a reward is the user's code: whatever it raises is its failure, by name
        _fail(role, result, f"the reward raised {describe_error(error)}")


async def score_isolated(
    role: RolePlan, task: Task, result: NodeResult, seen: RewardInputs, *, isolation: Isolation
) -> None:
    """As `score`; a reward with a time limit runs in a process that is stopped at it."""
    reward = role.reward
    if reward is None or reward.timeout is None:
        score(role, task, result, seen)
        return
    try:
        arguments = (task, result.view.action, seen)
        _earn(role, result, await isolation.run(reward.score, *arguments, limit=reward.timeout))
    except CallTimeout:
        _fail(role, result, f"the reward took longer than {reward.timeout:g} s")
    except FOREIGN_ERRORS as error:
        _fail(role, result, f"the reward raised {describe_error(error)}")


def is_earned(role: RolePlan, result: NodeResult) -> bool:
    """Whether a turn earns its role's reward: it succeeded, or nothing hangs on that and nothing is set for
    a failure."""
    if role.reward is None:
        return False
    elsewhere = role.reward.delegates or role.reward.reads_environment
    return result.failure is None or (elsewhere and role.spec.on_failure.reward is None)


def _earn(role: RolePlan, result: NodeResult, earned: Score | None) -> None:
    if earned is None:
        return
    reward, right, terms = earned
    is_plain = type(reward) is float and abs(reward) <= LARGEST and not terms and type(right) in _RIGHT
    if is_plain and result.failure is None:  # nearly every one
        result.score = earned
        return
    try:
        reward = finite_number(reward, "the reward is")
        terms = terms and {
            str(name): finite_number(term, f"the reward's term {name!r} is") for name, term in terms.items()
        }
    except ValueError as error:
        _fail(role, result, str(error))
        return
    # Who failed is not right.
    right = False if result.failure is not None else right if right is None else bool(right)
    result.score = Score(reward, right, terms)


def _fail(role: RolePlan, result: NodeResult, message: str) -> None:
    result.score = failing_earns(role)
    result.failure = result.failure or Failure(FailureName.REWARD_ERROR, message)
