"""What one role instance came to, its score, and the Episode that the outcomes of a run make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.compile.plan import Plan, RolePlan
from engine.models.types import Completion
from engine.records import Episode, Failure, FailureName, Message, Step, Task, TerminationReason, Trajectory
from engine.run.isolation import Isolation
from engine.vocabulary import Score, Seen, View

_ZERO = Score(0.0, False)


@dataclass(slots=True)
class Outcome:
    """One instance's answer, failure and score, while its episode runs."""

    view: View
    messages: Sequence[Message] = ()
    completion: Completion | None = None
    failure: Failure | None = None
    attempts: int = 1
    score: Score | None = None

    @property
    def verdict(self) -> Score:
        """The score, or nothing earned."""
        return self.score or _ZERO


def failed(
    role: RolePlan,
    index: int,
    failure: Failure,
    messages: Sequence[Message] = (),
    completion: Completion | None = None,
    attempts: int = 1,
) -> Outcome:
    """The outcome of a failed instance: later roles see the parser's default as its action."""
    response, thought = (completion.text, completion.thought) if completion else ("", "")
    view = View(index + 1, role.parser.default, response, thought)
    return Outcome(view, messages, completion, failure, attempts, _ZERO if role.reward else None)


def score(role: RolePlan, task: Task, outcome: Outcome, seen: Seen) -> None:
    """Set the outcome's score, here and now; a reward that fails is a `reward_error` and earns nothing."""
    if role.reward is None:
        return
    try:
        _earn(outcome, role.reward.score(task, outcome.view.action, seen))
    except Exception as error:  # a reward is the user's code: whatever it raises is its failure, by name
        _fail(outcome, f"the reward raised {type(error).__name__}: {error}")


async def score_isolated(
    role: RolePlan, task: Task, outcome: Outcome, seen: Seen, isolation: Isolation
) -> None:
    """As `score`; a reward with a time limit runs in a process that is stopped at it."""
    reward = role.reward
    if reward is None or reward.timeout is None:
        score(role, task, outcome, seen)
        return
    try:
        arguments = (task, outcome.view.action, seen)
        _earn(outcome, await isolation.run(reward.score, *arguments, limit=reward.timeout))
    except TimeoutError:
        _fail(outcome, f"the reward took longer than {reward.timeout:g} s")
    except Exception as error:
        _fail(outcome, f"the reward raised {type(error).__name__}: {error}")


def _earn(outcome: Outcome, found: Score) -> None:
    if math.isfinite(found.reward):
        outcome.score = found
    else:
        _fail(outcome, f"the reward is {found.reward}")


def _fail(outcome: Outcome, message: str) -> None:
    outcome.score = _ZERO
    outcome.failure = Failure(FailureName.REWARD_ERROR, message)


def assemble(
    plan: Plan, task: Task, rollout: int, outcomes: Sequence[Sequence[Outcome | None]], *, stopped: bool
) -> Episode:
    """The Episode: trajectories in the order of the spec, then of index; unfinished ones are left out."""
    episode_id = f"{task['id']}:{rollout}"
    by_role: dict[str, list[Trajectory]] = {}
    trajectories: list[Trajectory] = []
    failures: list[dict[str, object]] = []
    for role, own in zip(plan.roles, outcomes, strict=True):
        made = by_role[role.name] = [
            _trajectory(role, episode_id, found) for found in own if found is not None
        ]
        trajectories += made
        for one in made:
            if one.failure is not None:
                failures.append({"role": one.name, "index": one.index, **one.failure.to_dict()})
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    deciding = by_role[plan.roles[plan.correct].name]
    return Episode(
        id=episode_id,
        task=task,
        trajectories=trajectories,
        is_correct=bool(deciding) and all(trajectory.is_correct for trajectory in deciding),
        metrics={name: metric.measure(by_role[metric.role]) for name, metric in plan.metrics.items()},
        termination_reason=reason,
        metadata={"spec": plan.name, "hash": plan.hash, **({"failures": failures} if failures else {})},
    )


def _trajectory(role: RolePlan, episode_id: str, outcome: Outcome) -> Trajectory:
    scored, failure, completion = outcome.score, outcome.failure, outcome.completion
    view = outcome.view
    reward = None if scored is None else scored.reward
    steps: tuple[Step, ...] = ()
    if completion is not None:
        answer = {"role": "assistant", "content": completion.text}
        if completion.thought:
            answer["reasoning"] = completion.thought
        metadata: dict[str, object] = {"finish_reason": completion.finish_reason}
        if outcome.attempts > 1:
            metadata["attempts"] = outcome.attempts
        steps = (
            Step(
                completion.prompt_ids,
                completion.response_ids,
                completion.logprobs,
                (*outcome.messages, answer),
                completion.thought,
                view.action,
                completion.text,
                reward or 0.0,
                weight_version=completion.weight_version,
                metadata=metadata,
            ),
        )
    return Trajectory(
        role.name,
        view.index,
        steps,
        reward,
        scored is not None and scored.is_correct,
        f"{episode_id}/{role.name}/{view.index}",
        {} if scored is None else scored.terms,
        failure,
        failure is not None and role.on_failure.then == "mask",
    )
