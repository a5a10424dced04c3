"""Verdicts of a spec's tests on episodes that are replayed from recorded answers, and their JUnit XML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.models.replay import RecordedCall, recorded_calls
from rolegraph.engine.records import CallId, Episode, FailureName
from rolegraph.engine.records.plain import in_xml, text_difference
from rolegraph.engine.spec import Finding
from rolegraph.engine.spec.expectations import ExpectedAction, FigureBounds, SpecTests, TaskExpectations
from rolegraph.engine.training.analysis.compare import by_task
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.intervals import Interval, interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one expectation of a spec's tests."""

    name: str
    """Name of the expectation."""
    holds: bool
    """True if the expectation is met."""
    summary: str
    """Short description of the result."""
    detail: str = ""
    """Further lines, such as the diff of a prompt."""


def verdicts(
    tests: SpecTests, plan: Plan, recorded: Sequence[Episode], episodes: Sequence[Episode]
) -> list[Verdict]:
    """Return a verdict for each expectation, in the order of the file.

    Args:
        tests: Tests of the spec.
        plan: Compiled spec.
        recorded: Recorded episodes.
        episodes: The same episodes, replayed by `plan`.
    """
    recorded_by_id, replayed_calls = recorded_calls(recorded), recorded_calls(episodes)
    expected = tests.expect
    verdicts = [_answered(recorded_by_id, replayed_calls, episodes)]
    if tests.prompts == "same":
        verdicts += _prompts(recorded_by_id, replayed_calls)
    means = {name: interval(values) for name, values in by_task(plan, episodes).items()}
    for name, bounds in expected.figures.items():
        constant_answer = means.get(f"{CONSTANT}{_measured_role(name, plan)}")
        verdicts.append(_figure(name, bounds, means.get(name), constant_answer))
    verdicts += _failures(expected.failures, episodes)
    for limit_name, kind, limit in (
        ("prompts", "prompt_tokens", expected.tokens.prompts),
        ("answers", "response_tokens", expected.tokens.answers),
    ):
        if limit is not None:
            totals = {e.id: sum(getattr(s, kind) for t in e.trajectories for s in t.steps) for e in episodes}
            worst_episode, worst_total = max(totals.items(), key=lambda item: item[1])
            summary = f"{worst_total:,} in {worst_episode}, expected at most {limit:,} an episode"
            verdicts.append(Verdict(f"tokens of {limit_name}", worst_total <= limit, summary))
    for task, expected_task in expected.tasks.items():
        verdicts += _task(task, expected_task, [episode for episode in episodes if episode.task_id == task])
    return verdicts


def unknown_names(tests: SpecTests, plan: Plan, recorded: Sequence[Episode]) -> Iterator[Finding]:
    """Yield a finding for each unknown metric, role, failure or task in the tests."""
    roles = [role.name for role in plan.roles]
    rewards = [f"reward/{role.name}" for role in plan.roles if role.reward is not None]
    answers = [start + role.name for role in plan.asking for start in (CONSTANT, SAME)]
    figures = ["correct", *plan.metrics, *rewards, *answers]
    failures = [member.value for member in FailureName]
    tasks = list(dict.fromkeys(episode.task_id for episode in recorded))
    expect = tests.expect
    used_names: list[tuple[str, str, Sequence[str], tuple[str, ...]]] = [
        ("figure", name, figures, ("expect", "figures", name)) for name in expect.figures
    ]
    for name in expect.failures if isinstance(expect.failures, Mapping) else ():
        role, _, failure = name.partition("/")
        path = ("expect", "failures", name)
        is_known = failure and role in roles
        used_names.append(("failure", failure, failures, path) if is_known else ("role", role, roles, path))
    for task, expected in expect.tasks.items():
        used_names.append(("recorded task", task, tasks, ("expect", "tasks", task)))
        for part_name, by_instance in (("action", expected.action), ("reward", expected.reward)):
            for instance in by_instance:
                path = ("expect", "tasks", task, part_name, instance)
                used_names.append(("role", instance.partition(" ")[0], roles, path))
    for kind, name, names, path in used_names:
        if name not in names:
            expected_names = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            hint = did_you_mean(name, names)
            yield Finding(path, f"there is no {kind} {name!r}", f"one of {expected_names}", hint, at_key=True)


def junit(suite: str, verdicts: Sequence[Verdict]) -> bytes:
    """Return the verdicts as JUnit XML."""
    failed_count = str(sum(not verdict.holds for verdict in verdicts))
    counts = {"tests": str(len(verdicts)), "failures": failed_count, "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", counts)
    suite_element = ElementTree.SubElement(root, "testsuite", {"name": in_xml(suite), **counts})
    for verdict in verdicts:
        case_element = ElementTree.SubElement(
            suite_element, "testcase", {"classname": in_xml(suite), "name": in_xml(verdict.name)}
        )
        if not verdict.holds:
            failure = ElementTree.SubElement(case_element, "failure", {"message": in_xml(verdict.summary)})
            failure.text = in_xml(f"{verdict.summary}\n{verdict.detail}".strip())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _answered(
    was: Mapping[CallId, RecordedCall], now: Mapping[CallId, RecordedCall], episodes: Sequence[Episode]
) -> Verdict:
    """Return the verdict that every model call of the replayed episodes has a recorded answer.

    Args:
        was: Recorded calls.
        now: Calls of the replay.
        episodes: The replayed episodes.
    """
    failed_before = {(c.task, c.rollout, c.node.role, c.node.index) for c, of in was.items() if of.failure}
    unanswered = [
        trajectory.failure.message
        for episode in episodes
        for trajectory in episode.trajectories
        if trajectory.failure is not None
        and trajectory.failure.name is FailureName.MODEL_ERROR
        and (episode.task_id, episode.rollout, trajectory.name, trajectory.index) not in failed_before
    ]
    if not unanswered:
        return Verdict("answers on record", True, f"{len(now)} calls")
    summary = f"{len(unanswered)} role instances have none; record them again with --record"
    return Verdict("answers on record", False, summary, unanswered[0])


