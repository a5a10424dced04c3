"""Assembly of an Episode from the results of its nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.errors import FOREIGN_ERRORS, describe_error
from rolegraph.engine.models import Completion
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.records import (
    Episode,
    EpisodeMetadata,
    Failure,
    FailureMetadata,
    FailureName,
    Step,
    StepMetadata,
    TerminationReason,
    Trajectory,
)
from rolegraph.engine.run.context import EpisodeContext, turns_taken
from rolegraph.engine.run.endings import Endings
from rolegraph.engine.run.turn import ModelCall, NodeResult, finished_view
from rolegraph.engine.vocabulary import UNKNOWN, Metric, Score, View, Views
from rolegraph.engine.vocabulary.foreign import finite_number, short_repr

_UNSCORED = Score(None, None)
_SHARED = tuple(name for name in Step._fields if name in Completion._fields)
"""Names of the fields that a Completion and its Step share."""


def assemble(context: EpisodeContext, endings: Endings, *, stopped: bool) -> Episode:
    """Return the finished Episode: a trajectory for each instance that took a turn, by role and index.

    Args:
        context: The episode as far as it ran.
        endings: Causes by which loops ended before their last round.
        stopped: True if the episode ended before all nodes had run.
    """
    plan, job, results = context.plan, context.job, context.results
    roles = plan.roles
    task_id: str = job.task["id"]
    prefix = f"{task_id}:{job.rollout}/"
    trajectories: list[Trajectory] = []
    failures: list[FailureMetadata] = []
    for role in roles:
        role_results = results[role.nodes.start : role.nodes.stop]
        for number in range(role.count):
            turns = [*filter(None, role_results[number :: role.count])]
            if not turns:
                continue
            steps: list[Step] = []
            is_masked = False
            for turn in turns:
                is_masked = _is_masked(turn)
                steps += steps_of(turn, masked=is_masked)
                if turn.failure is not None:
                    failures.append(_failed(turn, turn.failure))
            last = turns[-1]
            score = summed(turns) if role.reads_environment else last.score
            reward, verdict, terms = score or _UNSCORED
            index, is_correct = number + 1, verdict is True
            uid = f"{prefix}{role.name}/{index}"
            trajectories.append(
                Trajectory(
                    name=role.name,
                    index=index,
                    steps=steps,
                    reward=reward,
                    is_correct=is_correct,
                    uid=uid,
                    terms=terms,
                    failure=last.failure,
                    masked=is_masked,
                )
            )
    reason = TerminationReason.ENV_DONE
    if stopped:
        last = failures[-1]["name"] if failures else ""
        reason = TerminationReason.TIMEOUT if last == FailureName.TIMEOUT.value else TerminationReason.ERROR
    metadata: EpisodeMetadata = {
        "spec": plan.name,
        "hash": plan.hash,
        "started_at": context.started_at,
    }
    if plan.scheduled:
        metadata["scheduled"] = plan.scheduled
    if plan.scheduled or plan.reads_step:
        metadata["step"] = context.step
    if context.uncomputed:
        metadata["uncomputed_conditions"] = context.uncomputed
    if plan.loops:
        reports = {plan.loops[env.plan.loop].name: env.info for env in context.environments if env.info}
        if reports:
            metadata["environment"] = reports if len(plan.envs) > 1 else next(iter(reports.values()))
        rounds = _last_rounds(context)
        metadata["rounds"] = {name: sum(last.values()) for name, last in rounds.items()}
        metadata["ended"] = _ended(context, rounds, endings, stopped=stopped)
    if not stopped and None in results:
        counts = Counter(node.role for node, r in zip(plan.nodes, results, strict=True) if r is None)
        metadata["skipped"] = {roles[n].name: count / len(roles[n].nodes) for n, count in counts.items()}
    if failures:
        metadata["failures"] = failures
    variables: dict[str, Any] = {"task": context.task, "step": context.step}
    for edge in plan.episode_inputs:
        variables[edge.name] = finished_turns(context, edge.name, turns_taken(edge, results))
    variables |= {loop.name: {"rounds": metadata.get("rounds", {}).get(loop.name, 0)} for loop in plan.loops}
    failed_metrics: dict[str, str] = {}
    verdicts: list[bool | None] = []
    values: dict[str, Any] = {}
    try:
        role_names = {trajectory.name for trajectory in trajectories}
        for r in plan.correct:
            if not r.roles or role_names.intersection(r.roles):
                source = r.expression.source
                values[source] = r.expression.value(variables)
                verdicts.append(_verdict(source, values[source], stopped))
    except (PromptError, TypeError) as error:
        failed_metrics["correct"] = describe_error(error)
        verdicts = [None]
    if None in verdicts and False not in verdicts:
        metadata["undecided"] = True
    metrics: dict[str, float] = {}
    all_correct = bool(verdicts) and all(verdicts)
    episode = Episode(task_id, job.rollout, job.task, trajectories, all_correct, metrics, reason, metadata)
    for name, metric in plan.metrics.items():  # a metric reads the episode without metrics
        try:
            if isinstance(metric.measure, Metric):
                value = metric.measure.measure(episode)
            else:
                source = metric.measure.source  # often that of `correct`
                value = values[source] if source in values else metric.measure.value(variables)
                # Who was not asked before the end is measured as 0, so that stopping hides no failure.
                value = value if value is not UNKNOWN else 0.0 if stopped else None
            if value is not None:
                metrics[name] = finite_number(value, "it is")
        except FOREIGN_ERRORS as error:  # a metric may be a package's own code
            failed_metrics[name] = describe_error(error, with_place=True)
    if failed_metrics:
        metadata["uncomputed_metrics"] = failed_metrics
    return episode


def _verdict(source: str, value: Any, stopped: bool) -> bool | None:
    """Return the verdict of an entry of `episode.correct` from its value.

    None if the value is unknown; if the episode was stopped early, False then.

    Raises:
        TypeError: The value is neither true nor false.
    """
    if value is UNKNOWN:
        return False if stopped else None
    if not isinstance(value, bool):
        raise TypeError(f"{source} is {short_repr(value)}, expected true or false")
    return value


def finished_turns(
    context: EpisodeContext, name: str, taken: Sequence[tuple[int, NodeResult]], loop: int | None = None
) -> Views:
    """Return the views of a role's turns, the objects that expressions read after the episode.

    Args:
        context: The episode.
        name: The expression's name for the turns, such as `judge` or `judge.history`.
        taken: The turns, each with its node.
        loop: The loop of the reading role. Read from outside of its loop, a player's reward is the sum over
            its turns, unless a link such as `.history` names single turns.
    """
    name, _, link = name.partition(".")
    lineages = context.plan.lineages[name]
    turns: list[View] = []
    for node, result in taken:
        role = result.role
        turn = finished_view(result, lineages[result.view.index - 1])
        if role.reads_environment and role.loop != loop and not link:
            first_node = role.nodes.start + (node - role.nodes.start) % role.count
            score = summed([*filter(None, context.results[first_node : role.nodes.stop : role.count])])
            turn = turn._replace(reward=UNKNOWN if score is None or score.reward is None else score.reward)
        turns.append(turn)
    return Views(turns)


def _failed(turn: NodeResult, failure: Failure) -> FailureMetadata:
    metadata: FailureMetadata = {
        "role": turn.role.name,
        "index": turn.view.index,
        "name": failure.name.value,
        "message": failure.message,
    }
    if failure.place:
        metadata["place"] = failure.place
    if turn.role.loop is not None:
        metadata["round"] = turn.role.number_of(turn.view)
    return metadata


def _last_rounds(context: EpisodeContext) -> dict[str, dict[int, int]]:
    """Return the number of the last round that each loop ran, by loop name, then by round of the outer loop
    (1 if there is no outer loop)."""
    plan = context.plan
    last_rounds: dict[str, dict[int, int]] = {loop.name: {} for loop in plan.loops}
    for node, result in zip(plan.nodes, context.results, strict=True):
        number = plan.roles[node.role].loop
        if number is None or result is None:
            continue
        loop = plan.loops[number]
        last_rounds[loop.name][node.outer] = max(last_rounds[loop.name].get(node.outer, 0), node.round)
        if loop.outer is not None:
            outer_rounds = last_rounds[plan.loops[loop.outer].name]
            outer_rounds[1] = max(outer_rounds.get(1, 0), node.outer)
    return last_rounds


def _ended(
    context: EpisodeContext, rounds: Mapping[str, Mapping[int, int]], endings: Endings, *, stopped: bool
) -> dict[str, str | dict[str, int]]:
    """Return the cause of each loop's end by loop name: `until`, `env`, `when` or `times`.

    A loop whose branches end separately, or that ran in several rounds of its outer loop, has a count for
    each cause. `rounds` has the last round of each loop, by the round of the outer loop.
    """
    plan, causes = context.plan, dict[str, str | dict[str, int]]()
    finished_loops = {env.plan.loop for env in context.environments if env.over}
    for number, loop in enumerate(plan.loops):
        counts = Counter[str](endings.get(number, {}).values())
        times = loop.branches
        if loop.outer is not None:
            rounds_begun = len(rounds[loop.name])
            if not rounds_begun:
                continue
            times = times * plan.loops[loop.outer].times if loop.until is not None else rounds_begun
        if not stopped and not counts["when"]:
            counts["env" if number in finished_loops else "times"] += times - counts.total()
        cause_counts = {name: times for name, times in counts.items() if times and name != "outer"}
        if cause_counts:
            causes[loop.name] = cause_counts if times > 1 else next(iter(cause_counts))
    return causes


def summed(turns: Sequence[NodeResult]) -> Score | None:
    """Return the sum of the scores and terms of turns that are not masked; None without a score.

    The verdict is that of the last such turn.
    """
    scores = [turn.score for turn in turns if turn.score is not None and not _is_masked(turn)]
    if not scores:
        return None
    terms = dict.fromkeys((name for score in scores for name in score.terms), 0.0)
    for score in scores:
        for name, value in score.terms.items():
            terms[name] += value
    return Score(sum(score.reward or 0.0 for score in scores), scores[-1].is_correct, terms)


def _is_masked(turn: NodeResult) -> bool:
    """Return True if a turn is left out of training: its failure is masked, or its role's reward gave no
    value."""
    role, failure = turn.role, turn.failure
    if role.reward is not None and (turn.score is None or turn.score.reward is None):
        return True
    if failure is None:
        return False
    return role.spec.on_failure.then == "mask" or failure.name is FailureName.ENVIRONMENT_ERROR


def steps_of(turn: NodeResult, *, masked: bool) -> list[Step]:
    """Return a turn's Steps, one for each call that was answered.

    Args:
        turn: The turn; a tool that ran in place of a model leaves one Step without tokens or messages.
        masked: True to mark the Steps as left out of training.

    Returns:
        The Steps in order; only the last has the action and the reward and is `done`.
    """
    role, view, score = turn.role, turn.view, turn.score
    reward = 0.0 if score is None or score.reward is None else score.reward
    steps: list[Step] = []
    for call in turn.calls:
        answer = call.completion
        metadata: StepMetadata = {"started": call.started, "seconds": call.seconds}
        if call.attempt:
            metadata["attempts"] = call.attempt + 1
        if masked:
            metadata["masked"] = True
        metadata.update(_call_metadata(turn, call))
        if role.run is not None:
            return [Step(action=view.action, model_response=view.response, reward=reward, metadata=metadata)]
        metadata["finish_reason"] = answer.finish_reason
        if answer.special_tokens:
            metadata["special_tokens"] = answer.special_tokens
        if answer.usage:
            metadata["usage"] = answer.usage
        if answer.unusable_numbers:
            metadata["unusable_numbers"] = answer.unusable_numbers
        is_last = call is turn.calls[-1]
        answer_fields: dict[str, Any] = {name: getattr(answer, name) for name in _SHARED}
        steps.append(
            Step(
                chat_completions=call.chat,
                action=view.action if is_last else None,
                model_response=answer.text,
                reward=reward if is_last else 0.0,
                done=is_last,
                metadata=metadata,
                **answer_fields,
            )
        )
    return steps


def _call_metadata(turn: NodeResult, call: ModelCall) -> StepMetadata:
    """Return the metadata of a model call's Step: round, tool name, group keys, call number, tool results."""
    role, metadata = turn.role, StepMetadata()
    if role.loop is not None:
        metadata["round"] = role.number_of(turn.view)
    if role.run is not None:
        metadata["tool"] = role.run.name
    if turn.group_keys and call is turn.calls[0]:
        metadata["by"] = dict(turn.group_keys)
    if turn.opening and call is turn.calls[0]:
        metadata.update(turn.opening)
    if turn.word_rewards and call is turn.calls[-1]:
        metadata["word_rewards"] = turn.word_rewards
    if role.has_functions:
        metadata["call"] = call.number
    if call.results:
        metadata["calls"] = [result.metadata for result in call.results]
    return metadata
