"""Makes an Episode of the results of its nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.records import Episode, Failure, FailureName, Step, Task, TerminationReason, Trajectory
from rolegraph.engine.run.context import Results
from rolegraph.engine.run.endings import Endings
from rolegraph.engine.run.turn import ModelCall, NodeResult, ToolRun
from rolegraph.engine.vocabulary import Score, View
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, finite_number

_UNSCORED: tuple[float | None, bool | None, Mapping[str, float]] = (None, None, {})


def assemble(
    plan: Plan,
    task: Task,
    rollout: int,
    results: Results,
    endings: Endings,
    over: Set[int],
    *,
    stopped: bool,
    noted: Mapping[str, object],
) -> Episode:
    """Make the Episode: a trajectory for each instance that took a turn, in the order of roles and indices.

    Args:
        plan: The workflow.
        task: The episode's task.
        rollout: The episode's number among those of its task, from 0.
        results: Result of each node, by position; None for a turn that was skipped or did not finish.
        endings: Cause that ended each loop before its last round.
        over: The positions of the loops whose environment is done.
        stopped: Whether the episode ended before all nodes had run.
        noted: Further metadata.
    """
    task_id: str = task["id"]
    prefix = f"{task_id}:{rollout}/"
    trajectories: list[Trajectory] = []
    failures: list[dict[str, object]] = []
    deciding: list[bool] = []
    for position, (role, of_role) in enumerate(_by_role(plan, results)):
        decides = position in plan.correct
        sums_rewards = role.reward is not None and role.reward.reads_environment
        for turns in _instances(role, of_role):
            last, masked = turns[-1], False
            steps: list[Step] = []
            for turn in turns:
                masked = _is_masked(role, turn)
                steps += steps_of(role, turn, masked=masked)
                if turn.failure is not None:
                    failures.append(_failed(role, turn, turn.failure))
            score = _sum(role, turns) if sums_rewards else last.score
            reward, correct, terms = score or _UNSCORED
            name, index, is_correct = role.name, last.view.index, correct is True
            uid = f"{prefix}{name}/{index}"
            # By position: keywords take twice as long, and this is done for every instance.
            trajectories.append(
                Trajectory(name, index, steps, reward, is_correct, uid, terms, last.failure, masked)
            )
            if decides:
                deciding.append(is_correct)
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    metadata: dict[str, Any] = {"spec": plan.name, "hash": plan.hash, **noted}
    if plan.loops:
        rounds = _last_rounds(plan, results)
        metadata["rounds"] = {name: sum(last.values()) for name, last in rounds.items()}
        metadata["ended"] = _ended(plan, rounds, endings, over, stopped=stopped)
    if not stopped and None in results:
        shares = {role.name: its.count(None) / len(its) for role, its in _by_role(plan, results)}
        metadata["skipped"] = {name: share for name, share in shares.items() if share}
    if failures:
        metadata["failures"] = failures
    metrics: dict[str, float] = {}
    all_correct = bool(deciding) and all(deciding)
    episode = Episode(task_id, rollout, task, trajectories, all_correct, metrics, reason, metadata)
    for name, metric in plan.metrics.items():  # a metric reads the episode without metrics
        try:
            if (value := metric.measure(episode)) is not None:
                metrics[name] = finite_number(value, "it is")
        except FOREIGN_ERRORS as error:  # a metric may be a package's own code
            metadata.setdefault("uncomputed_metrics", {})[name] = describe_error(error)
    return episode


def _failed(role: RolePlan, result: NodeResult, failure: Failure) -> dict[str, object]:
    where = {"role": role.name, "index": result.view.index}
    if role.loop is not None:
        where["round"] = role.number_of(result.view)
    return {**where, **failure.to_dict()}


def _by_role(plan: Plan, results: Results) -> Iterator[tuple[RolePlan, Results]]:
    """Yield each role of the plan with its part of an episode's results."""
    return ((role, results[role.nodes.start : role.nodes.stop]) for role in plan.roles)


def _instances(role: RolePlan, results: Results) -> list[list[NodeResult]]:
    """Return the turns of each instance that took one."""
    if role.rounds == 1:
        return [[turn] for turn in results if turn is not None]
    each = (
        [turn for turn in results[first :: role.count] if turn is not None] for first in range(role.count)
    )
    return [turns for turns in each if turns]


