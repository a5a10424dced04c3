"""Verdicts of a spec's tests on episodes replayed from recorded answers, and their JUnit XML."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from xml.etree import ElementTree

from rolegraph.engine.compile import Plan
from rolegraph.engine.drawing.ink import in_xml
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.models.replay import RecordedCall, recorded_calls
from rolegraph.engine.records import CallId, Episode, FailureName, Message, Trajectory
from rolegraph.engine.report.compare.differences import text_difference
from rolegraph.engine.spec import Finding
from rolegraph.engine.spec.expectations import ExpectedAction, FigureBounds, SpecTests, TaskExpectations
from rolegraph.engine.training.compare import by_task, interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one expectation of a spec's tests."""

    name: str
    """Name of the expectation."""
    holds: bool
    """Whether the expectation is met."""
    found: str
    """Short description of the result."""
    detail: str = ""
    """Further lines, such as the diff of a prompt; empty where there are none."""


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
    found = [_answered(was, now, episodes)]
    if tests.prompts == "same":
        found += _prompts(was, now)
    means = {name: interval(values).mean for name, values in by_task(plan, episodes).items()}
    for name, bounds in expected.figures.items():
        value = means.get(name)
        told = "no episode has it" if value is None else f"{value:.3f}"
        holds = value is not None and bounds.hold(value)
        found.append(Verdict(f"figure {name}", holds, f"{told}, expected {bounds}"))
    found += _failures(expected.failures, episodes)
    found += _tokens("prompts", expected.tokens.prompts, episodes)
    found += _tokens("answers", expected.tokens.answers, episodes)
    for task, of_task in expected.tasks.items():
        found += _task(task, of_task, [episode for episode in episodes if episode.task_id == task])
    return found


def unknown_names(tests: SpecTests, plan: Plan, recorded: Sequence[Episode]) -> Iterator[Finding]:
    """Yield a finding for each unknown figure, role, failure or task in the tests."""
    roles = [role.name for role in plan.roles]
    rewards = [f"reward/{role.name}" for role in plan.roles if role.reward is not None]
    figures = ["correct", *plan.metrics, *rewards]
    for name in tests.expect.figures:
        if name not in figures:
            yield _unknown("figure", name, figures, ("expect", "figures", name))
    if isinstance(tests.expect.failures, Mapping):
        for name in tests.expect.failures:
            role, _, failure = name.partition("/")
            names = [member.value for member in FailureName]
            path = ("expect", "failures", name)
            if role not in roles:
                yield _unknown("role", role, roles, path)
            elif failure and failure not in names:
                yield _unknown("failure", failure, names, path)
    tasks = list(dict.fromkeys(episode.task_id for episode in recorded))
    for task, expected in tests.expect.tasks.items():
        if task not in tasks:
            yield _unknown("recorded task", task, tasks, ("expect", "tasks", task))
        for part, of in (("action", expected.action), ("reward", expected.reward)):
            for instance in of:
                if instance.partition(" ")[0] not in roles:
                    path = ("expect", "tasks", task, part, instance)
                    yield _unknown("role", instance.partition(" ")[0], roles, path)


def junit(suite: str, found: Sequence[Verdict]) -> bytes:
    """Return the verdicts as JUnit XML."""
    failed = str(sum(not verdict.holds for verdict in found))
    counts = {"tests": str(len(found)), "failures": failed, "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", counts)
    inside = ElementTree.SubElement(root, "testsuite", {"name": in_xml(suite), **counts})
    for verdict in found:
        case = ElementTree.SubElement(
            inside, "testcase", {"classname": in_xml(suite), "name": in_xml(verdict.name)}
        )
        if not verdict.holds:
            failure = ElementTree.SubElement(case, "failure", {"message": in_xml(verdict.found)})
            failure.text = in_xml(f"{verdict.found}\n{verdict.detail}".strip())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _unknown(what: str, name: str, known: Sequence[str], path: tuple[str, ...]) -> Finding:
    expected = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return Finding(
        path, f"there is no {what} {name!r}", f"one of {expected}", did_you_mean(name, known), at_key=True
    )


def _answered(
    was: Mapping[CallId, RecordedCall], now: Mapping[CallId, RecordedCall], episodes: Sequence[Episode]
) -> Verdict:
    """Check that each model call of the replayed episodes has an answer in the recording; return the
    verdict."""
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
    told = f"{len(missing)} role instances have none; record them again with --record"
    return Verdict("answers on record", False, told, missing[0])


