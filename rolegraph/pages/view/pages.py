"""HTML pages of the viewer: a list of episodes, an episode, an error, and all of them in one file.

Autoescape is on, and no template marks a text as safe: texts of models, tasks and tools stay texts. A new
page takes a template, a method of `Pages`, a route in `serving.py`, and a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode, GroupKey
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.folder import INFO
from rolegraph.engine.records.run_folders import runs_in
from rolegraph.pages.report.compare.comparison import FLIPS_OF_PAGE, compare, comparison_page
from rolegraph.pages.report.compare.sides import read_side
from rolegraph.pages.report.digest import clipped, question, read_digest
from rolegraph.pages.report.html import render, script
from rolegraph.pages.report.page import render as report_page
from rolegraph.pages.report.reading import read_run
from rolegraph.pages.view import texts
from rolegraph.pages.view.finding import (
    ANY,
    PAGE,
    EpisodeFilter,
    SearchPage,
    by_task,
    elsewhere,
    find,
    neighbours,
)
from rolegraph.pages.view.overview import RunsQuery, run_rows
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun, open_run, run_names
from rolegraph.pages.view.texts import Chip, chips
from rolegraph.pages.view.timeline import DrawnTimeline, draw, timeline
from rolegraph.pages.view.trace import GroupTrace, SampledToken, greatest, spans_tasks, tokens, traces
from rolegraph.pages.view.turns import CallRecord, TurnRecord, turns

HERE = Path(__file__).parent
MOST_CARDS = 150
"""Number of turns of an episode on one page."""
MOST_ANSWERS = 6
"""Number of trajectories whose answers a row of a list shows."""
MOST_TABS = 8
"""Number of runs up to which each page names all of them."""
MOST_MEMBERS = 64
"""Number of members of a group that are listed."""
_EVER = datetime.min.replace(tzinfo=UTC)
_KNOWN = ("spec", "hash", "failures", "started_at")
"""Keys of an episode's metadata that are shown elsewhere on the page."""


