"""Charts of a training's figures, in sections.

Input: a `RunRecord` and its `Digest`. Output: sections of panels, each with its SVG, its legend and the
figures that it drew, so that what no panel drew can be listed. A panel without data does not come out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rolegraph.engine.report.charts import (
    COLOURS,
    WIDE,
    ChartLine,
    ChartSize,
    Stroke,
    line_chart,
    stack_chart,
)
from rolegraph.engine.report.digest import Digest, RoleGroups
from rolegraph.engine.report.reading import Point, RunRecord
from rolegraph.engine.training.outcomes import GroupOutcome, Outcomes

REASONS = {
    GroupOutcome.FAILED: "failed",
    GroupOutcome.EASY: "easy",
    GroupOutcome.HARD: "hard",
    GroupOutcome.SMALL: "small",
    GroupOutcome.NEITHER: "rest",
}
"""CSS class of each reason why a group has no learning signal."""
RARE = (GroupOutcome.EQUAL, GroupOutcome.FAILED, GroupOutcome.SMALL)
"""Outcomes that are shown only where a group has them."""
STAGES = ("rollout", "advantage", "update", "validate")
"""Stages of a step in order; other stages come after them."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Chart with its legend: (label, CSS class) of each line or layer."""

    title: str
    svg: str
    legend: Sequence[tuple[str, str]]
    keys: frozenset[str]
    """Names of the figures in the chart."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Section of charts; `anchor` is its id in the page."""

    anchor: str
    title: str
    note: str
    panels: Sequence[Panel]


def sections(run: RunRecord, digest: Digest) -> list[Section]:
    """Return the sections that have a chart."""
    roles = list(run.info.roles)
    spread = _by_role(run, "Standard deviation of advantages", "advantage/{}/std", roles)
    failures = _present([_failures(run, role) for role in roles])
    without = "In training, every role instance gave a usable answer."
    candidates = [
        Section(
            "learning",
            "Learning curves",
            "Thin: the training batches. Bold: validation; step 0 is the untrained model.",
            _present([_metric(run, name) for name in run.info.metrics]),
        ),
        Section(
            "rewards",
            "Rewards and advantages",
            "Mean reward of a batch with one standard deviation around it, cut at the least and the greatest "
            "reward; and how far advantages spread.",
            _present([*(_reward(run, role, at) for at, role in enumerate(roles)), spread]),
        ),
        Section(
            "groups",
            "What groups taught",
            "A group is what a role did on one task in one step, or those of its turns that are compared. It "
            "taught nothing where all its advantages are 0, or where all its answers are masked: failed if "
            "every answer failed, too small if skips, failures and missing ratings left less than its "
            "estimator compares, too easy if its rewards are all 1 or more, too hard if all are 0 or less, "
            "or neither. With equal rewards it has one advantage for all its answers, and prefers none.",
            _present([*(_shares(run, groups) for groups in digest.groups), _group_rewards(run, roles)]),
        ),
        Section(
            "optimization",
            "Optimization, signals and speed",
            "",
            _present(
                [
                    _by_role(run, "KL: sampling policy to trained", "kl/{}", roles),
                    _by_role(run, "Loss", "loss/{}/mean", roles),
                    _by_role(run, "Share of its policy's gradient", "optim/share/{}", _sharing(run)),
                    *_by_policy(run),
                    _by_role(run, "Entropy of sampled tokens (nats)", "entropy/{}", roles),
                    _by_role(run, "Mean tokens of a response", "tokens/per_response/{}", roles),
                    _by_role(run, "Share of the commonest answer", "answers/same/{}", roles),
                    _single(run, "Response tokens of a batch", "tokens/response"),
                    _single(run, "Tokens per second", "tokens/per_second"),
                    _time(run),
                    *_signals(run),
                ]
            ),
        ),
        Section(
            "failures",
            "Failures",
            "Role instances without a usable answer, by the failure's name." if failures else without,
            failures,
        ),
    ]
    return [
        section for section in candidates if section.panels or (section.anchor == "failures" and run.done)
    ]


def _sharing(run: RunRecord) -> list[str]:
    """Return the roles that share a policy; the share of the others is always 1."""
    policies = {name: {*role.policies} for name, role in run.info.roles.items() if role.trainable}
    held = Counter(policy for mine in policies.values() for policy in mine)
    return [name for name, mine in policies.items() if any(held[policy] > 1 for policy in mine)]


def _present(panels: Sequence[Panel | None]) -> list[Panel]:
    return [panel for panel in panels if panel is not None]


def _lines(
    title: str,
    lines: Sequence[ChartLine],
    keys: Sequence[str],
    size: ChartSize | None = None,
    named: bool = True,
) -> Panel | None:
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    legend = [(line.label, f"c{line.colour} {line.stroke}") for line in lines] if named else []
    return Panel(title, line_chart(title, lines, size), legend, frozenset(keys))


def _metric(run: RunRecord, name: str) -> Panel | None:
    train, validation = run.series(f"episode/{name}"), run.series(f"validation/{name}")
    steps = [step for step, _ in [*train, *validation]]
    controls = [
        ChartLine(
            control.name, [(min(steps), control.mean), (max(steps), control.mean)], 3 + at, Stroke.DASHED
        )
        for at, control in enumerate(control for control in run.controls if control.figure == name)
        if steps
    ]
    lines = [
        ChartLine("train", train, 0, Stroke.THIN if validation else Stroke.PLAIN),
        ChartLine("validation", validation, 0, Stroke.BOLD),
        *controls,
    ]
    return _lines(name, lines, [f"episode/{name}", f"validation/{name}"], WIDE)


