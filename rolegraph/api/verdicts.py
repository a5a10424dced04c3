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
    was, now = recorded_calls(recorded), recorded_calls(episodes)
    expected = tests.expect
    verdicts = [_answered(was, now, episodes)]
    if tests.prompts == "same":
        verdicts += _prompts(was, now)
    means = {name: interval(values) for name, values in by_task(plan, episodes).items()}
    for name, bounds in expected.figures.items():
        constant = means.get(f"{CONSTANT}{_measured_role(name, plan)}")
        verdicts.append(_figure(name, bounds, means.get(name), constant))
    verdicts += _failures(expected.failures, episodes)
    for what, kind, most in (
        ("prompts", "prompt_tokens", expected.tokens.prompts),
        ("answers", "response_tokens", expected.tokens.answers),
    ):
        if most is not None:
            totals = {e.id: sum(getattr(s, kind) for t in e.trajectories for s in t.steps) for e in episodes}
            worst, total = max(totals.items(), key=lambda item: item[1])
            summary = f"{total:,} in {worst}, expected at most {most:,} an episode"
            verdicts.append(Verdict(f"tokens of {what}", total <= most, summary))
    for task, of_task in expected.tasks.items():
        verdicts += _task(task, of_task, [episode for episode in episodes if episode.task_id == task])
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
    named: list[tuple[str, str, Sequence[str], tuple[str, ...]]] = [
        ("figure", name, figures, ("expect", "figures", name)) for name in expect.figures
    ]
    for name in expect.failures if isinstance(expect.failures, Mapping) else ():
        role, _, failure = name.partition("/")
        path = ("expect", "failures", name)
        is_known = failure and role in roles
        named.append(("failure", failure, failures, path) if is_known else ("role", role, roles, path))
    for task, expected in expect.tasks.items():
        named.append(("recorded task", task, tasks, ("expect", "tasks", task)))
        for part, of in (("action", expected.action), ("reward", expected.reward)):
            for instance in of:
                path = ("expect", "tasks", task, part, instance)
                named.append(("role", instance.partition(" ")[0], roles, path))
    for what, name, names, path in named:
        if name not in names:
            expected_names = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            hint = did_you_mean(name, names)
            yield Finding(path, f"there is no {what} {name!r}", f"one of {expected_names}", hint, at_key=True)


def junit(suite: str, verdicts: Sequence[Verdict]) -> bytes:
    """Return the verdicts as JUnit XML."""
    failed = str(sum(not verdict.holds for verdict in verdicts))
    counts = {"tests": str(len(verdicts)), "failures": failed, "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", counts)
    inside = ElementTree.SubElement(root, "testsuite", {"name": in_xml(suite), **counts})
    for verdict in verdicts:
        case = ElementTree.SubElement(
            inside, "testcase", {"classname": in_xml(suite), "name": in_xml(verdict.name)}
        )
        if not verdict.holds:
            failure = ElementTree.SubElement(case, "failure", {"message": in_xml(verdict.summary)})
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
    before = {(c.task, c.rollout, c.node.role, c.node.index) for c, of in was.items() if of.failure}
    missing = [
        t.failure.message
        for episode in episodes
        for t in episode.trajectories
        if t.failure is not None
        and t.failure.name is FailureName.MODEL_ERROR
        and (episode.task_id, episode.rollout, t.name, t.index) not in before
    ]
    if not missing:
        return Verdict("answers on record", True, f"{len(now)} calls")
    summary = f"{len(missing)} role instances have none; record them again with --record"
    return Verdict("answers on record", False, summary, missing[0])


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
    for role, asked in calls.items():
        changed = [call for call in asked if _texts(was[call]) != _texts(now[call])]
        if not changed:
            yield Verdict(f"prompts of {role}", True, f"{len(asked)} as recorded")
            continue
        first = changed[0]
        chats = ["\n".join(f"[{name}]\n{text}" for name, text in _texts(of[first])) for of in (was, now)]
        detail = f"{first}\n{text_difference(chats[0], chats[1], 'recorded', 'now')}"
        yield Verdict(f"prompts of {role}", False, f"{len(changed)} of {len(asked)} changed", detail)


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
    beside = f"; the best constant answer gets {constant.mean:.3f}" if constant else ""
    summary = f"{it.mean:.3f} (n {it.n} tasks), expected {bounds}{beside}"
    return Verdict(f"figure {name}", bounds.hold(it.mean), summary)


def _failures(allowed: int | Mapping[str, int] | None, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    failed = [(t.name, t.failure) for e in episodes for t in e.trajectories if t.failure is not None]
    for name, most in ({"": allowed} if isinstance(allowed, int) else allowed or {}).items():
        role, _, kind = name.partition("/")
        matching = [(who, why) for who, why in failed if role in ("", who) and kind in ("", why.name.value)]
        holds, summary = len(matching) <= most, f"{len(matching)}, expected at most {most}"
        first = "".join(f"{who} {why.name.value}: {why.message}" for who, why in matching[:1])
        yield Verdict(f"failures of {name}" if name else "failures", holds, summary, "" if holds else first)


def _task(task: str, expected: TaskExpectations, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    if expected.correct is not None:
        other = [episode.id for episode in episodes if episode.is_correct is not expected.correct]
        word = "correct" if expected.correct else "not correct"
        summary = f"{', '.join(other)}: not so" if other else f"{len(episodes)} of {len(episodes)}"
        yield Verdict(f"{task}: {word}", not other, summary)
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
            got, holds = trajectory.action, expected.hold(trajectory.action)
        else:
            got = trajectory.reward
            holds = got is not None and expected.hold(got)
        if not holds:
            return Verdict(name, False, f"{got!r} in rollout {episode.rollout}, expected {expected}")
    return Verdict(name, bool(answers), f"{expected}" if answers else f"it took no part; expected {expected}")
