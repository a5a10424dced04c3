"""The demo "When does multi-agent RL help?": trains the arms of the table `capture`, and writes its page.

    python benchmarks/results_demo.py             # trains what is missing; the same command resumes it
    python benchmarks/results_demo.py --seeds 1   # a third of the time
    python benchmarks/results_demo.py --no-train  # draws what is measured

`docs/demo/index.html` opens from the disk. It links a page of episodes for each workflow, in which the viewer
shows the credit trace of one turn of each training.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

import click
from results import KEEP_SECONDS, Job, finished
from results_falls import Fall, HeavyTurn, change_beside, heaviest_turn, largest_fall, smoothed_curve
from results_page import Findings, Verdict, changed, interval, shown
from results_picture import Change
from results_tables import LOOKS, WINDOW, Study

from rolegraph.engine.records.confined import write_whole
from rolegraph.local.warm import keep_services
from rolegraph.pages.report import html
from rolegraph.pages.report.charts import SHARES, ChartLine, Stroke, line_chart
from rolegraph.pages.report.panels import Panel
from rolegraph.pages.report.reading import Point, RunRecord, read_run
from rolegraph.pages.view import EpisodeFilter, ViewedRun, open_run
from rolegraph.pages.view.finding import SearchPage
from rolegraph.pages.view.pages import PageLinks, Pages
from rolegraph.pages.view.trace import GroupMember

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "demo"
CORRECT = "episode/correct"
SIDES = {"shared": "one policy", "separate": "a policy each"}
"""Ends of the arms' names, each with its words."""
WORKFLOWS = {
    "loop": (
        "Evaluator and optimiser",
        "Two solvers answer. Each has a verifier of its own, which sends the solver back, at most twice.",
    ),
    "judge": (
        "Voting",
        "Two solvers answer the same prompt in parallel, and a judge picks one of the answers.",
    ),
    "orchestrator": (
        "Orchestrator and workers",
        "A planner says how to begin, two workers solve the task in parallel with its plan, and a last role "
        "reads both and answers.",
    ),
}
"""Title and roles of each workflow, by the beginning of its arms' names."""
CLAIMS = {
    "share": "one role has over nine tenths of the shared policy's gradient",
    "peak": "separate policies reach a higher peak",
    "drop": "separate policies lose more of it by the end",
}
"""Parts of the claim, by the figure that each is about."""
WORDS: Mapping[str, Mapping[Verdict, str]] = {
    "share": {
        "holds": "the policy is captured.",
        "does not hold": "the policy is not captured.",
        "cannot tell": "whether that is over nine tenths in other seeds, we cannot tell.",
        "no difference above 0.03": "that is nine tenths, to 0.03.",
    },
    "peak": {
        "holds": "Separate policies reach the higher peak ({gap:+.3f}).",
        "does not hold": "The shared policy reaches the higher peak ({gap:+.3f} for separate policies).",
        "cannot tell": "Which policies reach the higher peak, we cannot tell ({gap:+.3f} for separate ones).",
        "no difference above 0.03": "Both reach the same peak, to 0.03 ({gap:+.3f} for separate policies).",
    },
    "drop": {
        "holds": "Separate policies lose more of it by the end ({gap:+.3f}).",
        "does not hold": "The shared policy loses more of it by the end ({gap:+.3f} for separate policies).",
        "cannot tell": "Which lose more of it by the end, we cannot tell ({gap:+.3f} for separate ones).",
        "no difference above 0.03": "Both lose the same of it, to 0.03 ({gap:+.3f} for separate policies).",
    },
}
"""Sentences by figure and verdict; `gap` is the difference of separate and shared."""


class Training(NamedTuple):
    """Finished training of one arm with one seed."""

    arm: str
    seed: int
    run: ViewedRun
    record: RunRecord

    @property
    def side(self) -> str:
        """Words for the arm's policies."""
        return SIDES[self.arm.rpartition("_")[2]]


class TracedFall(NamedTuple):
    """Largest fall of a training, with the turn before it that had the largest share of a gradient."""

    training: Training
    fall: Fall | None
    turn: HeavyTurn | None = None
    member: GroupMember | None = None
    """The turn as a member of the group that it was compared in."""
    other: float | None = None
    """Change of the other side's training with the same seed, whose tasks are the same, in the same steps."""
    href: str = ""
    """Page of its episode, with the group's table open; empty where the page leaves the episode out."""

    @property
    def size(self) -> float:
        """Size of the fall; 0 without one."""
        return self.fall.size if self.fall else 0.0

    @property
    def label(self) -> str:
        """Description of the fall for its dot in a chart."""
        if not (self.fall and self.turn):
            return ""
        first, last = self.fall.steps[0], self.fall.steps[-1]
        return (
            f"seed {self.training.seed}, steps {first:g} to {last:g}: {self.fall.before:.2f}, then "
            f"{self.fall.after:.2f}. Open the turn with {self.turn.share:.0%} of a step's gradient."
        )


