"""HTML pages of the viewer: a list of episodes, an episode, an error, and all of them in one file.

Autoescape is on, and no template marks a text as safe: texts of models, tasks and tools stay texts. A new
page takes a template, a method of `Pages`, a route in `serving.py`, and a test.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from rolegraph.engine.errors import WorldError, os_errors_as
from rolegraph.engine.records import Episode
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.records.folder import INFO, RunPart
from rolegraph.engine.records.ownership import write_output
from rolegraph.pages.report.compare.comparison import compare
from rolegraph.pages.report.compare.page import FLIPS_OF_PAGE, comparison_page
from rolegraph.pages.report.digest import read_digest
from rolegraph.pages.report.html import CHARTS, file_bar, render, script, top_bar
from rolegraph.pages.report.page import render as report_page
from rolegraph.pages.report.reading import read_run
from rolegraph.pages.report.turning import turning_points
from rolegraph.pages.run_folders import runs_in
from rolegraph.pages.sides import Side, read_side, read_steps
from rolegraph.pages.view import texts, timeline
from rolegraph.pages.view.cards import (
    EpisodeColumn,
    EpisodePage,
    TurnPair,
    anchor_of,
    episode_page,
    turn_anchor,
)
from rolegraph.pages.view.finding import (
    ANY,
    PAGE,
    EpisodeFilter,
    SearchPage,
    elsewhere,
    find,
    neighbours,
    page_start,
)
from rolegraph.pages.view.listing import TaskRows, facets, row_figures, task_rows
from rolegraph.pages.view.overview import RunsQuery, RunsTable, picked_curves, run_rows
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun, open_run, run_names

HERE = Path(__file__).parent
MOST_ROLLOUTS = 16
"""Largest number of other rollouts that an episode's page links to."""
MOST_IN_FILE = 200
"""Default of the largest number of episodes of a run in one file."""
_EVER = datetime.min.replace(tzinfo=UTC)


class PageLinks:
    """URLs of the pages in a single file, such as `#e0-episodes-12`; `ServedLinks` has those of a server."""

    anchors: Collection[str] = ()
    """Anchors of the episodes in the file."""
    home: str = ""
    """URL of the site that the file is part of; empty without one."""
    up: str = ""
    """URL of the report that the file belongs to; empty without one."""

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
        """Return a function from a row of a run to the URL of its episode, or None for an episode without a
        page."""
        return lambda row: self.episode(run, row, where)


class ComparisonQuery(NamedTuple):
    """Sides of a comparison: runs, or steps of one training."""

    picked: Sequence[int]
    """Numbers of the runs."""
    steps: Sequence[int] = ()
    """Steps of the picked training; empty to compare runs."""
    best: bool = False
    """True to compare trainings by their best checkpoints."""

    @property
    def url(self) -> str:
        """Query of the comparison's URL."""
        picks = [("pick", number) for number in sorted(self.picked)] + [("step", step) for step in self.steps]
        return urlencode([*picks, *([("best", "yes")] if self.best else [])])


