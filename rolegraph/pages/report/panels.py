"""Charts of a training's figures, in sections.

Input: a `RunRecord` and its `Digest`. Output: sections of panels, each with its SVG, its legend and the
figures that it drew, so that the page can list the figures without a panel. Panels without data are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.training.analysis.constants import CONSTANT
from rolegraph.engine.training.analysis.outcomes import GroupOutcome, Outcomes
from rolegraph.engine.training.analysis.role_metrics import POLICY_METRICS, RARE_OUTCOMES, ROLE_METRICS
from rolegraph.pages.report.charts import (
    COLOURS,
    SHARES,
    ChartLine,
    ChartLink,
    Ends,
    Layer,
    Stroke,
    line_chart,
    share_ends,
    stack_chart,
)
from rolegraph.pages.report.digest import Bands, Digest, RoleGroups, bands
from rolegraph.pages.report.reading import RunRecord

OUTCOMES = dict(zip(GroupOutcome, "good equal failed easy hard small rest".split(), strict=True))
"""CSS class of each outcome of a group."""
REASONS = {outcome: kind for outcome, kind in OUTCOMES.items() if not outcome.moves}
"""CSS class of each reason why a group has no learning signal."""
MEANINGS = {
    GroupOutcome.TAUGHT: "advantages differ, so that better answers become likelier",
    GroupOutcome.EQUAL: "all answers have one advantage other than 0: the weights move without preference",
    GroupOutcome.FAILED: "every answer failed",
    GroupOutcome.EASY: "all rewards are 1 or more",
    GroupOutcome.HARD: "all rewards are 0 or less",
    GroupOutcome.SMALL: "skips, failures and missing ratings left fewer answers than the estimator compares",
    GroupOutcome.NEITHER: "all advantages are 0 for another reason, or all answers are masked",
}
"""Meaning of each outcome of a group."""
STAGES = ("rollout", "advantage", "update", "validate")
"""Stages of a training step in order; a chart lists other stages after these."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Chart with its legend: (label, CSS class) of each line or layer."""

    title: str
    svg: str
    legend: Sequence[tuple[str, str]]
    keys: frozenset[str]
    """Names of the figures in the chart."""
    note: str = ""
    is_wide: bool = False
    """True if the chart takes the whole width of the page."""


@dataclass(frozen=True, slots=True)
class Section:
    """Section of charts; `anchor` is its id in the page."""

    anchor: str
    title: str
    note: str
    panels: Sequence[Panel]


def sections(run: RunRecord, digest: Digest, links: Sequence[ChartLink] = ()) -> list[Section]:
    """Return the sections that have a chart, and always the section of failures.

    Args:
        run: The training.
        digest: Summary of its episodes.
        links: Points of the first figure's curve that link to another place.
    """
    roles = list(run.info.roles)
    failures = [_failures(run, role) for role in roles]
    outline: list[tuple[str, str, str, Sequence[Panel | None]]] = [
        (
            "learning",
            "Learning curves",
            "Thin: the training batches. Bold: validation, in its 95 % interval over the tasks; step 0 is "
            "the untrained model.",
            _learning(run, bands(digest.validations), links),
        ),
        (
            "shares",
            "Shares of the gradient",
            "A role's part of the sum of |advantage| × weight over the tokens that its policy learns from, "
            "where roles share a policy.",
            [_by_role(run, "Share of its policy's gradient", "optim/share/{}", _sharing(run), SHARES)],
        ),
        (
            "rewards",
            "Rewards and advantages",
            "Mean reward of a batch with one standard deviation around it, cut at the least and the greatest "
            "reward; and how far advantages spread.",
            [
                *(_reward(run, role, colour) for colour, role in enumerate(roles)),
                _by_role(run, "Standard deviation of advantages", "advantage/{}/std", roles),
            ],
        ),
        (
            "groups",
            "What groups taught",
            "A group is what a role did on one task in one step, or those of its turns that are compared. It "
            "teaches where its advantages differ.",
            [*(_shares(run, groups) for groups in digest.groups), _group_rewards(run, roles)],
        ),
        (
            "optimization",
            "Optimization, signals and speed",
            "",
            [
                *(
                    _by_role(run, metric.chart, metric.name, roles, SHARES if metric.form == ".0%" else None)
                    for metric in ROLE_METRICS
                    if metric.chart
                ),
                *_by_policy(run),
                _single(run, "Response tokens of a batch", "tokens/response"),
                _single(run, "Tokens per second", "tokens/per_second"),
                _time(run),
                *_signals(run),
                *(
                    _single(run, key.removeprefix("schedule/"), key)
                    for key in run.keys
                    if key.startswith("schedule/")
                ),
            ],
        ),
        (
            "failures",
            "Failures",
            "Role instances without a usable answer, by the failure's name."
            if any(failures)
            else "In training, every role instance gave a usable answer.",
            failures,
        ),
    ]
    candidates = [
        Section(anchor, title, note, [panel for panel in panels if panel])
        for anchor, title, note, panels in outline
    ]
    return [one for one in candidates if one.panels or (one.anchor == "failures" and run.done)]