class FigureRow(NamedTuple):
    """Figure of both arms of a workflow, and the verdict on the part of the claim that is about it."""

    label: str
    shared: str
    separate: str
    difference: str
    verdict: str = ""
    is_predicted: bool = True
    """Whether the paper claims it of this workflow."""


@dataclass(frozen=True, slots=True)
class WorkflowPart:
    """Content of the page's section of one workflow."""

    name: str
    title: str
    about: str
    summary: str
    answers: FigureRow
    claims: Sequence[FigureRow]
    """Row of each part of the claim, in the order of `CLAIMS`."""
    panels: Sequence[Panel]
    falls: Sequence[TracedFall]


def trainings_of(study: Study, workflow: str) -> list[Training]:
    """Return the finished trainings of a workflow's arms.

    Raises:
        DataError: A folder cannot be read.
    """
    arms = [arm for arm in study.table.arms if arm.rpartition("_")[0] == workflow]
    jobs = [Job(study, arm, seed) for arm in arms for seed in study.table.seeds]
    places = [(job, job.folder(job.arm)) for job in jobs]
    return [
        Training(job.name, job.seed, open_run(place.path), read_run(place.path))
        for job, place in places
        if finished(place)
    ]


def curve(label: str, curves: Sequence[Sequence[Point]], colour: int) -> ChartLine:
    """Return the mean of several seeds' curves, at the steps that all have, with its interval over them."""
    by_step = [dict(smoothed_curve(points)) for points in curves]
    steps = sorted(set(by_step[0]).intersection(*by_step[1:])) if by_step else []
    means = {step: interval({seed: {"": own[step]} for seed, own in enumerate(by_step)}) for step in steps}
    return ChartLine(
        label,
        [(step, over.mean) for step, over in means.items()],
        colour,
        Stroke.MEAN,
        [(step, over.low, over.high) for step, over in means.items()] if len(curves) > 1 else (),
    )


def panel(title: str, lines: Sequence[ChartLine], note: str = "") -> Panel | None:
    """Return a chart of shares with its legend; None without points."""
    lines = [line for line in lines if line.points]
    legend = [(line.label, f"c{line.colour} {line.stroke}") for line in lines]
    return Panel(title, line_chart(title, lines, SHARES), legend, frozenset(), note) if lines else None


def panels_of(trainings: Sequence[Training], falls: Sequence[TracedFall]) -> list[Panel]:
    """Return the charts of a workflow: right answers, shares of the gradient, and each side's seeds."""
    sides = {
        side: [training for training in trainings if training.arm.endswith(f"_{side}")] for side in SIDES
    }
    learning = [
        curve(SIDES[side], [training.record.series(CORRECT) for training in own], colour)
        for colour, (side, own) in enumerate(sides.items())
    ]
    shared = sides["shared"]
    roles = shared[0].record.info.trained_roles if shared else ()
    shares = [
        curve(role, [training.record.series(f"optim/share/{role}") for training in shared], 2 + colour)
        for colour, role in enumerate(roles)
    ]
    drawn = [
        panel("Right answers", learning, "mean over the seeds"),
        panel("Share of the shared policy's gradient", shares, "mean over the seeds"),
    ]
    for side, own in sides.items():
        lines = [
            ChartLine(f"seed {it.seed}", smoothed_curve(it.record.series(CORRECT)), seed_colour(it))
            for it in own
        ]
        chart = panel(
            f"Right answers of each seed, {SIDES[side]}", lines, "a dot opens the turn before a fall"
        )
        drawn.append(chart and with_dots(chart, [it for it in falls if it.training in own]))
    return [it for it in drawn if it]


def seed_colour(training: Training) -> int:
    """Return the number of the colour of a training among those of its side."""
    return 5 + training.seed % 3


def with_dots(chart: Panel, falls: Sequence[TracedFall]) -> Panel:
    """Return a chart of shares with a dot that opens a page where each fall with one begins.

    A screen reader reads the chart as one image; the table of falls has the links, too.
    """
    hover = re.search('data-hover="(.*?)"', chart.svg)
    assert hover is not None
    places = {float(text.split()[1]): place for place, text in json.loads(unescape(hover[1]))}
    dots = [
        f'<a href="{escape(it.href)}" tabindex="-1"><circle class="dot link c{seed_colour(it.training)}" '
        f'cx="{places[it.fall.steps[-1]]:.2f}%" cy="{100 * (1 - it.fall.before):.2f}%" r="6">'
        f"<title>{escape(it.label)}</title></circle></a>"
        for it in falls
        if it.fall and it.href
    ]
    cursor = '<line class="cursor"'
    return replace(chart, svg=chart.svg.replace(cursor, "".join(dots) + cursor))


