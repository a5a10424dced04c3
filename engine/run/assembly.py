"""The results of an episode's nodes to its Episode. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.compile import Plan, RolePlan
from engine.records import Episode, Failure, FailureName, Step, Task, TerminationReason, Trajectory
from engine.run.endings import Endings
from engine.run.seeing import Results
from engine.run.session import NodeResult, Ran
from engine.vocabulary import Score, View
from engine.vocabulary.foreign import described, finite

_UNSCORED: tuple[float | None, bool | None, Mapping[str, float]] = (None, None, {})


def assemble(
    plan: Plan,
    task: Task,
    rollout: int,
    results: Results,
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
    trajectories: list[Trajectory] = []
    failures: list[dict[str, object]] = []
    prefix = f"{task_id}:{rollout}/"
    correct = plan.roles[plan.correct]
    deciding: list[bool] = []
    for role, its in _by_role(plan, results):
        for turns in _instances(role, its):
            trajectory = _trajectory(role, prefix, turns)
            trajectories.append(trajectory)
            if role is correct:
                deciding.append(trajectory.is_correct)
            for turn in turns:
                if turn.failure is not None:
                    failures.append(_failed(role, turn, turn.failure))
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    metadata: dict[str, Any] = {"spec": plan.name, "hash": plan.hash, **noted}
    if plan.loops:
        metadata["rounds"] = _rounds(plan, results)
        metadata["ended"] = _ended(plan, endings, over, stopped=stopped)
    if not stopped and None in results:
        metadata["skipped"] = _skipped(plan, results)
    if failures:
        metadata["failures"] = failures
    metrics: dict[str, float] = {}
    is_correct = bool(deciding) and all(deciding)
    episode = Episode(task_id, rollout, task, trajectories, is_correct, metrics, reason, metadata)
    for name, metric in plan.metrics.items():  # each reads the episode itself
        try:
            if (value := metric.measure(episode)) is not None:
                metrics[name] = finite(value, "it is")
        except (Exception, SystemExit) as error:  # a metric may be a package's own code
            metadata.setdefault("uncomputed_metrics", {})[name] = described(error)
    return episode


def _failed(role: RolePlan, result: NodeResult, failure: Failure) -> dict[str, object]:
    where = {"role": role.name, "index": result.view.index}
    if role.loop is not None:
        where["round"] = result.view.round
    return {**where, **failure.to_dict()}


def _by_role(plan: Plan, results: Results) -> Iterator[tuple[RolePlan, Results]]:
    """Each role's turns."""
    start = 0
    for role in plan.roles:
        end = start + role.count * plan.rounds_of(role)
        yield role, results[start:end]
        start = end


def _instances(role: RolePlan, results: Results) -> Iterable[Sequence[NodeResult]]:
    """Each instance's turns that ran, oldest first; instances without one are left out."""
    if role.loop is None:
        return [(result,) for result in results if result is not None]
    by_index: dict[int, list[NodeResult]] = {}
    for result in results:
        if result is not None:
            by_index.setdefault(result.view.index, []).append(result)
    return [by_index[index] for index in sorted(by_index)]


def _rounds(plan: Plan, results: Results) -> dict[str, int]:
    """How many rounds each loop went."""
    rounds = dict.fromkeys((loop.name for loop in plan.loops), 0)
    for role, its in _by_role(plan, results):
        if role.loop is not None:
            name = plan.loops[role.loop].name
            last = max((result.view.round for result in its if result is not None), default=0)
            rounds[name] = max(rounds[name], last)
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


def _skipped(plan: Plan, results: Results) -> dict[str, float]:
    """The share of each role's turns that were skipped, where any was."""
    return {role.name: its.count(None) / len(its) for role, its in _by_role(plan, results) if None in its}


def _trajectory(role: RolePlan, prefix: str, turns: Sequence[NodeResult]) -> Trajectory:
    """What one instance did; it earns what its last turn earned, or the sum of what an environment gave."""
    steps: list[Step] = []
    masked = False
    for turn in turns:
        masked = _is_masked(role, turn)
        steps += _steps(role, turn, masked)
    last = turns[-1]
    index, score = last.view.index, last.score
    if role.reward is not None and role.reward.environment:
        score = _sum([turn.score for turn in turns if turn.score is not None and not _is_masked(role, turn)])
    reward, is_correct, terms = score or _UNSCORED
    uid = f"{prefix}{role.name}/{index}"
    # By position, as all that is made for every turn: with keywords it takes twice as long.
    return Trajectory(role.name, index, steps, reward, bool(is_correct), uid, terms, last.failure, masked)


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


def steps_of(role: RolePlan, result: NodeResult) -> Sequence[Step]:
    """A turn's Steps, one for each call that was answered; the last has what the turn came to."""
    return _steps(role, result, _is_masked(role, result))


def _steps(role: RolePlan, result: NodeResult, masked: bool) -> list[Step]:
    view, reward = result.view, result.score.reward if result.score else 0.0
    noted: dict[str, object] = {}
    if role.loop is not None:
        noted["round"] = view.round
    if masked:
        noted["masked"] = True
    if result.ran is not None:
        return [_tool_step(view, reward, result.ran, noted)]
    steps: list[Step] = []
    for call in result.calls:
        completion, is_last = call.completion, call is result.calls[-1]
        metadata: dict[str, object] = {
            "finish_reason": completion.finish_reason,
            "started": call.started,
            "seconds": call.seconds,
            **noted,
        }
        if call.attempts > 1:
            metadata["attempts"] = call.attempts
        if role.tools:
            metadata["call"] = len(steps) + 1
            if call.used:
                metadata["calls"] = call.used
        if completion.usage:
            metadata["usage"] = completion.usage
        step = Step(
            completion.prompt_ids,
            completion.response_ids,
            completion.logprobs,
            call.chat,
            completion.thought,
            view.action if is_last else None,
            completion.text,
            reward if is_last else 0.0,
            is_last,
            None,
            completion.weight_version,
            metadata,
        )
        steps.append(step)
    return steps


def _tool_step(view: View, reward: float, ran: Ran, noted: Mapping[str, object]) -> Step:
    """What a role did that runs a tool; there are no tokens and no messages."""
    metadata = {"tool": ran.tool, "started": ran.started, "seconds": ran.seconds, **noted}
    if ran.attempts > 1:
        metadata["attempts"] = ran.attempts
    return Step(action=view.action, model_response=view.response, reward=reward, metadata=metadata)