def _prompts(was: Mapping[CallId, RecordedCall], now: Mapping[CallId, RecordedCall]) -> Iterator[Verdict]:
    """Yield a verdict for each role on whether its prompts are the recorded ones."""
    calls: defaultdict[str, list[CallId]] = defaultdict(list)
    for call in now:
        if call in was and was[call].messages:
            calls[call.node.role].append(call)
    for role, asked in calls.items():
        changed = [call for call in asked if not _same(was[call].messages, now[call].messages)]
        detail = ""
        if changed:
            first = changed[0]
            diff = text_difference(_chat(was[first].messages), _chat(now[first].messages), "recorded", "now")
            detail = f"{first}\n{diff}"
        told = f"{len(changed)} of {len(asked)} changed" if changed else f"{len(asked)} as recorded"
        yield Verdict(f"prompts of {role}", not changed, told, detail)


def _same(was: Sequence[Message], now: Sequence[Message]) -> bool:
    return all(
        one is not None and two is not None and (one["role"], one["content"]) == (two["role"], two["content"])
        for one, two in zip_longest(was, now)
    )


def _chat(messages: Sequence[Message]) -> str:
    return "\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def _failures(allowed: int | Mapping[str, int] | None, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    failed = [(t.name, t.failure) for e in episodes for t in e.trajectories if t.failure is not None]
    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for role, failure in failed:
        for name in ("", role, f"{role}/{failure.name.value}"):
            counts[name] += 1
            messages.setdefault(name, f"{role} {failure.name.value}: {failure.message}")
    most = {"": allowed} if isinstance(allowed, int) else allowed or {}
    for name, count in most.items():
        told = f"{counts[name]}, expected at most {count}"
        holds = counts[name] <= count
        detail = "" if holds else messages[name]
        yield Verdict(f"failures of {name}" if name else "failures", holds, told, detail)


def _tokens(what: str, most: int | None, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    if most is None:
        return
    totals = {
        episode.id: sum(
            step.prompt_tokens if what == "prompts" else step.response_tokens
            for t in episode.trajectories
            for step in t.steps
        )
        for episode in episodes
    }
    worst = max(totals, key=totals.__getitem__)
    told = f"{totals[worst]:,} in {worst}, expected at most {most:,} an episode"
    yield Verdict(f"tokens of {what}", totals[worst] <= most, told)


def _task(task: str, expected: TaskExpectations, episodes: Sequence[Episode]) -> Iterator[Verdict]:
    if expected.correct is not None:
        other = [episode.id for episode in episodes if episode.is_correct is not expected.correct]
        word = "correct" if expected.correct else "not correct"
        told = f"{', '.join(other)}: not so" if other else f"{len(episodes)} of {len(episodes)}"
        yield Verdict(f"{task}: {word}", not other, told)
    for instance, action in expected.action.items():
        yield _each(f"{task}: action of {instance}", instance, action, episodes)
    for instance, bounds in expected.reward.items():
        yield _each(f"{task}: reward of {instance}", instance, bounds, episodes)


def _each(
    name: str, instance: str, expected: ExpectedAction | FigureBounds, episodes: Sequence[Episode]
) -> Verdict:
    """Check that each trajectory of a role or an instance has the expected action or reward."""
    role, _, index = instance.partition(" ")
    of = [
        (episode, t)
        for episode in episodes
        for t in episode.trajectories
        if t.name == role and index in ("", str(t.index))
    ]
    wrong = [(episode, t) for episode, t in of if not _holds(expected, t)]
    if of and not wrong:
        return Verdict(name, True, str(expected))
    if not of:
        return Verdict(name, False, f"it took no part; expected {expected}")
    episode, t = wrong[0]
    got = t.action if isinstance(expected, ExpectedAction) else t.reward
    return Verdict(name, False, f"{got!r} in rollout {episode.rollout}, expected {expected}")


def _holds(expected: ExpectedAction | FigureBounds, trajectory: Trajectory) -> bool:
    if isinstance(expected, ExpectedAction):
        return expected.hold(trajectory.action)
    return trajectory.reward is not None and expected.hold(trajectory.reward)
