"""Content of the list of episodes: rows by task, links that set the filter, and figures of the rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode
from rolegraph.engine.training.analysis.intervals import Interval, interval
from rolegraph.pages.report.digest import instance, plain_answer, question
from rolegraph.pages.view.finding import ANY, EpisodeFilter, SearchPage, by_task
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun, values_by_task
from rolegraph.pages.view.texts import Mark, ending, verdict, words

MOST_ANSWERS = 4
"""Number of instances of a role whose answers a row shows."""
_LAST_WORD = re.compile(r"[^\W_]*$")


class RoleAnswer(NamedTuple):
    """Last answer of a role instance, as a row shows it."""

    name: str
    """Name of the role, with the number of the instance where there are several."""
    text: str
    """Parsed answer, or the name of the failure."""
    mark: Mark | None


class EpisodeRow(NamedTuple):
    """Row of a list of episodes."""

    row: EpisodeLocation
    question: str
    """Question of the task, or its id where the episode is no longer readable."""
    answers: Mapping[str, Sequence[RoleAnswer]]
    """Answers of the first instances of each role."""


class TaskRows(NamedTuple):
    """Rollouts of a task that a list shows below one another."""

    rows: Sequence[EpisodeRow]
    """Rollouts that match the filter and are on the page."""
    every: Sequence[EpisodeLocation]
    """All rollouts of the task in the file."""
    id: str
    """The task's id, without the beginning that all ids on the page share."""

    @property
    def right(self) -> int:
        """Number of rollouts that are correct."""
        return sum(row.entry.is_correct for row in self.every)

    def rewards(self, roles: Iterable[str]) -> dict[str, float]:
        """Return the mean reward over all rollouts of each of these roles that has rewards."""
        of_roles = ((name, [row.entry.roles.get(name) for row in self.every]) for name in roles)
        pairs = ((name, [r for role in entries if role for r in role.rewards]) for name, entries in of_roles)
        return {name: sum(rewards) / len(rewards) for name, rewards in pairs if rewards}


def task_rows(run: ViewedRun, page: SearchPage, public: Callable[[Episode], Episode]) -> list[TaskRows]:
    """Return the rows of a search page grouped by task, each with the task's other rollouts.

    A task that is no longer readable is shown by its id.

    Args:
        run: Run of the episodes.
        page: Rows to show.
        public: Function that leaves out of an episode what may not be shown.
    """
    every = {part: by_task(run.rows(part)) for part in {row.part for row in page.rows}}
    groups = by_task(page.rows)
    shared = shared_start([task for _, task in groups])
    return [
        TaskRows([_row(run, row, public) for row in rows], every[rows[0].part][key], short_id(key[1], shared))
        for key, rows in groups.items()
    ]


def _row(run: ViewedRun, row: EpisodeLocation, public: Callable[[Episode], Episode]) -> EpisodeRow:
    try:
        episode = public(run.read(row))
    except DataError:
        return EpisodeRow(row, row.entry.task, {})
    answers: dict[str, list[RoleAnswer]] = {}
    for it in episode.trajectories:
        text = plain_answer(it.steps[-1].action) if it.steps else "no answer"
        text = words(it.failure.name.value) if it.failure is not None else text
        answer = RoleAnswer(instance(episode, it), text, verdict(it, failed=it.failure is not None))
        answers.setdefault(it.name, []).append(answer)
    first = {name: its[:MOST_ANSWERS] for name, its in answers.items()}
    return EpisodeRow(row, question(episode.task, row.entry.task), first)


def shared_start(ids: Sequence[str]) -> str:
    """Return the words that all of several ids begin with, such as `countdown-`; empty for one id."""
    first, last = min(ids, default=""), max(ids, default="")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return _LAST_WORD.sub("", "".join(one for one, _ in same)) if first != last else ""


def short_id(task: str, shared: str = "") -> str:
    """Return the end of a task's id, without the `shared` beginning."""
    return ending(task.removeprefix(shared) or task)


class Facet(NamedTuple):
    """Link that sets one field of the filter."""

    text: str
    style: str
    """CSS class of the link's sign."""
    episodes: int | None
    """Number of episodes that the link lists; None where a text is searched, which takes reading them."""
    where: EpisodeFilter
    current: bool


def facets(run: ViewedRun, where: EpisodeFilter) -> list[list[Facet]]:
    """Return links for the outcome of an episode and, for a training, for its split, each with its count."""
    links = [_outcomes(run, where)]
    return [*links, _splits(run, where)] if run.info.kind == "train" else links


def _outcomes(run: ViewedRun, where: EpisodeFilter) -> list[Facet]:
    anyhow = replace(where, correct="", failure="")
    # A pass for each link by `EpisodeFilter.fits` takes four times as long on a list of 10,000 episodes.
    entries = [row.entry for row in _matching(run, anyhow)]
    decided = [entry.is_correct for entry in entries if not entry.undecided]
    failed = sum(
        any(it.failures for name, it in entry.roles.items() if where.role in ("", name)) for entry in entries
    )
    choices = [
        ("all", "", len(entries), anyhow),
        ("wrong", "hard", decided.count(False), replace(anyhow, correct="no")),
        ("failed", "failed", failed, replace(anyhow, failure=ANY)),
        ("correct", "good", decided.count(True), replace(anyhow, correct="yes")),
    ]
    return _facets([choice for choice in choices if run.info.can_be_correct or not choice[3].correct], where)


def _splits(run: ViewedRun, where: EpisodeFilter) -> list[Facet]:
    anywhere = replace(where, split="", step=None)
    counts = Counter(row.part.split for row in _matching(run, anywhere))
    splits = [(split, "", n, replace(anywhere, split=split)) for split, n in counts.items()]
    return _facets([("all steps", "", counts.total(), anywhere), *splits], where)


def _matching(run: ViewedRun, where: EpisodeFilter) -> Sequence[EpisodeLocation]:
    every = [row for part in run.parts() for row in run.rows(part)]
    return [row for row in every if where.fits(row)] if where.filters else every


def _facets(choices: Iterable[tuple[str, str, int, EpisodeFilter]], where: EpisodeFilter) -> list[Facet]:
    return [Facet(text, style, None if where.text else n, it, it == where) for text, style, n, it in choices]


class RowFigures(NamedTuple):
    """Means of the listed episodes, each over their tasks."""

    label: str
    """Episodes that the means are of."""
    episodes: int
    tasks: int
    means: Mapping[str, Interval]
    """Figures with their intervals; the mean reward of a role as `reward/{role}`."""
    sampled: bool
    """True unless the episodes were chosen by their outcome, which leaves intervals without a meaning."""


def row_figures(run: ViewedRun, page: SearchPage, where: EpisodeFilter) -> RowFigures:
    """Return the means of all episodes that match the filter.

    Of a training whose every episode matches, that is a mixture of steps: then of its last validation, or
    else of its last batch.
    """
    rows = page.matching
    label = "These episodes" if page.total is not None else f"The first {len(rows):,} found"
    parts = run.parts() if run.info.kind == "train" and len(rows) == page.episodes else []
    if parts:
        part = next((part for part in parts if part.split == "validation"), parts[0])
        rows, label = run.rows(part), f"Last {part.split or 'run'}, step {part.step}"
    values = values_by_task(rows, run.info.figure_names)
    means = {name: interval(of) for name, of in values.items()}
    by_outcome = where.correct or where.failure or where.text or (where.low, where.high) != (None, None)
    tasks = len({row.entry.task for row in rows})
    return RowFigures(label, len(rows), tasks, means, sampled=not by_outcome)