def traced_falls(trainings: Sequence[Training], file: Path) -> list[TracedFall]:
    """Return the largest fall of each training, and write the episodes of each side's largest to one page.

    An episode takes 20 to 60 kB, so that those of all seeds would be most of the documents.

    Args:
        trainings: Trainings of one workflow.
        file: HTML file of the episodes, which links name relative to its folder.

    Raises:
        DataError: A file of episodes cannot be read.
        WorldError: The page cannot be written.
    """
    pages = Pages([training.run for training in trainings], PageLinks())
    falls: list[TracedFall] = []
    for number, training in enumerate(trainings):
        fall = largest_fall(training.record.series(CORRECT))
        turn = heaviest_turn(training.run, fall.steps) if fall else None
        member, anchor = group_of(pages, number, turn) if turn else (None, "")
        other = next((it for it in trainings if it.seed == training.seed and it.arm != training.arm), None)
        change = change_beside(fall, other.record.series(CORRECT)) if fall and other else None
        href = f"{file.name}#{anchor}" if turn else ""
        falls.append(TracedFall(training, fall, turn, member, change, href))
    largest = {fall.training.arm: fall for fall in sorted(falls, key=lambda fall: fall.size)}.values()
    chosen: list[tuple[int, SearchPage]] = []
    for number, fall in enumerate(falls):
        if fall.turn and fall in largest:
            every = fall.training.run.rows(fall.turn.row.part)
            rows = every.only([fall.turn.row])
            chosen.append((number, SearchPage(rows, 0, 1, more=False, episodes=len(every), matching=rows)))
    if chosen:
        write_whole(file, pages.static(chosen, EpisodeFilter()).encode("utf-8", "replace"))
    return [fall if fall in largest else fall._replace(href="") for fall in falls]


def group_of(pages: Pages, number: int, turn: HeavyTurn) -> tuple[GroupMember, str]:
    """Return a turn as a member of its group, and the anchor of the group's table in the page."""
    shown = pages.shown(number, turn.row)
    cards = {card.anchor: card for card in shown.cards}
    own = next(card for card in shown.cards if card.turn.node == turn.node)
    trace, table = own.compared[0]
    numbers = [other.mine.credit.group for other, _ in cards[table].compared]
    return trace.mine, f"{table}-g{numbers.index(trace.mine.credit.group) + 1}"


def answers_row(found: Findings, workflow: str) -> FigureRow:
    """Return the right answers on the validation tasks, before and after the training."""
    cells: list[str] = []
    for side in SIDES:
        before, after = (interval(found.values(f"{workflow}_{side}{end}")) for end in (".start", ""))
        cells.append(changed(Change(before, after)) if before.n and after.n else "–")
    gap = found.compared(f"{workflow}_separate > {workflow}_shared").over
    return FigureRow(
        label="right answers on the validation tasks",
        shared=cells[0],
        separate=cells[1],
        difference=shown(gap, "+") if gap.n else "–",
    )


def claim_row(found: Findings, workflow: str, figure: str) -> FigureRow:
    """Return a part of the claim in one workflow, whether or not the paper claims it of that one."""
    words = comparison(workflow, figure)
    verdict, gap, _ = found.compared(words)
    shared, separate = (figure_of(found, f"{workflow}_{side}.{figure}") for side in SIDES)
    alone = figure == "share"  # each role has all of a policy of its own
    both = found.values(f"{workflow}_shared.{figure}").keys() & found.values(f"{workflow}_separate.{figure}")
    difference = "–" if alone or len(both) < 2 else shown(gap, "+")
    return FigureRow(
        label=CLAIMS[figure],
        shared=shared,
        separate="–" if alone else separate,
        difference=difference,
        verdict=verdict or "not measured",
        is_predicted=words in found.table.expect,
    )


def comparison(workflow: str, figure: str) -> str:
    """Return the comparison of a table's `expect` that a part of the claim predicts."""
    shared, separate = f"{workflow}_shared", f"{workflow}_separate"
    return f"{shared}.share > 0.9" if figure == "share" else f"{separate}.{figure} > {shared}.{figure}"


def figure_of(found: Findings, name: str) -> str:
    """Write a figure of a whole training: the mean over the seeds, with its interval if there are several."""
    values = found.values(name)
    over = interval(values)
    return shown(over) if len(values) > 1 else f"{over.mean:.3f}" if values else "–"