def _reward(run: RunRecord, role: str, colour: int) -> Panel | None:
    keys = [f"reward/{role}/{part}" for part in ("mean", "std", "min", "max", "n")]
    means = run.series(keys[0])
    spread, least, most = (dict(run.series(key)) for key in keys[1:4])
    band = [
        (
            step,
            max(value - spread[step], least.get(step, -math.inf)),
            min(value + spread[step], most.get(step, math.inf)),
        )
        for step, value in means
        if step in spread
    ]
    validation = ChartLine("validation", run.series(f"validation/reward/{role}"), colour, Stroke.BOLD)
    stroke = Stroke.THIN if validation.points else Stroke.PLAIN
    label = "train, mean ± std" if band else "train, mean"
    lines = [ChartLine(label, means, colour, stroke=stroke, band=band), validation]
    return _lines(f"Reward: {role}", lines, [*keys, f"validation/reward/{role}"])


def _by_role(run: RunRecord, title: str, key: str, roles: Sequence[str]) -> Panel | None:
    lines = [ChartLine(role, run.series(key.format(role)), at) for at, role in enumerate(roles)]
    return _lines(title, lines, [key.format(role) for role in roles])


def _by_policy(run: RunRecord) -> list[Panel | None]:
    """Return the charts of policies: one line for a single policy, else a line for each."""
    policies = run.info.trained_policies
    figures = {"Gradient norm": "grad_norm", "Learning rate": "learning_rate"}
    if len(policies) < 2:
        return [_single(run, title, f"optim/{name}") for title, name in figures.items()]
    figures |= {"Loss of each policy": "loss", "KL of each policy": "kl"}
    return [_by_role(run, title, f"optim/{name}/{{}}", policies) for title, name in figures.items()]


def _single(run: RunRecord, title: str, key: str, label: str = "", colour: int = 0) -> Panel | None:
    return _lines(title, [ChartLine(label or title.lower(), run.series(key), colour)], [key], named=False)


def _shares(run: RunRecord, groups: RoleGroups) -> Panel:
    found = sum(groups.steps.values(), Outcomes())
    every = {GroupOutcome.TAUGHT: "good", GroupOutcome.EQUAL: "equal", **REASONS}
    outcomes = {outcome: kind for outcome, kind in every.items() if found[outcome] or outcome not in RARE}
    layers: list[tuple[str, str, list[Point]]] = [
        (outcome, kind, [(step, counts[outcome] / counts.total()) for step, counts in groups.steps.items()])
        for outcome, kind in outcomes.items()
    ]
    title = f"Groups of {groups.role}"
    estimator = run.info.roles[groups.role].estimator if groups.role in run.info.roles else None
    legend = [(outcome.value, kind) for outcome, kind in outcomes.items()]
    keys = frozenset(outcome.figure(groups.role) for outcome in GroupOutcome)
    return Panel(title, stack_chart(title, layers, whole=1.0), legend, keys, note=estimator or "")


def _group_rewards(run: RunRecord, roles: Sequence[str]) -> Panel | None:
    lines: list[ChartLine] = []
    keys: list[str] = []
    for at, role in enumerate(roles):
        names = [f"batch/{role}/group_reward_mean/{part}" for part in ("p10", "p50", "p90")]
        low, middle, high = (dict(run.series(name)) for name in names)
        band = [(step, low[step], high[step]) for step in sorted(low) if step in high]
        lines.append(ChartLine(f"{role}, median and 10–90 %", sorted(middle.items()), at, band=band))
        keys += names
    return _lines("Mean reward of a group", lines, keys)


def _time(run: RunRecord) -> Panel | None:
    written = {key.removeprefix("time/") for key in run.keys if key.startswith("time/")} - {"step"}
    stages = [*(stage for stage in STAGES if stage in written), *sorted(written.difference(STAGES))]
    layers = [(stage, f"c{at % COLOURS}", run.counts(f"time/{stage}")) for at, stage in enumerate(stages)]
    if not layers:
        return None
    keys = frozenset(f"time/{name}" for name, _, _ in layers) | {"time/step"}
    title = "Seconds of a step, by stage"
    return Panel(title, stack_chart(title, layers), [(name, kind) for name, kind, _ in layers], keys)


def _signals(run: RunRecord) -> list[Panel | None]:
    """Return the charts of signals, and of both parts of an advantage to which a signal is added."""
    roles = list(run.info.roles)
    panels: list[Panel | None] = []
    for role in roles:
        added = [f"signal/{role}/advantage/{part}" for part in ("mean", "std", "max", "min")]
        parts = {"reward": run.series(f"advantage/{role}/std"), "signal": run.series(added[1])}
        lines = [ChartLine(part, points, at) for at, (part, points) in enumerate(parts.items())]
        if parts["signal"]:
            panels.append(_lines(f"Standard deviation of both parts of the advantage: {role}", lines, added))
    drawn = {key for panel in panels if panel for key in panel.keys}
    for key in run.keys:
        if key.startswith("signal/") and key not in drawn:
            role, _, name = key.removeprefix("signal/").partition("/")
            colour = roles.index(role) if role in roles else 0
            title = f"Signal {name}: {role}" if name else f"Signal {role}"
            panels.append(_single(run, title, key, name or role, colour))
    return panels


def _failures(run: RunRecord, role: str) -> Panel | None:
    start = f"failures/{role}/"
    keys = [key for key in run.keys if key.startswith(start) and any(value for _, value in run.series(key))]
    if not keys:
        return None
    layers = [
        (key.removeprefix(start).replace("_", " "), f"c{(at + 3) % COLOURS}", run.counts(key))
        for at, key in enumerate(keys[:COLOURS])
    ]
    title = f"Failures of {role}"
    legend = [(f"{name} {sum(value for _, value in points):,.0f}", kind) for name, kind, points in layers]
    return Panel(title, stack_chart(title, layers), legend, frozenset(keys[:COLOURS]))