class PageLinks:
    """URLs of the pages in one file, such as `#e0-episodes-12`; a server has others."""

    anchors: Collection[str] = ()
    """Anchors of the episodes in the file."""

    def listing(self, run: int, where: EpisodeFilter, start: int = 0) -> str:
        """Return `#`, because a single file has no further pages of lists."""
        return "#"

    def episode(self, run: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str | None:
        """Return the anchor of an episode in this file, such as `#e0-episodes-12`; None for an episode that
        is not in the file."""
        anchor = anchor_of(run, row)
        return f"#{anchor}" if anchor in self.anchors and not start else None

    def to(self, *path: object) -> str | None:
        """Return None, because a single file links to no other page."""
        return None

    def episodes(self, run: int, where: EpisodeFilter) -> Callable[[EpisodeLocation], str | None]:
        """Return a function that maps a row of a run to the URL of its episode, None where it has no page."""
        return lambda row: self.episode(run, row, where)


class EpisodeRow(NamedTuple):
    """Row of a list of episodes."""

    row: EpisodeLocation
    question: str
    """Question of the task, or its id where the episode is no longer readable."""
    answers: Sequence[tuple[str, str]]
    """Role and last action of the first trajectories."""


class TaskRows(NamedTuple):
    """Rollouts of a task that a list shows as one row."""

    rows: Sequence[EpisodeRow]
    """Rollouts that match the filter and are on the page."""
    every: Sequence[EpisodeLocation]
    """All rollouts of the task in the file."""

    @property
    def right(self) -> int:
        """Number of rollouts that are correct."""
        return sum(row.entry.is_correct for row in self.every)

    @property
    def failed(self) -> bool:
        """True where any role failed in any of the task's rollouts."""
        return any(role.failures for row in self.every for role in row.entry.roles.values())

    def rewards(self, roles: Iterable[str]) -> dict[str, float]:
        """Return the mean reward over all rollouts of each of these roles that has rewards."""
        of_roles = ((name, [row.entry.roles.get(name) for row in self.every]) for name in roles)
        pairs = ((name, [r for role in entries if role for r in role.rewards]) for name, entries in of_roles)
        return {name: sum(rewards) / len(rewards) for name, rewards in pairs if rewards}


class CallCard(NamedTuple):
    """One model call of a turn for the page: its record, and its response's tokens with colours."""

    asked: CallRecord
    tokens: Sequence[SampledToken]
    left_out: int
    """Number of tokens beyond those that are shown."""


class TurnCard(NamedTuple):
    """One turn of an episode for the page: its calls, and the groups that it was compared in."""

    turn: TurnRecord
    name: str
    anchor: str
    calls: Sequence[CallCard]
    compared: Sequence[tuple[GroupTrace, str]]
    """Groups in which the turn is compared, each with the anchor of the card that has its table."""

    @property
    def advantage(self) -> float | None:
        """Weighted sum of the advantages in all groups; None without an advantage."""
        members = [trace.mine for trace, _ in self.compared if trace.mine.advantage is not None]
        return sum(mine.weight * (mine.advantage or 0.0) for mine in members) if members else None

    @property
    def signal(self) -> float | None:
        """Mean over the tokens of the advantages that a signal added; None where it added none."""
        signals = [(call.asked.step.metadata.get("signal"), call.asked.step) for call in self.calls]
        means = [(value, step.response_tokens) for value, step in signals if value is not None]
        return sum(value * n for value, n in means) / max(1, sum(n for _, n in means)) if means else None

    @property
    def gate(self) -> float | None:
        """Factor of the signal on the turn; None without a gate."""
        return next(
            (value for it in self.calls if (value := it.asked.step.metadata.get("gate")) is not None), None
        )

    @property
    def chips(self) -> list[Chip]:
        """Short labels of the turn, such as rewards and failures."""
        compared = [trace for trace, _ in self.compared]
        return chips(self.turn, compared, self.advantage, self.signal, self.gate)

    @property
    def has_rounds(self) -> bool:
        """True where the turn belongs to a role in a loop, so that its round is shown."""
        return self.turn.node.round > 1 or any("round" in call.asked.step.metadata for call in self.calls[:1])


@dataclass(frozen=True, slots=True)
class EpisodePage:
    """Content of the page of an episode."""

    row: EpisodeLocation
    episode: Episode
    anchor: str
    timeline: DrawnTimeline
    cards: Sequence[TurnCard]
    start: int
    turns: int
    """Number of all turns of the episode."""
    fields: Sequence[tuple[str, str, bool]]
    """Fields of the task: name, value, and whether it is hidden from prompts."""
    notes: Sequence[tuple[str, str]]
    """Facts of the episode that are not shown elsewhere, such as the rounds of its loops."""

    @property
    def left(self) -> int:
        """Number of the episode's turns after those shown on the page."""
        return self.turns - self.start - len(self.cards)


class EpisodeColumn(NamedTuple):
    """Episode that is shown beside another."""

    number: int
    """Number of its run."""
    name: str
    """Name of its run."""
    run: ViewedRun
    shown: EpisodePage


class TurnPair(NamedTuple):
    """Turn of both of two episodes; None where one lacks it."""

    cards: tuple[TurnCard | None, TurnCard | None]

    @property
    def name(self) -> str:
        """Name of the turn's role instance, with its round in a loop."""
        card = next(card for card in self.cards if card is not None)
        return f"{card.name}, round {card.turn.node.round}" if card.has_rounds else card.name


def anchor_of(run: int, row: EpisodeLocation) -> str:
    """Return an episode's HTML id in a page with several, such as `e0-episodes-12`."""
    return f"e{run}-{row.part.name}-{row.number}"


class Pages:
    """Renderer of the viewer's HTML pages for some runs.

    Args:
        runs: Runs to show.
        links: URLs of the pages.
        hidden: Whether hidden task fields are shown.
        folders: Folders whose new runs are added whenever the list of runs is rendered.
    """

    def __init__(
        self,
        runs: Sequence[ViewedRun],
        links: PageLinks,
        *,
        hidden: bool = True,
        folders: Sequence[Path] = (),
    ) -> None:
        self.runs, self.links, self.hidden = [*runs], links, hidden
        self._first, self._folders, self._adding = len(runs), folders, Lock()
        self._script = script(HERE / "view.js")
        self._live_script = script(HERE / "view.js", HERE / "live.js")

    def listing(self, number: int, where: EpisodeFilter, start: int = 0) -> str:
        """Render a page of a run's episodes; raises as `find` does."""
        run = self.runs[number]
        page = find(run, where, start)
        shown: dict[str, Any] = {
            "found": page,
            "lines": self.lines(number, page),
            "failures": _failures(run),
        }
        return self._render("listing.html.j2", run.info.name, number, where=where, is_live=True, **shown)

    def episode(self, number: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str:
        """Render an episode of run number `number`, from its turn `start` (from 0) on; raises DataError."""
        beside = neighbours(self.runs[number], where, row)
        before, after = (other and self.links.episode(number, other, where) for other in beside)
        shown: dict[str, Any] = {"shown": self.shown(number, row, start), "before": before, "after": after}
        return self._render("episode.html.j2", _title(row), number, where=where, **shown)

    def overview(self, query: RunsQuery) -> str:
        """Render a table of the runs with their figures; a damaged run is a row with its fault."""
        rows = run_rows(self.runs)
        rows = query.arrange([*reversed(rows[self._first :]), *rows[: self._first]])
        shown: dict[str, Any] = {
            "rows": rows,
            "query": query,
            "hidden_picks": sorted(query.picked - {row.number for row in rows}),
        }
        return self._render("overview.html.j2", "Runs", is_live=True, **shown)

    def add_new(self) -> None:
        """Open the runs that have begun in the folders since; numbers of the others stay."""
        with self._adding:
            present = {run.folder.path for run in self.runs}
            new = [path for folder in self._folders for path in runs_in(folder) if path not in present]
            self.runs += [open_run(path) for path in new if (path / INFO).exists()]

    def compare(self, numbers: Iterable[int]) -> str:
        """Render the comparison of runs with the oldest of them; raises as `compare` does."""
        names = run_names(self.runs)
        started = {number: self.runs[number].info.started or _EVER for number in numbers}
        numbers = sorted(started, key=lambda number: (started[number], number))
        sides = [read_side(names[number], self.runs[number].folder.path) for number in numbers]
        by_name = {names[number]: number for number in numbers}

        def episodes(side: str, task: str) -> str:
            return self.links.listing(by_name[side], EpisodeFilter(task=task))

        return comparison_page(compare(sides, FLIPS_OF_PAGE), self.links.to() or "", episodes)

    def elsewhere(self, number: int, row: EpisodeLocation) -> str:
        """Render the list of other runs and steps that have the task of an episode."""
        others = elsewhere(self.runs, number, row)
        return self._render("elsewhere.html.j2", _title(row), number, row=row, others=others)

    def beside(self, *sides: tuple[int, EpisodeLocation]) -> str:
        """Render two episodes in columns, each turn beside that of the same role; raises DataError.

        Args:
            sides: Number of the run and location of both episodes.
        """
        names = run_names(self.runs)
        columns = [
            EpisodeColumn(number, names[number], self.runs[number], self.shown(number, row))
            for number, row in sides
        ]
        one, two = ({card.turn.node: card for card in column.shown.cards} for column in columns)
        pairs = [TurnPair((one.get(node), two.get(node))) for node in {**one, **two}]
        tasks = [column.shown.episode.task for column in columns]
        title = ", ".join(_title(row) for _, row in sides)
        shown: dict[str, Any] = {"columns": columns, "pairs": pairs, "other_rows": tasks[0] != tasks[1]}
        return self._render("beside.html.j2", title, sides[0][0], **shown)

    def report(self, number: int) -> str:
        """Render the report of a training, with links into the viewer; raises UsageError for a run."""
        run = read_run(self.runs[number].folder.path)
        digest = read_digest(run.folder, run.info.trained_roles, self.runs[number].rule)
        return report_page(run, digest, self.links.listing(number, EpisodeFilter()))

    def error(self, message: str) -> str:
        """Render a page with an error message, and return its HTML."""
        return self._render("error.html.j2", "Not shown", message=message)

    def static(self, chosen: Sequence[tuple[int, SearchPage]], where: EpisodeFilter) -> str:
        """Render one self-contained page with the lists and episodes of several runs."""
        title = ", ".join(dict.fromkeys(self.runs[number].info.name for number, _ in chosen))
        shown: dict[str, Any] = {"parts_of": chosen, "lines_of": self.lines, "shown_of": self.shown}
        return self._render("static.html.j2", title, where=where, **shown)

    def lines(self, number: int, page: SearchPage) -> list[TaskRows]:
        """Return the rows of a search page grouped by task, each with the task's other rollouts.

        A task that is no longer readable is shown by its id.
        """
        run = self.runs[number]
        every = {part: by_task(run.rows(part)) for part in {row.part for row in page.rows}}
        return [
            TaskRows([self._line(run, row) for row in rows], every[rows[0].part][key])
            for key, rows in by_task(page.rows).items()
        ]

    def _line(self, run: ViewedRun, row: EpisodeLocation) -> EpisodeRow:
        try:
            episode = self._public(run, run.read(row))
        except DataError:
            return EpisodeRow(row, row.entry.task, ())
        acted = [it for it in episode.trajectories[:MOST_ANSWERS] if it.steps]
        answers = [(it.name, answer_text(it.steps[-1].action)) for it in acted]
        return EpisodeRow(row, question(episode.task, row.entry.task), answers)

    def shown(self, number: int, row: EpisodeLocation, start: int = 0) -> EpisodePage:
        """Read an episode and return its page's content, with turns from number `start` (from 0) on.

        Raises DataError.
        """
        run = self.runs[number]
        together = run.same_task(row)
        if any(spans_tasks(episode) for _, episode in together):
            together = run.same_step(row)
        together = [(other, self._public(run, episode)) for other, episode in together]
        episode = next(episode for other, episode in together if other[:2] == row[:2])
        taken = turns(episode)
        roles = run.spec.roles.items() if run.spec is not None else ()
        called = frozenset(name for name, role in roles if role.tool is not None)
        line = timeline(run.dag, taken, called)
        compared = traces(row, together)
        anchor = anchor_of(number, row)
        order = line.order[start : start + MOST_CARDS]
        anchors = {node: f"{anchor}-t{place}" for place, node in enumerate(order, start)}
        scale = greatest(step for trajectory in episode.trajectories for step in trajectory.steps)
        names = {lane.instance: lane.name for lane in line.lanes}
        cards: list[TurnCard] = []
        tables: dict[GroupKey, str] = {}
        for node in order:
            turn = taken[node]
            name = names.get(node[:2], f"{node.role} {node.index}")
            groups = [
                (
                    replace(trace, members=trace.members[:MOST_MEMBERS]),
                    tables.setdefault(trace.key, anchors[node]),
                )
                for trace in compared.get(node, ())
            ]
            calls: list[CallCard] = []
            for asked in turn.calls:
                ids = asked.step.response_ids
                texts = run.pieces(node.role, node.index, ids) if ids else ()
                coloured = list(tokens(asked.step, texts, scale))
                calls.append(CallCard(asked, coloured, len(texts) - len(coloured)))
            cards.append(TurnCard(turn, name, anchors[node], calls, groups))
        return EpisodePage(
            row=row,
            episode=episode,
            anchor=anchor,
            timeline=draw(line, anchors),
            cards=cards,
            start=start,
            turns=len(line.order),
            fields=[(name, clipped(v, 2000), run.info.is_hidden(name)) for name, v in episode.task.items()],
            notes=[(k, clipped(v, 400, digits=6)) for k, v in episode.metadata.items() if k not in _KNOWN],
        )

    def _public(self, run: ViewedRun, episode: Episode) -> Episode:
        return episode if self.hidden else run.without_hidden(episode)

    def _render(self, template: str, title: str, number: int = 0, **values: Any) -> str:
        values = {
            "where": EpisodeFilter(),
            "links": self.links,
            "hidden": self.hidden,
            "is_live": False,
            **values,
        }
        code, code_hash = self._live_script if values["is_live"] else self._script
        return render(
            HERE / template,
            HERE / "view.css",
            title=title,
            number=number,
            run=self.runs[number],
            runs=self.runs,
            script=code,
            script_hash=code_hash,
            texts=texts,
            anchor=anchor_of,
            most_cards=MOST_CARDS,
            most_tabs=MOST_TABS,
            page=PAGE,
            any=ANY,
            **values,
        )


def _title(row: EpisodeLocation) -> str:
    return f"{row.entry.task}:{row.entry.rollout}"


def _failures(run: ViewedRun) -> list[str]:
    """Return the names of all failures in a run's episodes, the most frequent first."""
    counts: Counter[str] = Counter()
    for part in run.parts():
        for row in run.rows(part):
            for role in row.entry.roles.values():
                counts.update(role.failures)
    return [name for name, _ in counts.most_common()]


def answer_text(action: object) -> str:
    """Return an action in at most 60 characters, or `nothing`."""
    return "nothing" if action is None else clipped(action, 60)


def write_static(
    runs: Sequence[ViewedRun], file: Path, *, hidden: bool, where: EpisodeFilter, most: int = 200
) -> int:
    """Write the matching episodes of runs to one HTML file.

    Args:
        runs: Runs to show.
        file: Path of the file.
        hidden: Whether hidden task fields are shown.
        where: Filter of the episodes.
        most: Largest number of episodes of each run.

    Returns:
        The number of episodes in the file.

    Raises:
        DataError: A run cannot be read.
        WorldError: The file cannot be written.
    """
    links = PageLinks()
    readable = [(number, run) for number, run in enumerate(runs) if len(runs) == 1 or not run.fault]
    chosen = [(number, find(run, where, most=most, hidden=hidden)) for number, run in readable]
    links.anchors = {anchor_of(number, row) for number, matches in chosen for row in matches.rows}
    page = Pages(runs, links, hidden=hidden).static(chosen, where)
    write_whole(file, page.encode("utf-8", "replace"))
    return len(links.anchors)