def summary_of(found: Findings, workflow: str, trainings: Sequence[Training]) -> str:
    """Describe in words which role has most of the gradient, and what separate policies change."""
    share = interval(found.values(f"{workflow}_shared.share"))
    if not share.n:
        return "Not measured yet."
    shared = [training for training in trainings if training.arm.endswith("_shared")]
    role = largest_role(shared)
    seeds = len(found.values(f"{workflow}_shared.share"))
    words = [f"So far, of {seeds} seed{'s' * (seeds > 1)}."] if seeds < LOOKS[0] else []
    words += [
        f"The {role} writes {part_of_tokens(shared, role):.0%} of the tokens and has {share.mean:.0%} of the "
        "shared policy's gradient:"
    ]
    for figure, by_verdict in WORDS.items():
        verdict, gap, _ = found.compared(comparison(workflow, figure))
        if verdict is not None:
            words.append(by_verdict[verdict].format(gap=gap.mean))
    return " ".join(words)


def largest_role(trainings: Sequence[Training]) -> str:
    """Return the role with the largest mean share of its policy's gradient, as `share` measures it."""
    records = [training.record for training in trainings]
    sums = {
        role: sum(value for record in records for _, value in record.series(f"optim/share/{role}"))
        for role in (records[0].info.trained_roles if records else ())
    }
    return max(sums, key=lambda role: sums[role], default="largest role")


def part_of_tokens(trainings: Sequence[Training], role: str) -> float:
    """Return a role's part of the response tokens in every tenth step, the last included; 0 without any.

    Raises:
        DataError: A file of episodes cannot be read.
    """
    tokens: Counter[str] = Counter()
    for training in trainings:
        parts = [part for part in training.run.parts() if part.split == "train"]
        for part in parts[::10]:
            for episode in (training.run.read(row) for row in training.run.rows(part)):
                for trajectory in episode.trajectories:
                    tokens[trajectory.name] += sum(step.response_tokens for step in trajectory.steps)
    return tokens[role] / (tokens.total() or 1)


def part_of(study: Study, found: Findings, workflow: str, folder: Path) -> WorkflowPart:
    """Return a workflow's section, and write the page of its episodes into `folder`.

    Raises:
        DataError: A training cannot be read.
        WorldError: The page cannot be written.
    """
    trainings = trainings_of(study, workflow)
    falls = traced_falls(trainings, folder / f"{workflow}.html")
    title, about = WORKFLOWS[workflow]
    return WorkflowPart(
        name=workflow,
        title=title,
        about=about,
        summary=summary_of(found, workflow, trainings),
        answers=answers_row(found, workflow),
        claims=[claim_row(found, workflow, figure) for figure in CLAIMS],
        panels=panels_of(trainings, falls),
        falls=falls,
    )


def sizes(study: Study) -> dict[str, object]:
    """Return steps, tasks of a step, and episodes of a task, as the table's first arm has them."""
    first = next(iter(study.table.arms))
    train = Job(study, first, 0).flow(study.table.arms[first]).plan.spec.train
    return {"steps": train.steps, "batch": train.batch_size, "rollouts": train.rollouts}


def write_demo(study: Study, folder: Path) -> Path:
    """Write the pages of a table's finished trainings into a folder, and return the path of the first.

    Raises:
        DataError: A training cannot be read.
        WorldError: A page cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings(study)
    parts = [part_of(study, found, workflow, folder) for workflow in WORKFLOWS]
    code, code_hash = html.script(html.CHARTS)
    page = html.render(
        HERE / "results_demo.html.j2",
        HERE / "results_demo.css",
        table=study.table,
        paper=study.table.papers[0],
        verdict=found.sentence if found.measured else "It is not measured in full yet.",
        trained=sum(map(len, found.runs.values())),
        planned=len(study.table.arms) * LOOKS[0],
        parts=parts,
        claims=CLAIMS,
        window=WINDOW,
        **sizes(study),
        script=code,
        script_hash=code_hash,
    )
    write_whole(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--seeds", type=click.IntRange(min=1), help="How many seeds to train; by default three.")
@click.option("--train/--no-train", default=True, help="Whether to train what is missing.")
@click.option("--tiny", is_flag=True, help="One step on two tasks.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of all results; by default runs/results."
)
@click.option("--page", type=click.Path(path_type=Path), help="Folder of the page; by default docs/demo.")
def main(seeds: int | None, train: bool, tiny: bool, out: Path | None, page: Path | None) -> None:
    study = Study("capture", out or Path(f"runs/results{'-tiny' * tiny}"), tiny=tiny)
    keep_services(KEEP_SECONDS)
    jobs = [
        Job(study, arm, seed) for seed in study.table.seeds[: seeds or LOOKS[0]] for arm in study.table.arms
    ]
    for job in jobs if train else ():
        job.run()
    click.echo(write_demo(study, page or (study.out / "demo" if tiny else PAGE)))


if __name__ == "__main__":
    main()
