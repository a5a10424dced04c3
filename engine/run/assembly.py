"""The results of an episode's nodes to its Episode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.compile import Plan, RolePlan
from engine.records import Episode, FailureName, Step, Task, TerminationReason, Trajectory
from engine.run.session import NodeResult


def assemble(
    plan: Plan, task: Task, rollout: int, results: Sequence[NodeResult | None], *, stopped: bool
) -> Episode:
    """The Episode: trajectories in the order of the nodes; those that did not finish are left out."""
    task_id: str = task["id"]
    by_role: dict[str, list[Trajectory]] = {role.name: [] for role in plan.roles}
    trajectories: list[Trajectory] = []
    failures: list[dict[str, object]] = []
    prefix = f"{task_id}:{rollout}/"
    for node, result in zip(plan.nodes, results, strict=True):
        if result is None:
            continue
        role = plan.roles[node.role]
        uid = f"{prefix}{role.name}/{node.id.index}"
        trajectory = _trajectory(role, uid, result)
        trajectories.append(trajectory)
        by_role[role.name].append(trajectory)
        if result.failure is not None:
            failures.append({"role": role.name, "index": node.id.index, **result.failure.to_dict()})
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    deciding = by_role[plan.roles[plan.correct].name]
    metadata: dict[str, object] = {"spec": plan.name, "hash": plan.hash}
    if failures:
        metadata["failures"] = failures
    return Episode(
        task_id=task_id,
        rollout=rollout,
        task=task,
        trajectories=trajectories,
        is_correct=bool(deciding) and all(trajectory.is_correct for trajectory in deciding),
        metrics={name: metric.measure(by_role[metric.role]) for name, metric in plan.metrics.items()},
        termination_reason=reason,
        metadata=metadata,
    )


def _trajectory(role: RolePlan, uid: str, result: NodeResult) -> Trajectory:
    score, failure, view = result.score, result.failure, result.view
    reward = None if score is None else score.reward
    return Trajectory(
        role.name,
        view.index,
        _steps(result, reward),
        reward,
        is_correct=score is not None and score.is_correct,
        uid=uid,
        terms={} if score is None else score.terms,
        failure=failure,
        masked=failure is not None and role.on_failure.then == "mask",
    )


def _steps(result: NodeResult, reward: float | None) -> tuple[Step, ...]:
    completion = result.completion
    if completion is None:
        return ()
    answer = {"role": "assistant", "content": completion.text}
    if completion.thought:
        answer["reasoning"] = completion.thought
    metadata: dict[str, object] = {"finish_reason": completion.finish_reason, "seconds": result.seconds}
    if result.attempts > 1:
        metadata["attempts"] = result.attempts
    if completion.usage:
        metadata["usage"] = completion.usage
    return (
        Step(
            completion.prompt_ids,
            completion.response_ids,
            completion.logprobs,
            (*result.messages, answer),
            thought=completion.thought,
            action=result.view.action,
            model_response=completion.text,
            reward=reward or 0.0,
            weight_version=completion.weight_version,
            metadata=metadata,
        ),
    )
