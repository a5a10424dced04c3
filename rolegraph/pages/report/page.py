"""The report: a run's data put into `report.html.j2`, with its style and script inside the file.

Autoescape is on: what models wrote is hostile text. A content security policy lets the page load nothing
and run no script but its own, which the policy names by its hash.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rolegraph.engine.compile.graph import check_graph
from rolegraph.engine.records import RunFolder, Step
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.episode import Split
from rolegraph.engine.records.info import RoleInfo
from rolegraph.engine.spec import load_spec
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.figures import lasting_signs
from rolegraph.engine.training.analysis.outcomes import GroupOutcome, Outcomes, advantages
from rolegraph.engine.training.analysis.verdict import BEST_ON_THESE, training_verdict
from rolegraph.pages.drawing import picture_of
from rolegraph.pages.drawing.svg import svg
from rolegraph.pages.report import html
from rolegraph.pages.report.charts import MOST_BARS, number
from rolegraph.pages.report.digest import (
    Digest,
    RoleGroups,
    SampleReason,
    clipped,
    instance,
    question,
    read_digest,
)
from rolegraph.pages.report.panels import REASONS, sections
from rolegraph.pages.report.reading import RunRecord, read_rule, read_run

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class HeadlineFigure:
    """Best value of a metric; `first` is that of the untrained model.

    `n` is the number of episodes that have the metric; None where it is not on record.
    """

    name: str
    best: float
    step: int
    last: float
    first: float | None
    split: str
    n: float | None
    greedy: float | None
    """Value at temperature 0 after the last step; None where it was not measured."""


class RewardPoint(NamedTuple):
    """Mean reward of a role at a step."""

    step: int
    mean: float
    n: int
    """Number of rewards, of trajectories or of turns, in the mean; 0 where it is not on record."""

    def __str__(self) -> str:
        n = f", n = {self.n}" if self.n else ""
        return f"{number(self.mean)} (step {self.step}{n})"


class RoleFinding(NamedTuple):
    """Result of a training for a role: failures, rewards at the first and last step, and group outcomes."""

    role: str
    split: Split
    """Split of the rewards: `validation` where two steps were validated."""
    first: RewardPoint | None
    last: RewardPoint | None
    failures: Counter[str]
    """Number of failures in training by name."""
    answers: int
    """Number of the role's trajectories in the training's episodes."""
    outcomes: Outcomes
    trained: bool
    """Whether the role was trained."""
    constant: float | None = None
    """Reward of the best constant answer; None where the role's answers are not discrete."""
    same: float | None = None
    """Share of the commonest answer, from 0 to 1, at the same step."""

    @property
    def failed(self) -> int:
        """Number of failed answers."""
        return self.failures.total()

    @property
    def commonest_failure(self) -> str:
        """Most frequent failure, as words."""
        return self.failures.most_common(1)[0][0].replace("_", " ") if self.failures else ""

    @property
    def beside(self) -> str:
        """Sentence on the reward of the best constant answer and the share of the commonest; empty if not
        measured."""
        if self.constant is None or self.same is None:
            return ""
        return (
            f"Always giving one answer would get {number(self.constant)}; its commonest answer was "
            f"{self.same:.0%} of all."
        )

    @property
    def anchor(self) -> str:
        """Name of the report's section that explains this finding: `failures`, `barren` or `rewards`."""
        if 2 * self.failed > self.answers:
            return "failures"
        return "barren" if self.outcomes.total() else "rewards"

    @property
    def query(self) -> Mapping[str, str]:
        """Filter of the viewer's list that selects the role's episodes, as query parameters."""
        return {"role": self.role, "failure": "any" if self.anchor == "failures" else ""}

    @property
    def sentence(self) -> str:
        """Groups that taught the role, and its rewards at the first and last step."""
        return "; its ".join(part for part in (self._learning(), self._rewards()) if part) + "."

    def _learning(self) -> str:
        taught, equal = self.outcomes[GroupOutcome.TAUGHT], self.outcomes[GroupOutcome.EQUAL]
        groups = self.outcomes.total()
        if not self.trained:
            return "was not trained"
        if not groups:
            return "has no group that was compared"
        others = ", ".join(
            f"{n} {outcome}" for outcome, n in self.outcomes.most_common() if n and not outcome.moves
        )
        if self.failed >= self.answers and not taught + equal:
            return "was taught nothing: no answer was usable"
        moved = f", and moved without preference by {equal} (equal rewards)" if equal else ""
        return f"was taught by {taught} of {groups} groups{moved}{f' ({others})' if others else ''}"

    def _rewards(self) -> str:
        if self.first is None or self.last is None:
            return ""
        where = "validation" if self.split == "validation" else "training"
        if self.first.step == self.last.step:
            return f"mean reward in {where} is {self.last}"
        return f"mean reward in {where} went from {self.first} to {self.last}"


def write_report(folder: Path) -> Path:
    """Write `report.html` into a training run's folder and return its path.

    Raises:
        UsageError: The folder has no training run.
        WorldError: The folder cannot be written.
    """
    run = read_run(folder)
    files = RunFolder(folder)
    page = render(run, read_digest(folder, run.info.trained_roles, read_rule(files)))
    report = files.report
    write_whole(report, page.encode("utf-8", "replace"))
    return report