def _prompts(was: Mapping[CallId, RecordedCall], now: Mapping[CallId, RecordedCall]) -> Iterator[Verdict]:
    """Yield for each role the verdict that its prompts equal the recorded ones.

    Args:
        was: Recorded calls.
        now: Calls of the replay.
    """
    calls: defaultdict[str, list[CallId]] = defaultdict(list)
    for call in now:
        if call in was and was[call].messages:
            calls[call.node.role].append(call)
    for role, role_calls in calls.items():
        changed_calls = [call for call in role_calls if _texts(was[call]) != _texts(now[call])]
        if not changed_calls:
            yield Verdict(f"prompts of {role}", True, f"{len(role_calls)} as recorded")
            continue
        first_call = changed_calls[0]
        chats = ["\n".join(f"[{name}]\n{text}" for name, text in _texts(of[first_call])) for of in (was, now)]
        detail = f"{first_call}\n{text_difference(chats[0], chats[1], 'recorded', 'now')}"
        yield Verdict(
            f"prompts of {role}", False, f"{len(changed_calls)} of {len(role_calls)} changed", detail
        )


def _texts(call: RecordedCall) -> list[tuple[str, object]]:
    """Return (role, content) of each message in a recorded call's prompt, for the comparison of prompts."""
    return [(message["role"], message["content"]) for message in call.messages]


def _measured_role(figure: str, plan: Plan) -> str | None:
    """Return the only role that a metric measures; None for a metric of several roles."""
    if figure != "correct" and figure not in plan.metrics:
        return figure.removeprefix("reward/")
    roles = plan.deciding if figure == "correct" else plan.metrics[figure].roles
    return roles[0] if len(roles) == 1 else None


def _figure(name: str, bounds: FigureBounds, it: Interval | None, constant: Interval | None) -> Verdict:
    """Return the verdict that a metric's mean is within its bounds, with n and the best constant answer.

    Args:
        name: Name of the metric.
        bounds: The bounds.
        it: The mean; None if it was not measured.
        constant: Mean of the best constant answer; None without one.
    """
    if it is None:
        return Verdict(f"figure {name}", False, f"no episode has it, expected {bounds}")
    constant_note = f"; the best constant answer gets {constant.mean:.3f}" if constant else ""
    summary = f"{it.mean:.3f} (n {it.n} tasks), expected {bounds}{constant_note}"
    return Verdict(f"figure {name}", bounds.hold(it.mean), summary)


def _failures(allowed: int | Mapping[str, int] | None, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    failures = [(t.name, t.failure) for e in episodes for t in e.trajectories if t.failure is not None]
    for name, limit in ({"": allowed} if isinstance(allowed, int) else allowed or {}).items():
        role, _, kind = name.partition("/")
        matches = [(who, f) for who, f in failures if role in ("", who) and kind in ("", f.name.value)]
        holds, summary = len(matches) <= limit, f"{len(matches)}, expected at most {limit}"
        example = "".join(f"{who} {f.name.value}: {f.message}" for who, f in matches[:1])
        yield Verdict(f"failures of {name}" if name else "failures", holds, summary, "" if holds else example)


def _task(task: str, expected: TaskExpectations, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    if expected.correct is not None:
        wrong_ids = [episode.id for episode in episodes if episode.is_correct is not expected.correct]
        word = "correct" if expected.correct else "not correct"
        summary = f"{', '.join(wrong_ids)}: not so" if wrong_ids else f"{len(episodes)} of {len(episodes)}"
        yield Verdict(f"{task}: {word}", not wrong_ids, summary)
    for instance, action in expected.action.items():
        yield _each(f"{task}: action of {instance}", instance, action, episodes)
    for instance, bounds in expected.reward.items():
        yield _each(f"{task}: reward of {instance}", instance, bounds, episodes)


def _each(
    name: str, instance: str, expected: ExpectedAction | FigureBounds, episodes: Sequence[Episode]
) -> Verdict:
    """Return the verdict that each trajectory of a role or an instance has the expected action or reward.

    Args:
        name: Name of the expectation.
        instance: A role, or an instance such as `solver 2`.
        expected: The expected action, or the bounds of the reward.
        episodes: Episodes of the task.
    """
    role, _, index = instance.partition(" ")
    answers = [
        (e, t) for e in episodes for t in e.trajectories if t.name == role and index in ("", str(t.index))
    ]
    for episode, trajectory in answers:
        if isinstance(expected, ExpectedAction):
            actual, holds = trajectory.action, expected.hold(trajectory.action)
        else:
            actual = trajectory.reward
            holds = actual is not None and expected.hold(actual)
        if not holds:
            return Verdict(name, False, f"{actual!r} in rollout {episode.rollout}, expected {expected}")
    return Verdict(name, bool(answers), f"{expected}" if answers else f"it took no part; expected {expected}")