def _sharing(run: RunRecord) -> list[str]:
    """Return the trained roles that share a policy with another role; the gradient's share of any other role
    is 1."""
    policies = {name: {*role.policies} for name, role in run.info.roles.items() if role.trainable}
    users_of_policy = Counter(policy for mine in policies.values() for policy in mine)
    return [name for name, mine in policies.items() if any(users_of_policy[policy] > 1 for policy in mine)]


def _lines(
    title: str,
    lines: Sequence[ChartLine],
    keys: Sequence[str],
    named: bool = True,
    ends: Ends | None = None,
    best: float | None = None,
) -> Panel | None:
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    legend = [(line.label, f"c{line.colour} {line.stroke}") for line in lines] if named else []
    legend += [] if best is None else [("best checkpoint", "best")]
    return Panel(title, line_chart(title, lines, ends, best), legend, frozenset(keys))


def _stack(
    title: str, layers: Sequence[Layer], keys: Iterable[str], note: str = "", whole: float | None = None
) -> Panel:
    legend = [(label, kind) for label, kind, _ in layers]
    return Panel(title, stack_chart(title, layers, whole), legend, frozenset(keys), note)


def common_curves(trainings: Sequence[tuple[str, RunRecord, Bands]]) -> list[Panel]:
    """Return a chart for each figure of several trainings, with a line for each training; equal figures share
    a chart. If all are shares, the charts have the same y axis.

    Args:
        trainings: Name of each training, its record, and the intervals of its validations.
    """
    names = dict.fromkeys(name for _, run, _ in trainings for name in run.info.metric_names)
    curves = [
        {name: tuple(run.series(f"validation/{name}") or run.series(f"episode/{name}")) for name in names}
        for _, run, _ in trainings
    ]
    values = [value for of in curves for curve in of.values() for _, value in curve]
    rows = [row for *_, bands in trainings for band in bands.values() for row in band]
    values += [end for _, low, high in rows for end in (low, high)]
    ends = (min(values), max(values)) if values and share_ends(values) else None
    panels: list[Panel | None] = []
    for equal_names in EqualFigures(names, curves).groups:
        name = equal_names[0]
        lines = [
            ChartLine(side, curves[colour][name], colour, Stroke.BOLD, bands.get(name, ()))
            for colour, (side, _, bands) in enumerate(trainings)
        ]
        panels.append(_lines(" = ".join(equal_names), lines, (), ends=ends))
    return [panel for panel in panels if panel]


def _learning(run: RunRecord, bands: Bands, links: Sequence[ChartLink]) -> list[Panel | None]:
    """Return a chart for each metric of the episodes; metrics with equal values share a chart.

    Args:
        run: The training.
        bands: Confidence intervals of the validation, by metric.
        links: Links of the first chart, which has the whole width.

    Returns:
        The charts; None for a metric without a recorded value.
    """
    panels = [_metric(run, bands, names, () if index else links) for index, names in enumerate(run.figures)]
    return [panel and replace(panel, is_wide=not index) for index, panel in enumerate(panels)]


def _metric(run: RunRecord, bands: Bands, names: Sequence[str], links: Sequence[ChartLink]) -> Panel | None:
    name = names[0]
    train, validation = run.series(f"episode/{name}"), run.series(f"validation/{name}")
    steps = [step for step, _ in [*train, *validation]]
    lines = [
        ChartLine("train", train, 0, Stroke.THIN if validation else Stroke.PLAIN, links=links),
        ChartLine("validation", validation, 0, Stroke.BOLD, bands.get(name, ())),
    ]
    # A control whose value is the last validation, as that of the trained workflow is, adds nothing.
    last_value = [value for _, value in validation[-1:]]
    for control in run.controls:
        if control.figure in names and steps and control.mean not in last_value:
            ends = [(step, control.mean) for step in (min(steps), max(steps))]
            lines.append(ChartLine(control.name, ends, 1 + len(lines), Stroke.DASHED))
    ends = share_ends(value for line in lines for _, value in line.points)
    splits = ("episode/", "validation/")
    keys = [f"{split}{n}{name}" for name in names for split in splits for n in ("", "n/")]
    return _lines(" = ".join(names), lines, keys, ends=ends, best=run.best if run.best in steps else None)