def render(run: RunRecord, digest: Digest, viewer: str = "", bar: str = "") -> str:
    """Return the HTML of the report.

    Args:
        run: The training.
        digest: Summary of its episodes.
        viewer: URL of the run's list where a viewer shows the page.
        bar: Links of the viewer that the page begins with, as `Markup`.
    """
    code, code_hash = html.script(html.CHARTS)
    shown = sections(run, digest)
    drawn = {key for section in shown for panel in section.panels for key in panel.keys}
    return html.render(
        _HERE / "report.html.j2",
        run=run,
        quoted=shlex.quote,
        info=run.info,
        figures=figures(run),
        findings=findings(run, digest),
        verdict=training_verdict(RunFolder(run.folder), run.info, run.lines),
        signs=[
            *lasting_signs(
                run.lines, {name: run.info.roles[name].policies for name in run.info.trained_roles}
            )
        ],
        chosen=BEST_ON_THESE
        if any(run.series("validation/" + name) for name in run.info.figure_names)
        else "",
        viewer=viewer,
        bar=bar,
        sections=shown,
        controls=list(zip(run.controls, html.drawn(run.controls), strict=True)),
        workflow=workflow(run),
        others={key: [value for _, value in run.series(key)] for key in run.keys if key not in drawn},
        digest=digest,
        reasons=REASONS,
        long=len(run.lines) > MOST_BARS,
        question=question,
        instance=instance,
        spread=spread,
        training_of=training_of,
        reason_text=reason_text,
        credit_text=credit_text,
        prompt=prompt,
        fields=fields,
        script=code,
        script_hash=code_hash,
    )


def workflow(run: RunRecord) -> str:
    """Return the graph of the spec's roles as SVG; empty where the spec is missing or invalid."""
    if not run.spec:
        return ""
    loaded = load_spec(RunFolder(run.folder).spec_file)
    faulty = loaded.faults or check_graph(loaded.spec)
    return "" if faulty else svg(picture_of(loaded.spec))


def figures(run: RunRecord) -> list[HeadlineFigure]:
    """Return the metrics at the best validation, or at the best batch of a training without validations."""
    best_of: list[HeadlineFigure] = []
    for name in run.info.figure_names:
        validated = bool(run.series(f"validation/{name}"))
        split, kind = ("validation", "validation") if validated else ("training batch", "episode")
        if points := run.series(f"{kind}/{name}"):
            step, best = max(points, key=lambda point: point[1])
            n = dict(run.series(f"{kind}/n/{name}")).get(step)
            first = points[0][1] if points[0][0] == 0 and len(points) > 1 else None
            greedy = run.latest(f"greedy/{name}")
            best_of.append(HeadlineFigure(name, best, int(step), points[-1][1], first, split, n, greedy))
    return best_of


def findings(run: RunRecord, digest: Digest) -> list[RoleFinding]:
    """Return one sentence for each role with its rewards, groups and failures."""
    roles: list[RoleFinding] = []
    for name in run.info.roles if run.done else ():
        validation = run.series(f"validation/reward/{name}")
        split: Split = "validation" if len(validation) > 1 else "train"
        series = validation if split == "validation" else run.series(f"reward/{name}/mean")
        counted = f"validation/n/reward/{name}" if split == "validation" else f"reward/{name}/n"
        sizes = dict(run.series(counted))
        points = [RewardPoint(int(step), mean, int(sizes.get(step, 0))) for step, mean in series]
        first, last = (points[0], points[-1]) if points else (None, None)
        role = digest.roles.get(name, RoleGroups(name))
        outcomes = sum(role.steps.values(), Outcomes())
        trained = run.info.roles[name].trainable
        start = "validation/" if split == "validation" else ""
        constant, same = (run.latest(f"{start}{key}{name}") for key in (CONSTANT, SAME))
        roles.append(
            RoleFinding(
                name,
                split,
                first,
                last,
                role.failures,
                role.answers,
                outcomes,
                trained,
                constant,
                same,
            )
        )
    return roles


def spread(steps: Sequence[Step]) -> str:
    """Format the advantages of all tokens in some steps: one number, or mean, smallest and largest; else
    empty."""
    values = advantages(steps)
    if not values:
        return ""
    low, high, mean = min(values), max(values), sum(values) / len(values)
    if high - low < 1e-9:
        return html.signed(mean)
    return f"mean {html.signed(mean)}, tokens {html.signed(low)} to {html.signed(high)}"


def training_of(role: RoleInfo) -> str:
    """Return a role's estimator and loss as text, or `not trained`."""
    settings = [setting for setting in (role.estimator, role.loss) if setting]
    return (", ".join(settings) or "trained") if role.trainable else "not trained"


def reason_text(reason: SampleReason) -> str:
    """Describe why an episode is shown, such as `best: solver 1, advantage +0.5`."""
    value = html.signed(reason.value) if reason.measure == "advantage" else number(reason.value)
    return f"{reason.side}: {reason.instance}, {reason.measure} {value}"


def credit_text(step: Step) -> str:
    """Return a text with the reward of a turn, its credit and its advantage."""
    credit = step.metadata.get("credit")
    shown = "–" if credit is None else number(credit)
    return f"reward {number(step.reward)}, credited {shown}, advantage {spread([step])}"


def prompt(step: Step) -> str:
    """Return the last user message of a step's prompt, cut for display; empty without one."""
    asked = [message.get("content") or "" for message in step.chat_completions if message["role"] == "user"]
    return clipped(asked[-1]) if asked else ""


def fields(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text cut to 300) of a task's first eight fields other than id and question."""
    return [(name, clipped(value, 300)) for name, value in task.items() if name not in ("id", "question")][:8]
