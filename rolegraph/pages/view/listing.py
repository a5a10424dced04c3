"""Content of the list of episodes: rows by task, links that set the filter, and figures of the rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode
from rolegraph.engine.records.folder import SPLITS
from rolegraph.engine.training.analysis.intervals import Interval, interval
from rolegraph.pages.report.digest import instance, plain_answer, question
from rolegraph.pages.view.finding import (
    ANY,
    EpisodeFilter,
    EpisodeText,
    SearchPage,
    TextHit,
    by_task,
    find,
    text_hit,
    texts,
)
from rolegraph.pages.view.rows import EpisodeLocation, EpisodeRows
from rolegraph.pages.view.runs import ViewedRun
from rolegraph.pages.view.texts import Mark, ending, verdict, words

MOST_ANSWERS = 4
"""Largest number of instances of a role whose answers a row shows."""
_LAST_WORD = re.compile(r"[^\W_]*$")


class RoleAnswer(NamedTuple):
    """Last answer of a role instance, as a row shows it."""

    name: str
    """Name of the role, with the number of the instance if there are several."""
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
    asked: TextHit | None = None
    """Place of the filter's text in the question."""
    hit: TextHit | None = None
    """Place of the filter's text outside of the question; None if the question contains it."""


class TaskRows(NamedTuple):
    """Rollouts of one task, which a list shows below one another."""

    rows: Sequence[EpisodeRow]
    """Rollouts that match the filter and are on the page."""
    every: EpisodeRows
    """All rollouts of the task in the episode file."""
    id: str
    """The task's id, without the beginning that all ids on the page share."""

    def rewards(self, roles: Iterable[str]) -> dict[str, float]:
        """Return the mean reward over all rollouts, for each of these roles with rewards."""
        counted_roles = [(entry.roles, n) for entry, n in self.every.counted()]
        rewards_by_role = {
            name: [(roles[name].rewards, n) for roles, n in counted_roles if name in roles] for name in roles
        }
        counts = {name: sum(n * len(rewards) for rewards, n in of) for name, of in rewards_by_role.items()}
        sums = {name: sum(n * sum(rewards) for rewards, n in of) for name, of in rewards_by_role.items()}
        return {name: sums[name] / n for name, n in counts.items() if n}


def task_rows(
    run: ViewedRun, page: SearchPage, public: Callable[[Episode], Episode], text: str = ""
) -> list[TaskRows]:
    """Return the rows of a search page grouped by task, each with the task's other rollouts.

    A task that is no longer readable is shown by its id.

    Args:
        run: Run of the episodes.
        page: Rows to show.
        public: Function that returns a copy of an episode without what may not be shown.
        text: Text of the filter, which is marked in the rows.
    """
    groups = by_task(page.rows)
    shared_prefix = shared_start([task for _, task in groups])
    return [
        TaskRows(
            [_row(run, row, public, text) for row in rows],
            run.rows(rows[0].part).of_task(task),
            short_id(task, shared_prefix),
        )
        for (_, task), rows in groups.items()
    ]


def _row(run: ViewedRun, row: EpisodeLocation, public: Callable[[Episode], Episode], text: str) -> EpisodeRow:
    try:
        episode = public(run.read(row))
    except DataError:
        return EpisodeRow(row, row.entry.task, {})
    answers: dict[str, list[RoleAnswer]] = {}
    for it in episode.trajectories:
        answer_text = plain_answer(it.steps[-1].action) if it.steps else "no answer"
        answer_text = words(it.failure.name.value) if it.failure is not None else answer_text
        answer = RoleAnswer(instance(episode, it), answer_text, verdict(it, failed=it.failure is not None))
        answers.setdefault(it.name, []).append(answer)
    first_answers = {name: role_answers[:MOST_ANSWERS] for name, role_answers in answers.items()}
    question_text = question(run.info.visible(episode.task), row.entry.task)
    question_hit = text_hit([EpisodeText("", question_text)], text, len(question_text)) if text else None
    text_elsewhere = text_hit(texts(episode), text) if text and question_hit is None else None
    return EpisodeRow(row, question_text, first_answers, question_hit, text_elsewhere)


def shared_start(ids: Sequence[str]) -> str:
    """Return the words that all of several ids begin with, such as `countdown-`; empty for one id."""
    first_id, last_id = min(ids, default=""), max(ids, default="")
    equal_pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first_id, last_id, strict=False))
    return _LAST_WORD.sub("", "".join(one for one, _ in equal_pairs)) if first_id != last_id else ""


def short_id(task: str, shared: str = "") -> str:
    """Return a task's id without the beginning `shared`."""
    return ending(task.removeprefix(shared) or task)