class Pages:
    """Renderer of the viewer's HTML pages for some runs.

    Args:
        runs: Runs to show.
        links: URLs of the pages.
        hidden: True to show hidden task fields.
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
        self._folders, self._adding = folders, Lock()
        self._script = script(HERE / "view.js")
        self._episode_script = script(HERE / "view.js", HERE / "json.js")
        self._live_script = script(HERE / "view.js", HERE / "live.js", CHARTS)

    def listing(self, number: int, where: EpisodeFilter, start: int = 0) -> str:
        """Render a page of a run's episodes; raises as `find` does."""
        run = self.runs[number]
        page = find(run, where, start, hidden=self.hidden)
        values: dict[str, Any] = {
            "found": page,
            "groups": self._groups(number, page, where.text),
            "facets": facets(run, where, page, hidden=self.hidden),
            "figures": row_figures(run, page, where),
            "unfiltered": EpisodeFilter(sort=where.sort),
            "failures": _failures(run),
            "steps": run.common_steps(),
        }
        title = f"{run_names(self.runs)[number]} episodes"
        return self._render("listing.html.j2", title, number, "Episodes", where=where, is_live=True, **values)

    def episode(self, number: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str:
        """Render an episode of run number `number`, from its turn `start` (from 0) on; raises DataError."""
        neighbour_rows = neighbours(self.runs[number], where, row)
        previous, following = (other and self.links.episode(number, other, where) for other in neighbour_rows)
        rollouts = self.runs[number].rollouts(row)
        values: dict[str, Any] = {
            "shown": self.shown(number, row, start),
            "before": previous,
            "after": following,
            "up": self.links.listing(number, where, page_start(self.runs[number], where, row)),
            "others": [other for other in rollouts if other.number != row.number][:MOST_ROLLOUTS],
            "has_json": True,
        }
        return self._render("episode.html.j2", _title(row), number, where=where, **values)

    def listing_file(self, number: int, where: EpisodeFilter, *, hidden: bool) -> str:
        """Return the matching episodes of a run, at most MOST_IN_FILE, as one HTML file; raises as `find`
        does."""
        page = find(self.runs[number], where, most=MOST_IN_FILE, hidden=hidden)
        return one_file(self.runs, [(number, page)], where, hidden=hidden)

    def episode_file(self, number: int, row: EpisodeLocation, *, hidden: bool) -> str:
        """Return an episode as one HTML file; raises DataError."""
        single_row = self.runs[number].rows(row.part)[row.number : row.number + 1]
        page = SearchPage(single_row, 0, 1, False, len(self.runs[number].every()), single_row)
        return one_file(self.runs, [(number, page)], EpisodeFilter(), hidden=hidden)

    def overview(self, query: RunsQuery) -> str:
        """Render a table of the runs with their figures; a damaged run is a row with its fault.

        Raises UsageError for a column that no run has, DataError where a picked training cannot be read.
        """
        table = RunsTable(run_rows(self.runs), query)
        values: dict[str, Any] = {"table": table, "query": query, "curves": picked_curves(table, self.runs)}
        return self._render("overview.html.j2", "Runs", None, "Runs", is_live=True, **values)

    def add_new(self) -> None:
        """Open runs that have begun in the folders since the last call; other runs keep their index."""
        with self._adding:
            known_paths = {run.folder.path for run in self.runs}
            new_paths = [
                path for folder in self._folders for path in runs_in(folder) if path not in known_paths
            ]
            self.runs += [open_run(path) for path in new_paths if (path / INFO).exists()]

    def compare(self, query: ComparisonQuery) -> str:
        """Render a comparison of runs with the oldest of them; raises as `compare` does."""
        sides, number_of = self._sides(query)
        files = {side.name: side.results.file.path.stem for side in sides if side.results}
        links = _ComparisonLinks(self, {name: (number_of[name], file) for name, file in files.items()})
        address = f"{self.links.to('compare')}?"
        switch_url = "" if query.steps else address + query._replace(best=not query.best).url
        bar = self._bar(None, "Compare", f"{address}{query.url}&file=yes")
        return comparison_page(compare(sides, FLIPS_OF_PAGE), links, bar, switch_url, best=query.best)

    def comparison_file(self, query: ComparisonQuery) -> str:
        """Return a comparison as one HTML file, without links into the viewer; raises as `compare` does."""
        return comparison_page(compare(self._sides(query)[0], FLIPS_OF_PAGE), best=query.best)

    def _sides(self, query: ComparisonQuery) -> tuple[list[Side], dict[str, int]]:
        """Return the sides of a comparison, and the number of each side's run by the side's name."""
        names = run_names(self.runs)
        start_times = {number: self.runs[number].info.started or _EVER for number in query.picked}
        numbers = sorted(start_times, key=lambda number: (start_times[number], number))
        if query.steps:
            sides = read_steps(names[numbers[0]], self.runs[numbers[0]].folder.path, query.steps)
            return sides, {side.name: numbers[0] for side in sides}
        folders = [self.runs[number].folder.path for number in numbers]
        sides = [
            read_side(names[n], folder, best=query.best) for n, folder in zip(numbers, folders, strict=True)
        ]
        return sides, {names[number]: number for number in numbers}

    def elsewhere(self, number: int, row: EpisodeLocation) -> str:
        """Render the list of other runs and steps that have the task of an episode."""
        other_rows = elsewhere(self.runs, number, row)
        return self._render("elsewhere.html.j2", _title(row), number, row=row, others=other_rows)

    def beside(self, *sides: tuple[int, EpisodeLocation]) -> str:
        """Render two episodes in columns, with turns of the same role side by side.

        Args:
            sides: (number of the run, location) of both episodes.

        Raises:
            DataError: A file of episodes cannot be read.
        """
        names = run_names(self.runs)
        shown_pages = [self.shown(number, row) for number, row in sides]
        longest_line = max((view.line for view in shown_pages), key=lambda line: line.length)
        columns = [
            EpisodeColumn(number, names[number], self.runs[number], view.to_scale_of(longest_line))
            for (number, _), view in zip(sides, shown_pages, strict=True)
        ]
        left, right = ({card.turn.node: card for card in column.shown.cards} for column in columns)
        turn_pairs = [TurnPair((left.get(node), right.get(node))) for node in {**left, **right}]
        tasks = [column.shown.episode.task for column in columns]
        title = ", ".join(_title(row) for _, row in sides)
        values: dict[str, Any] = {"columns": columns, "pairs": turn_pairs, "other_rows": tasks[0] != tasks[1]}
        return self._render("beside.html.j2", title, sides[0][0], **values)

    def report(self, number: int, *, as_file: bool = False) -> str:
        """Render the report of a training; raises UsageError for a run.

        Args:
            number: Number of the run.
            as_file: True to leave out the links into the viewer.
        """
        run = read_run(self.runs[number].folder.path)
        digest = read_digest(run.folder, run.info.trained_roles, self.runs[number].rule)
        if as_file:
            return report_page(run, digest)
        episodes = self.links.listing(number, EpisodeFilter())
        file = f"{self.links.to(number, 'report')}?file=yes"
        bar = self._bar(number, "Report", file)
        return report_page(run, digest, episodes, bar, partial(self.turn, number))

    def turn(self, number: int, credit: CreditRow) -> str:
        """Return the URL of the card of a training's turn; empty where its episode is gone. Raises
        DataError."""
        run, step = self.runs[number], credit.step
        part = RunPart(run.folder.episodes_file("train", step), "train", step)
        for row in run.located(part, credit.task, credit.rollout):
            page, _, _ = (self.links.episode(number, row, EpisodeFilter()) or "").partition("#")
            return f"{page}#{turn_anchor(anchor_of(number, row), credit.node)}"
        return ""

    def error(self, message: str) -> str:
        """Render a page with an error message, and return its HTML."""
        return self._render("error.html.j2", "Not shown", None, message=message)

    def static(self, chosen: Sequence[tuple[int, SearchPage]], where: EpisodeFilter) -> str:
        """Render one self-contained page with the lists and episodes of several runs."""
        title = ", ".join(dict.fromkeys(self.runs[number].info.name for number, _ in chosen))
        values: dict[str, Any] = {
            "parts_of": chosen,
            "figures_of": row_figures,
            "groups_of": self._groups,
            "shown_of": self.shown,
        }
        return self._render("static.html.j2", title, None, where=where, **values)

    def shown(self, number: int, row: EpisodeLocation, start: int = 0) -> EpisodePage:
        """Return the content of an episode's page, from turn number `start` (from 0) on; raises DataError."""
        run = self.runs[number]
        return episode_page(run, row, anchor_of(number, row), start, hidden=self.hidden)

    def _groups(self, number: int, page: SearchPage, text: str) -> list[TaskRows]:
        run = self.runs[number]
        return task_rows(run, page, partial(self._public, run), text)

    def _public(self, run: ViewedRun, episode: Episode) -> Episode:
        return episode if self.hidden else run.without_hidden(episode)

    def _bar(self, number: int | None, current: str = "", file: str = "") -> Markup:
        """Return the navigation links at the top of every page.

        Args:
            number: Number of the page's run; None for a page of no run, or of several.
            current: Text of the current page's link: `Runs`, `Episodes`, `Report` or `Compare`.
            file: URL to get the page as one file; empty where there is no such file.
        """
        link_to = self.links.to
        entries = [("Rolegraph", ""), ("Runs", link_to() or "")]
        if number is not None:
            run = self.runs[number]
            entries.append((f"{run_names(self.runs)[number]}:", ""))
            entries.append(("Episodes", self.links.listing(number, EpisodeFilter())))
            if not run.fault and run.info.kind == "train":
                entries.append(("Report", link_to(number, "report") or ""))
        entries.append(("Compare", f"{link_to('compare')}{'' if number is None else f'?pick={number}'}"))
        return top_bar([*entries, *([("Download", file)] if file else ())], current)

    def _render(self, template: str, title: str, number: int | None, current: str = "", **values: Any) -> str:
        values = {
            "where": EpisodeFilter(),
            "links": self.links,
            "hidden": self.hidden,
            "is_live": False,
            "has_json": False,
            **values,
        }
        page_script = self._episode_script if values["has_json"] else self._script
        code, code_hash = self._live_script if values["is_live"] else page_script
        return render(
            HERE / template,
            HERE / "view.css",
            title=title,
            number=number,
            run=None if number is None else self.runs[number],
            runs=self.runs,
            bar=self._bar(number, current) if self.links.to() else file_bar(self.links.home, self.links.up),
            script=code,
            script_hash=code_hash,
            texts=texts,
            drawing=timeline,
            anchor=anchor_of,
            page=PAGE,
            any=ANY,
            **values,
        )


class _ComparisonLinks:
    """URLs of the episodes of compared runs.

    Args:
        pages: Pages of the viewer.
        sides: (number of the run, name of its file of episodes) by the name of the side.
    """

    def __init__(self, pages: Pages, sides: Mapping[str, tuple[int, str]]) -> None:
        self._pages, self._sides = pages, sides

    def task(self, side: str, task: str) -> str:
        return self._listing(side, EpisodeFilter(task=task))

    def failures(self, side: str, role: str) -> str:
        return self._listing(side, EpisodeFilter(role=role, failure=ANY))

    def episode(self, side: str, task: str, rollout: int) -> str:
        return (
            self._pages.links.episode(self._sides[side][0], self._row(side, task, rollout), EpisodeFilter())
            or ""
        )

    def beside(self, sides: Sequence[str], task: str, rollouts: Sequence[int]) -> str:
        url_parts: list[object] = []
        for side, rollout in zip(sides, rollouts, strict=True):
            row = self._row(side, task, rollout)
            url_parts += ["beside"] * bool(url_parts) + [self._sides[side][0], row.part.name, row.number]
        return self._pages.links.to(*url_parts) or ""

    def _listing(self, side: str, where: EpisodeFilter) -> str:
        number, file = self._sides[side]
        part = self._pages.runs[number].folder.part(file)
        part_filter = replace(where, split=part.split, step=part.step) if part.split else where
        return self._pages.links.listing(number, part_filter)

    def _row(self, side: str, task: str, rollout: int) -> EpisodeLocation:
        number, file = self._sides[side]
        run = self._pages.runs[number]
        rows = run.rows(run.folder.part(file)).of_task(task)
        return next(row for row in rows if row.entry.rollout == rollout)


def _title(row: EpisodeLocation) -> str:
    return f"{row.entry.task}:{row.entry.rollout}"


def _failures(run: ViewedRun) -> list[tuple[str, int]]:
    """Return the name and number of each failure in a run's episodes, the most frequent first."""
    counts: Counter[str] = Counter()
    for entry, episode_count in run.every().counted():
        for role in entry.roles.values():
            counts.update({name: episode_count * count for name, count in role.failures.items()})
    return counts.most_common()


class WrittenEpisodes(NamedTuple):
    """Numbers of episodes in a file that was written, and left out of it."""

    episodes: int
    """Number of episodes in the file."""
    left_out: int | None
    """Number of matching episodes beyond the largest number; None if a text search stopped early."""


def write_static(
    runs: Sequence[ViewedRun],
    file: Path,
    *,
    hidden: bool,
    where: EpisodeFilter,
    most: int = MOST_IN_FILE,
    links: PageLinks | None = None,
) -> WrittenEpisodes:
    """Write the matching episodes of runs to one HTML file.

    Args:
        runs: Runs to show.
        file: Path of the file.
        hidden: True to show hidden task fields.
        where: Filter of the episodes.
        most: Largest number of episodes of each run.
        links: URLs of the report and the site that the file belongs to; None for a file by itself.

    Returns:
        The number of episodes in the file, and of those that were left out.

    Raises:
        DataError: A run cannot be read.
        WorldError: The file cannot be written.
    """
    readable_runs = [(number, run) for number, run in enumerate(runs) if len(runs) == 1 or not run.fault]
    found_pages = [(number, find(run, where, most=most, hidden=hidden)) for number, run in readable_runs]
    page = one_file(runs, found_pages, where, hidden=hidden, links=links)
    write_output(file, page.encode("utf-8", "replace"), "html")
    left_out_counts = [None if page.total is None else page.total - len(page.rows) for _, page in found_pages]
    left_out = None if None in left_out_counts else sum(filter(None, left_out_counts))
    return WrittenEpisodes(sum(len(page.rows) for _, page in found_pages), left_out)


class _StepLinks(PageLinks):
    """URLs of the pages of `write_report_pages`."""

    def episode(self, run: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str:
        return f"step-{row.part.step}.html"


def write_report_pages(folder: Path, out: Path, home: str = "") -> Path:
    """Write a training's report as `index.html`, and beside it `step-N.html`, the episodes that it links to.

    A step's page has all of its episodes, up to MOST_IN_FILE; of a larger step those on the turn's task.

    Args:
        folder: Folder of the training.
        out: Folder of the pages, which may exist.
        home: URL of the site that the pages are part of; empty without one.

    Returns:
        The path of the report.

    Raises:
        UsageError: The folder holds no training.
        DataError: A file of the training cannot be read.
        WorldError: A page cannot be written.
    """
    record, run = read_run(folder), open_run(folder)
    digest = read_digest(folder, record.info.trained_roles, run.rule)
    pages = Pages([run], _StepLinks(), hidden=False)
    report = report_page(record, digest, bar=file_bar(home), turn_url=partial(pages.turn, 0))
    file = out / "index.html"
    with os_errors_as(WorldError, f"cannot write {out}"):
        out.mkdir(parents=True, exist_ok=True)
    write_output(file, report.encode("utf-8", "replace"), "html")
    for credit in [point.turn.credit for point in turning_points(record, digest) if point.turn]:
        where = EpisodeFilter(split="train", step=credit.step)
        if len(where.matching(run.every())) > MOST_IN_FILE:
            where = replace(where, task=credit.task)
        step = out / f"step-{credit.step}.html"
        links = PageLinks()
        links.home, links.up = home, f"{file.name}#turning"
        write_static([run], step, hidden=False, where=where, most=sys.maxsize, links=links)
    return file


def one_file(
    runs: Sequence[ViewedRun],
    chosen: Sequence[tuple[int, SearchPage]],
    where: EpisodeFilter,
    *,
    hidden: bool,
    links: PageLinks | None = None,
) -> str:
    """Return one self-contained page with episodes of runs; raises DataError where a run cannot be read.

    Args:
        runs: All runs.
        chosen: (number, episodes) of each run that is shown.
        where: Filter that chose the episodes.
        hidden: True to show hidden task fields.
        links: As for `write_static`.
    """
    links = links or PageLinks()
    links.anchors = {anchor_of(number, row) for number, matches in chosen for row in matches.rows}
    return Pages(runs, links, hidden=hidden).static(chosen, where)