def _last_rounds(plan: Plan, results: Results) -> dict[str, dict[int, int]]:
    """Return for each loop the last round that it ran, by the round of the loop around it."""
    last: dict[str, dict[int, int]] = {loop.name: {} for loop in plan.loops}
    for role, its in _by_role(plan, results):
        if role.loop is None:
            continue
        loop, around = plan.loops[role.loop], plan.loops[role.loop].outer
        of_loop = last[loop.name]
        for result in its:
            if result is not None:
                outer = result.view.outer
                of_loop[outer] = max(of_loop.get(outer, 0), result.view.round)
        if around is not None and of_loop:
            of_outer = last[plan.loops[around].name]
            of_outer[1] = max(of_outer.get(1, 0), *of_loop)
    return last


def _ended(
    plan: Plan, rounds: Mapping[str, Mapping[int, int]], endings: Endings, over: Set[int], *, stopped: bool
) -> dict[str, str | dict[str, int]]:
    """Return what ended each loop: `until`, `env`, `when` or `times`; counted, where its branches end
    separately, or where it ran in several rounds of the loop around it.

    `rounds` has the last round of each loop, by the round of the loop around it."""
    ended: dict[str, str | dict[str, int]] = {}
    for number, loop in enumerate(plan.loops):
        found = Counter[str](endings.get(number, {}).values())
        times = loop.branches
        if loop.outer is not None:
            begun = len(rounds[loop.name])
            if not begun:
                continue
            times = times * plan.loops[loop.outer].times if loop.until is not None else begun
        if not stopped and not found["when"]:
            found["env" if number in over else "times"] += times - found.total()
        counted = {name: times for name, times in found.items() if times and name != "outer"}
        if counted:
            ended[loop.name] = counted if times > 1 else next(iter(counted))
    return ended


def _sum(role: RolePlan, turns: Sequence[NodeResult]) -> Score | None:
    """Return the summed score of turns, correct if the last one is; None where none has a score."""
    scores = [turn.score for turn in turns if turn.score is not None and not _is_masked(role, turn)]
    if not scores:
        return None
    terms = dict.fromkeys((name for score in scores for name in score.terms), 0.0)
    for score in scores:
        for name, value in score.terms.items():
            terms[name] += value
    return Score(sum(score.reward or 0.0 for score in scores), scores[-1].is_correct, terms)


def _is_masked(role: RolePlan, result: NodeResult) -> bool:
    """Return whether a turn is kept out of training: it failed and its role masks failures, the environment
    failed, no turn that its reward reads ran, or the role that rates it failed."""
    if role.reward is not None and (result.score is None or result.score.reward is None):
        return True
    if result.failure is None:
        return False
    return role.spec.on_failure.then == "mask" or result.failure.name is FailureName.ENVIRONMENT_ERROR


def steps_of(role: RolePlan, turn: NodeResult, *, masked: bool) -> list[Step]:
    """Return a turn's Steps, one for each call that was answered.

    Args:
        role: The turn's role.
        turn: The turn; a tool that ran in place of a model leaves one Step without tokens or messages.
        masked: Whether the Steps are kept out of training.

    Returns:
        The Steps in order; only the last has the action and the reward and is `done`.
    """
    view, score = turn.view, turn.score
    reward = 0.0 if score is None or score.reward is None else score.reward
    if turn.tool_run is not None:
        noted = _noted(role, view, turn.tool_run, masked=masked) | {"tool": turn.tool_run.tool}
        return [Step(action=view.action, model_response=view.response, reward=reward, metadata=noted)]
    steps: list[Step] = []
    for call in turn.calls:
        text, thought, prompt_ids, ids, logprobs, finish_reason, version, usage, _ = call.completion
        noted = _noted(role, view, call, masked=masked)
        noted["finish_reason"] = finish_reason
        if turn.group_keys and not steps:
            noted["by"] = dict(turn.group_keys)
        if role.tools or role.callees:
            noted["call"] = call.number
        if usage:
            noted["usage"] = usage
        if call.results:
            noted["calls"] = [result.noted for result in call.results]
        done = call is turn.calls[-1]
        action, earned = (view.action, reward) if done else (None, 0.0)
        step = Step(
            prompt_ids, ids, logprobs, call.chat, thought, action, text, earned, done, None, version, noted
        )
        steps.append(step)
    return steps


def _noted(role: RolePlan, view: View, call: ModelCall | ToolRun, *, masked: bool) -> dict[str, object]:
    """Return the metadata of one call: start and duration in seconds, round, attempts, whether masked."""
    noted: dict[str, object] = {"started": call.started, "seconds": call.seconds}
    if role.loop is not None:
        noted["round"] = role.number_of(view)
    if call.attempt:
        noted["attempts"] = call.attempt + 1
    if masked:
        noted["masked"] = True
    return noted
