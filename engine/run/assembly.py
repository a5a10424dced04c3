"""The results of an episode's nodes to its Episode. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from engine.compile import Plan, RolePlan
from engine.compile.plan import See
from engine.records import Episode, FailureName, Step, Task, TerminationReason, Trajectory
from engine.run.session import NodeResult
from engine.vocabulary import Score

Ending = Literal["until", "env"]
"""What ends a loop before its last round: its condition, or its environment."""
Endings = Mapping[int, Mapping[tuple[See, ...], Ending]]
"""By loop and branch, what ended it."""


def assemble(
    plan: Plan,
    task: Task,
    rollout: int,
    results: Sequence[NodeResult | None],
    endings: Endings,
    over: int | None,
    *,
    stopped: bool,
    noted: Mapping[str, object],
) -> Episode:
    """The Episode: a trajectory for each instance that took a turn, in the order of roles and numbers.

    Turns that did not finish, or were skipped, are left out. `over` is the loop whose environment is over;
    `noted` goes into the metadata.
    """
    task_id: str = task["id"]
    by_role: dict[str, list[Trajectory]] = {role.name: [] for role in plan.roles}
    trajectories: list[Trajectory] = []
    failures: list[dict[str, object]] = []
    prefix = f"{task_id}:{rollout}/"
    for role, turns in _instances(plan, results):
        index = turns[-1].view.index
        trajectory = _trajectory(role, f"{prefix}{role.name}/{index}", turns)
        trajectories.append(trajectory)
        by_role[role.name].append(trajectory)
        for result in turns:
            if result.failure is not None:
                where = {"role": role.name, "index": index}
                if role.loop is not None:
                    where["round"] = result.view.round
                failures.append({**where, **result.failure.to_dict()})
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    deciding = by_role[plan.roles[plan.correct].name]
    metadata: dict[str, object] = {"spec": plan.name, "hash": plan.hash, **noted}
    if plan.loops:
        metadata["rounds"] = _rounds(plan, results)
        metadata["ended"] = _ended(plan, endings, over, stopped=stopped)
    if failures:
        metadata["failures"] = failures
    return Episode(
        task_id=task_id,
        rollout=rollout,
        task=task,
        trajectories=trajectories,
        is_correct=bool(deciding) and all(trajectory.is_correct for trajectory in deciding),
        metrics={
            name: metric.measure(by_role[metric.role])
            for name, metric in plan.metrics.items()
            if by_role[metric.role] or stopped or not plan.may_skip
        },
        termination_reason=reason,
        metadata=metadata,
    )


def _instances(
    plan: Plan, results: Sequence[NodeResult | None]
) -> Iterator[tuple[RolePlan, Sequence[NodeResult]]]:
    """Each instance's turns that ran, oldest first; instances without one are left out."""
    start = 0
    for role in plan.roles:
        end = start + role.count * plan.rounds_of(role)
        by_index: dict[int, list[NodeResult]] = {}
        for result in [result for result in results[start:end] if result is not None]:
            by_index.setdefault(result.view.index, []).append(result)
        for index in sorted(by_index):
            yield role, by_index[index]
        start = end


def _rounds(plan: Plan, results: Sequence[NodeResult | None]) -> dict[str, int]:
    """How many rounds each loop went."""
    rounds = dict.fromkeys((loop.name for loop in plan.loops), 0)
    for node, result in zip(plan.nodes, results, strict=True):
        loop = plan.roles[node.role].loop
        if result is not None and loop is not None:
            name = plan.loops[loop].name
            rounds[name] = max(rounds[name], node.id.round)
    return rounds


def _ended(
    plan: Plan, endings: Endings, over: int | None, *, stopped: bool
) -> dict[str, str | dict[str, int]]:
    """What ended each loop: `until`, `env` or `times`; how often, where its branches end each for itself."""
    ended: dict[str, str | dict[str, int]] = {}
    for number, loop in enumerate(plan.loops):
        found = Counter[str](endings.get(number, {}).values())
        if not stopped:
            found["env" if number == over else "times"] += loop.branches - found.total()
        counted = {name: times for name, times in found.items() if times}
        if counted:
            ended[loop.name] = counted if loop.branches > 1 else next(iter(counted))
    return ended


def _trajectory(role: RolePlan, uid: str, turns: Sequence[NodeResult]) -> Trajectory:
    """What one instance did; it earns what its last turn earned, or the sum of what an environment gave."""
    last = turns[-1]
    score = last.score
    if role.reward is not None and role.reward.environment:
        score = _sum([turn.score for turn in turns if turn.score is not None])
    return Trajectory(
        role.name,
        last.view.index,
        [_step(role, result) for result in turns if result.completion is not None],
        None if score is None else score.reward,
        is_correct=score is not None and score.is_correct,
        uid=uid,
        terms={} if score is None else score.terms,
        failure=last.failure,
        masked=_is_masked(role, last),
    )


def _sum(scores: Sequence[Score]) -> Score | None:
    """What turns earned together: right if the last was."""
    if not scores:
        return None
    terms = dict.fromkeys((name for score in scores for name in score.terms), 0.0)
    for score in scores:
        for name, value in score.terms.items():
            terms[name] += value
    return Score(sum(score.reward for score in scores), scores[-1].is_correct, terms)


def _is_masked(role: RolePlan, result: NodeResult) -> bool:
    """Whether a turn teaches nothing: it failed and says so, nobody ran whom its reward reads, or the
    environment broke off."""
    if result.failure is not None:
        return role.on_failure.then == "mask" or result.failure.name is FailureName.ENVIRONMENT_ERROR
    return result.score is None and role.reward is not None


def _step(role: RolePlan, result: NodeResult) -> Step:
    completion, score = result.completion, result.score
    assert completion is not None
    metadata: dict[str, object] = {"finish_reason": completion.finish_reason, "seconds": result.seconds}
    if role.loop is not None:
        metadata["round"] = result.view.round
    if result.attempts > 1:
        metadata["attempts"] = result.attempts
    if completion.usage:
        metadata["usage"] = completion.usage
    if role.loop is not None and _is_masked(role, result):
        metadata["masked"] = True
    return Step(
        completion.prompt_ids,
        completion.response_ids,
        completion.logprobs,
        result.chat,
        thought=completion.thought,
        action=result.view.action,
        model_response=completion.text,
        reward=score.reward if score else 0.0,
        weight_version=completion.weight_version,
        metadata=metadata,
    )