def _reward(run: RunRecord, role: str, colour: int) -> Panel | None:
    keys = [f"reward/{role}/{part}" for part in ("mean", "std", "min", "max", "n")]
    means = run.series(keys[0])
    std, minimum, maximum = (dict(run.series(key)) for key in keys[1:4])
    band = [
        (step, max(mean - std[step], minimum.get(step, -inf)), min(mean + std[step], maximum.get(step, inf)))
        for step, mean in means
        if step in std
    ]
    validation = ChartLine("validation", run.series(f"validation/reward/{role}"), colour, Stroke.BOLD)
    stroke = Stroke.THIN if validation.points else Stroke.PLAIN
    label = "train, mean ± std" if band else "train, mean"
    constant_keys = [f"{split}{CONSTANT}{role}" for split in ("validation/", "")]
    points = run.series(constant_keys[0]) or run.series(constant_keys[1])
    constant_line = ChartLine("best constant answer", points, colour + 1, Stroke.DASHED)
    lines = [ChartLine(label, means, colour, stroke=stroke, band=band), validation, constant_line]
    ends = share_ends(value for key in keys[2:4] for _, value in run.series(key)) if maximum else None
    count_keys = [f"validation/{n}reward/{role}" for n in ("", "n/")]
    return _lines(f"Reward: {role}", lines, [*keys, *count_keys, *constant_keys], ends=ends)


def _by_role(
    run: RunRecord, title: str, key: str, roles: Sequence[str], ends: Ends | None = None
) -> Panel | None:
    lines = [ChartLine(role, run.series(key.format(role)), colour) for colour, role in enumerate(roles)]
    return _lines(title, lines, [key.format(role) for role in roles], ends=ends)


def _by_policy(run: RunRecord) -> list[Panel | None]:
    """Return the charts of figures by policy, such as the gradient norm: with several policies a line for
    each."""
    policies = run.info.trained_policies
    if len(policies) < 2:
        return [_single(run, metric.chart, metric.name.removesuffix("/{}")) for metric in POLICY_METRICS]
    return [_by_role(run, metric.chart, metric.name, policies) for metric in POLICY_METRICS]


def _single(run: RunRecord, title: str, key: str, label: str = "", colour: int = 0) -> Panel | None:
    return _lines(title, [ChartLine(label or title.lower(), run.series(key), colour)], [key], named=False)


def _shares(run: RunRecord, groups: RoleGroups) -> Panel:
    totals = sum(groups.steps.values(), Outcomes())
    layers = [
        (outcome, kind, [(step, counts[outcome] / counts.total()) for step, counts in groups.steps.items()])
        for outcome, kind in OUTCOMES.items()
        if totals[outcome] or outcome not in RARE_OUTCOMES
    ]
    role = run.info.roles.get(groups.role)
    keys = [outcome.metric(groups.role) for outcome in GroupOutcome]
    return _stack(f"Groups of {groups.role}", layers, keys, (role and role.estimator) or "", whole=1.0)


def _group_rewards(run: RunRecord, roles: Sequence[str]) -> Panel | None:
    lines: list[ChartLine] = []
    keys: list[str] = []
    for colour, role in enumerate(roles):
        names = [f"batch/{role}/group_reward_mean/{part}" for part in ("p10", "p50", "p90")]
        low, middle, high = (dict(run.series(name)) for name in names)
        band = [(step, low[step], high[step]) for step in sorted(low) if step in high]
        lines.append(ChartLine(f"{role}, median and 10–90 %", sorted(middle.items()), colour, band=band))
        keys += names
    return _lines("Mean reward of a group", lines, keys)


def _time(run: RunRecord) -> Panel | None:
    stage_names = {key.removeprefix("time/") for key in run.keys if key.startswith("time/")} - {"step"}
    stages = [*(stage for stage in STAGES if stage in stage_names), *sorted(stage_names.difference(STAGES))]
    layers = [(name, f"c{index % COLOURS}", run.counts(f"time/{name}")) for index, name in enumerate(stages)]
    if not layers:
        return None
    keys = [f"time/{name}" for name in ("step", *stages)]
    return _stack("Seconds of a step, by stage", layers, keys)


def _signals(run: RunRecord) -> list[Panel | None]:
    """Return the charts of training signals, and of the two parts of an advantage where a signal is added."""
    roles = list(run.info.roles)
    panels: list[Panel | None] = []
    for role in roles:
        names = [f"signal/{role}/advantage/{part}" for part in ("mean", "std", "max", "min")]
        parts = {"reward": run.series(f"advantage/{role}/std"), "signal": run.series(names[1])}
        lines = [ChartLine(part, points, index) for index, (part, points) in enumerate(parts.items())]
        if parts["signal"]:
            panels.append(_lines(f"Standard deviation of both parts of the advantage: {role}", lines, names))
    drawn_keys = {key for panel in panels if panel for key in panel.keys}
    for key in run.keys:
        if key.startswith("signal/") and key not in drawn_keys:
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
        (key.removeprefix(start).replace("_", " "), f"c{(index + 3) % COLOURS}", run.counts(key))
        for index, key in enumerate(keys[:COLOURS])
    ]
    legend = [(f"{name} {sum(count for _, count in points):,.0f}", kind) for name, kind, points in layers]
    return replace(_stack(f"Failures of {role}", layers, keys[:COLOURS]), legend=legend)