class Facet(NamedTuple):
    """Link that sets one field of the filter."""

    text: str
    style: str
    """CSS class of the link's sign."""
    episodes: int | None
    """Number of episodes that the link lists; None if a text search stopped early."""
    where: EpisodeFilter
    current: bool


def facets(
    run: ViewedRun, where: EpisodeFilter, page: SearchPage, *, hidden: bool = True
) -> list[list[Facet]]:
    """Return links that set the filter's outcome, and for a training its split, each with the number of
    episodes.

    Args:
        run: Run of the episodes.
        where: Filter of the list.
        page: Result of the filter.
        hidden: True to search texts that may quote hidden fields as well.

    Raises:
        DataError: A file cannot be read.
    """

    def matching(other: EpisodeFilter) -> tuple[EpisodeRows, bool]:
        result = page if other == where else find(run, other, most=0, hidden=hidden)
        return result.matching, result.total is not None

    any_outcome = replace(where, correct="", failure="")
    links = [_facets(_outcomes(run, any_outcome, *matching(any_outcome)), where)]
    if run.info.kind != "train":
        return links
    any_split = replace(where, split="", step=None)
    return [*links, _facets(_splits(any_split, *matching(any_split)), where)]


_Choice = tuple[str, str, int | None, EpisodeFilter]


def _outcomes(run: ViewedRun, anyhow: EpisodeFilter, rows: EpisodeRows, whole: bool) -> Iterator[_Choice]:
    counts = rows.counts(anyhow.role)
    kinds = {words(name) for _, name in counts.failures}
    failed_text = f"failed: {', '.join(sorted(kinds))}" if 0 < len(kinds) < 3 else "with a failure"
    choices = [
        ("all", "", counts.total, anyhow),
        ("correct", "good", counts.right, replace(anyhow, correct="yes")),
        ("wrong", "hard", counts.wrong, replace(anyhow, correct="no")),
        (failed_text, "failed", counts.failed, replace(anyhow, failure=ANY)),
    ]
    for text, style, count, filter_ in choices:
        if run.info.can_be_correct or not filter_.correct:
            yield text, style, count if whole else None, filter_


def _splits(anywhere: EpisodeFilter, rows: EpisodeRows, whole: bool) -> Iterator[_Choice]:
    counts = rows.splits()
    yield "all steps", "", counts.total() if whole else None, anywhere
    for split, count in counts.items():
        yield split, "", count if whole else None, replace(anywhere, split=split)


def _facets(choices: Iterable[_Choice], where: EpisodeFilter) -> list[Facet]:
    return [Facet(text, style, count, filter_, filter_ == where) for text, style, count, filter_ in choices]


class RowFigures(NamedTuple):
    """Means over the tasks of the listed episodes."""

    label: str
    """Description of the episodes in the means."""
    episodes: int
    tasks: int
    means: Mapping[str, Interval]
    """Figures with their intervals; `reward/{role}` is a role's mean reward. Figures that are equal in every
    episode of the run are one, with their names joined by ` = `."""
    sampled: bool
    """False if the episodes were chosen by their outcome, so that intervals have no meaning."""


def row_figures(run: ViewedRun, page: SearchPage, where: EpisodeFilter) -> RowFigures:
    """Return the means of the episodes that match the filter.

    In a training, the means are never over several splits: if all episodes match, they are of the last
    validation, or else the last batch; if several splits match, only of the validation, or else the batches.
    """
    rows = page.matching
    label = "These episodes" if page.total is not None else f"The first {len(rows):,} found"
    parts = run.parts() if run.info.kind == "train" and len(rows) == page.episodes else []
    splits = rows.splits()
    if parts:
        part = next((part for part in parts if part.split == "validation"), parts[0])
        rows, label = run.rows(part), f"Last {part.split or 'run'}, step {part.step}"
    elif len(splits) > 1:
        split = next(split for split in SPLITS if split in splits)
        rows = EpisodeFilter(split=split).matching(rows)
        label = f"{label}: {split}"
    values = rows.values(run.info.metric_names)
    is_by_outcome = where.correct or where.failure or (where.low, where.high) != (None, None)
    if is_by_outcome:
        label += ", chosen by outcome"
    # A filter by outcome settles figures such as `correct`, which say nothing then.
    means = {
        " = ".join(names): interval(values[names[0]])
        for names in run.equal_figures()
        if names[0] in values and (not is_by_outcome or len({*values[names[0]].values()}) > 1)
    }
    return RowFigures(label, len(rows), rows.task_count(), means, sampled=not is_by_outcome)
