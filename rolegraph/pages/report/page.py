"""The report: a run's data put into `report.html.j2`, with its style and script inside the file.

Autoescape is on: what models wrote is hostile text. A content security policy lets the page load nothing
and run no script but its own, which the policy names by its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rolegraph.engine.compile.graph import check_graph
from rolegraph.engine.compile.leaving import read_rule
from rolegraph.engine.records import RunFolder, Step
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.records.info import RoleInfo
from rolegraph.engine.records.numbers import number, signed
from rolegraph.engine.spec import Spec, load_spec
from rolegraph.engine.training.analysis.changes import TrainingChange, training_change
from rolegraph.engine.training.analysis.metrics import lasting_signs
from rolegraph.engine.training.analysis.outcomes import advantages
from rolegraph.engine.training.analysis.verdict import BEST_ON_THESE, TrainingVerdict, training_verdict
from rolegraph.pages.drawing import picture_of
from rolegraph.pages.drawing.svg import svg
from rolegraph.pages.report import html
from rolegraph.pages.report.charts import MOST_BARS, ChartLink, interval, ruler, scale
from rolegraph.pages.report.digest import (
    Digest,
    SampleReason,
    clipped,
    credit_formula,
    instance,
    question,
    read_digest,
)
from rolegraph.pages.report.outcome import (
    COLLAPSED,
    UNKNOWN,
    FigureChange,
    figure_changes,
    role_summaries,
)
from rolegraph.pages.report.panels import MEANINGS, OUTCOMES, REASONS, sections
from rolegraph.pages.report.reading import RunRecord, episode_counts, read_run
from rolegraph.pages.report.turning import TurningPoint, turning_points

_HERE = Path(__file__).parent


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


def render(
    run: RunRecord,
    digest: Digest,
    viewer: str = "",
    bar: str | None = None,
    turn_url: Callable[[CreditRow], str] = lambda row: "",
) -> str:
    """Return the HTML of the report.

    Args:
        run: The training.
        digest: Summary of its episodes.
        viewer: URL of the run's list of episodes in the viewer; empty in a report file.
        bar: Links of the viewer that the page begins with, as `Markup`; None for a page that is a file.
        turn_url: Function from a turn's credit to the URL of its card; empty where the turn has no page.
    """
    code, code_hash = html.script(html.CHARTS)
    figures = figure_changes(run, digest.validations)
    change = training_change(run.info, run.lines, digest.validations)
    turning_links = [
        (point, turn_url(point.turn.credit) if point.turn else "") for point in turning_points(run, digest)
    ]
    shown_sections = sections(run, digest, [_link(point, url) for point, url in turning_links])
    drawn_keys = {key for section in shown_sections for panel in section.panels for key in panel.keys}
    policies = {name: run.info.roles[name].policies for name in run.info.trained_roles}
    spec = _valid_spec(run)
    verdict = training_verdict(RunFolder(run.folder), run.info, run.lines)
    return html.render(
        _HERE / "report.html.j2",
        run=run,
        info=run.info,
        figures=figures,
        episodes=episode_counts(run.lines, run.info),
        outcome=_outcome_words(figures, change, verdict),
        change_of=change,
        roles=role_summaries(run, digest),
        verdict=verdict,
        signs=[*lasting_signs(run.lines, policies)],
        chosen=BEST_ON_THESE,
        viewer=viewer,
        bar=bar or html.file_bar(),
        sections=shown_sections,
        turning=turning_links,
        meanings=MEANINGS,
        outcomes=OUTCOMES,
        controls=run.controls,
        axis=scale([0.0, *(end for control in run.controls for end in (control.low, control.high))]),
        interval=interval,
        ruler=ruler,
        spec=spec,
        workflow=svg(picture_of(spec)) if spec else "",
        others={key: [value for _, value in run.series(key)] for key in run.keys if key not in drawn_keys},
        digest=digest,
        reasons=REASONS,
        long=len(run.lines) > MOST_BARS,
        question=question,
        instance=instance,
        spread=spread,
        training_of=training_of,
        reason_text=reason_text,
        credit_text=credit_text,
        credit_formula=credit_formula,
        prompt=prompt,
        fields=fields,
        script=code,
        script_hash=code_hash,
    )


def _outcome_words(
    figures: Sequence[FigureChange], change: TrainingChange | None, verdict: TrainingVerdict
) -> str:
    """Return the verdict on a training in a word or a few; empty where no figure was measured."""
    if verdict.diverged:
        return COLLAPSED
    if not figures:
        return ""
    return change.words if change else UNKNOWN


def _valid_spec(run: RunRecord) -> Spec | None:
    """Return the spec of a training; None where it is missing or invalid."""
    if not run.spec:
        return None
    loaded_spec = load_spec(RunFolder(run.folder).spec_file)
    return None if loaded_spec.faults or check_graph(loaded_spec.spec) else loaded_spec.spec


def _link(point: TurningPoint, url: str) -> ChartLink:
    """Return the dot of a turning point in the curve, which leads to its turn, or else to its words."""
    label = f"largest {point.name}, to {number(point.change.last[1])}"
    return ChartLink(*point.last_point, href=url or f"#{point.name}", title=label)


def spread(steps: Sequence[Step]) -> str:
    """Format the advantages of all tokens in some steps: one number, or mean, smallest and largest; empty
    without advantages."""
    values = advantages(steps)
    if not values:
        return ""
    low, high, mean = min(values), max(values), sum(values) / len(values)
    if high - low < 1e-9:
        return signed(mean)
    return f"mean {signed(mean)}, tokens {signed(low)} to {signed(high)}"


def training_of(role: RoleInfo) -> str:
    """Return a role's estimator and loss as text, or `not trained`."""
    settings = [setting for setting in (role.estimator, role.loss) if setting]
    return (", ".join(settings) or "trained") if role.trainable else "not trained"


def reason_text(reason: SampleReason) -> str:
    """Describe why an episode is shown, such as `best: solver 1, advantage +0.5`."""
    value = signed(reason.value) if reason.measure == "advantage" else number(reason.value)
    return f"{reason.side}: {reason.instance}, {reason.measure} {value}"


def credit_text(step: Step) -> str:
    """Return a text with the reward of a turn and its advantage."""
    return f"reward {number(step.reward)}, advantage {spread([step])}"


def prompt(step: Step) -> str:
    """Return the last user message of a step's prompt, cut for display; empty without a user message."""
    asked = [message.get("content") or "" for message in step.chat_completions if message["role"] == "user"]
    return clipped(asked[-1]) if asked else ""


def fields(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text cut to 300) of a task's first eight fields other than id and question."""
    return [(name, clipped(value, 300)) for name, value in task.items() if name not in ("id", "question")][:8]
