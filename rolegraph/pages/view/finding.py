"""Search for episodes: the filter, its form in a URL, and the matching rows, a page at a time.

The index alone decides every field but `text` and `where`. For a text, the bytes of the files are searched
first, and only lines that contain it are parsed; for an expression, each episode is parsed. Both searches
stop after `MOST_FOUND` episodes.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby, islice
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import numpy as np

from rolegraph.api.recorded import episode_test, most_instances
from rolegraph.engine.errors import DataError, UsageError, os_errors_as
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import IndexEntry, RoleIndexEntry
from rolegraph.engine.records.folder import SPLITS, RunPart
from rolegraph.pages.report.digest import instance
from rolegraph.pages.view.rows import EpisodeLocation, EpisodeRows
from rolegraph.pages.view.runs import ViewedRun, run_names

PAGE = 50
"""Number of episodes on a page."""
MOST_FOUND = 2_000
"""Number of matching episodes after which a text search stops; counts and means then cover only these."""
MOST_STEPS = 20
"""Largest number of a training's steps that are listed for a task."""
ANY = "any"
"""Value of `failure` that matches every failure."""


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Filter of episodes; empty fields match everything. With `role`, rewards and failures are those of the
    role."""

    role: str = ""
    failure: str = ""
    """Name of a failure, or `any`."""
    correct: str = ""
    """`yes` or `no`; neither matches an episode whose correctness is not decided."""
    low: float | None = None
    """Lower bound of a reward."""
    high: float | None = None
    """Upper bound of a reward."""
    task: str = ""
    """Part of the task's id."""
    text: str = ""
    """Text of the task without its id, of a prompt, response, thought or failure; case is ignored."""
    where: str = ""
    """Expression of the language that is true for the episode, such as `not judge.right`."""
    split: str = ""
    step: int | None = None
    sort: str = ""
    """`low` or `high` for the lowest or highest mean reward first, `task` for the order of the tasks' ids, in
    which t2 is before t10; empty for the order of writing, newest step first."""

    @classmethod
    def of(cls, written: Mapping[str, str]) -> EpisodeFilter:
        """Parse the query of a URL; raises UsageError for an invalid value."""
        values: dict[str, Any] = {name: value.strip() for name, value in written.items() if name in FIELDS}
        for name, value in values.items():
            if value and (number := _NUMBERS.get(name)):
                try:
                    values[name] = number(value)
                    if not math.isfinite(values[name]):
                        raise ValueError
                except (ValueError, OverflowError):
                    raise UsageError(f"{name} is {value!r}; expected a number, such as 0.5") from None
            elif value and value not in _CHOICES.get(name, (value,)):
                raise UsageError(f"{name} is {value!r}; expected {' or '.join(_CHOICES[name])}")
        return cls(**{name: value for name, value in values.items() if value != ""})

    @property
    def query(self) -> str:
        """Query of a URL, such as `role=solver&failure=any`; empty for a filter that matches everything."""
        fields_ = {name: value for name, value in asdict(self).items() if value not in ("", None)}
        return urlencode(
            {name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in fields_.items()},
            errors="replace",
        )

    @property
    def filters(self) -> bool:
        """True if the filter restricts the episodes: any field but `sort` is set."""
        return replace(self, sort="") != EpisodeFilter()

    def matching(self, rows: EpisodeRows) -> EpisodeRows:
        """Return the rows that match every field but `text` and `where`, which need only the index."""
        if not replace(self, text="", where="").filters:
            return rows
        parts = np.array([self._fits_part(part) for part in rows.parts], np.bool_)
        tasks = np.array([self.task in task for task in rows.numbers.tasks], np.bool_)
        outcomes = np.array([self._fits_outcome(entry) for entry in rows.numbers.outcomes], np.bool_)
        return rows.take(parts[rows.files] & tasks[rows.tasks] & outcomes[rows.outcomes])

    def _fits_part(self, part: RunPart) -> bool:
        return (not self.split or part.split == self.split) and (self.step is None or part.step == self.step)

    def _fits_outcome(self, entry: IndexEntry) -> bool:
        return (
            (not self.correct or (not entry.undecided and entry.is_correct == (self.correct == "yes")))
            and (not self.role or self.role in entry.roles)
            and (not self.failure or any(map(self._failed, self._roles(entry))))
            and (
                (self.low is None and self.high is None)
                or any(self.takes(reward) for role in self._roles(entry) for reward in role.rewards)
            )
        )

    def _roles(self, entry: IndexEntry) -> list[RoleIndexEntry]:
        return [role for name, role in entry.roles.items() if self.role in ("", name)]

    def _failed(self, role: RoleIndexEntry) -> bool:
        return bool(role.failures) if self.failure == ANY else self.failure in role.failures

    def takes(self, reward: float | None) -> bool:
        """Return True if a reward is within `low` and `high`; for None, True if neither bound is set."""
        if reward is None:
            return self.low is None and self.high is None
        return (self.low is None or reward >= self.low) and (self.high is None or reward <= self.high)

    def measure(self, entry: IndexEntry) -> float:
        """Return the value to sort an episode by: the mean reward of the filtered role, or of all roles; -inf
        without a reward."""
        rewards = [reward for role in self._roles(entry) for reward in role.rewards]
        return sum(rewards) / len(rewards) if rewards else -math.inf


FIELDS = tuple(field.name for field in fields(EpisodeFilter))
"""Names of the filter's fields."""
_NUMBERS: Mapping[str, type[float] | type[int]] = {"low": float, "high": float, "step": int}
_CHOICES: Mapping[str, Sequence[str]] = {
    "correct": ("yes", "no"),
    "sort": ("task", "low", "high"),
    "split": SPLITS,
}


class SearchPage(NamedTuple):
    """One page of the viewer's list of matching episodes."""

    rows: Sequence[EpisodeLocation]
    start: int
    """Number of matching episodes before the page."""
    total: int | None
    """Number of matching episodes; None if a text search stopped early."""
    more: bool
    """True if more matching episodes follow."""
    episodes: int
    """Number of episodes of the run."""
    matching: EpisodeRows
    """All matching episodes; if a text search stopped early, those found so far."""

    @property
    def summary(self) -> str:
        """Text with the number of matching episodes."""
        if self.total is None:
            return f"more than {len(self.matching):,} of {self.episodes:,} episodes"
        total_note = f" of {self.episodes:,}" if self.total != self.episodes else ""
        return f"{self.total:,}{total_note} episodes"


def find(
    run: ViewedRun, where: EpisodeFilter, start: int = 0, most: int = PAGE, *, hidden: bool = True
) -> SearchPage:
    """Return a page of matching episodes.

    Args:
        run: Run to search.
        where: Filter.
        start: Number of matching episodes to skip; if there are not so many, the last page is returned.
        most: Largest number of episodes on the page.
        hidden: True to search texts that may quote hidden fields as well; matches would reveal them.

    Raises:
        DataError: A file cannot be read.
    """
    all_rows = run.every()
    fitting = _in_order(where.matching(all_rows), where)
    if not where.text and not where.where:
        start = _within(start, len(fitting), most)
        rows = fitting[start : start + most]
        return SearchPage(rows, start, len(fitting), start + len(rows) < len(fitting), len(all_rows), fitting)
    last_row = max(start + most, MOST_FOUND)
    matching = fitting.only(islice(_read(run, fitting, where, hidden=hidden), min(last_row + 1, sys.maxsize)))
    start = _within(start, len(matching), most)
    total, rows = len(matching) if len(matching) <= last_row else None, matching[start : start + most]
    return SearchPage(rows, start, total, start + most < len(matching), len(all_rows), matching[:last_row])


def _within(start: int, total: int, most: int) -> int:
    """Return `start` if it is below `total`, else the first row of the last page of `most` rows."""
    return start if start < total else max(total - 1, 0) // most * most


def _in_order(rows: EpisodeRows, where: EpisodeFilter) -> EpisodeRows:
    if where.sort in ("low", "high"):
        measures = np.array([where.measure(entry) for entry in rows.numbers.outcomes])[rows.outcomes]
        return rows.take(np.argsort(measures if where.sort == "low" else -measures, kind="stable"))
    if where.sort == "task":
        ids = rows.numbers.tasks
        ranks = np.empty(len(ids), np.int64)
        ranks[sorted(range(len(ids)), key=lambda number: _natural(ids[number]))] = np.arange(len(ids))
        rows = rows.take(np.lexsort((rows.rollouts, ranks[rows.tasks])))
    return rows.by_task()


def page_start(run: ViewedRun, where: EpisodeFilter, row: EpisodeLocation) -> int:
    """Return the number of matching episodes before the list's page that has a row; 0 if no page has it."""
    position = find(run, where).matching.position(row) or 0
    return position - position % PAGE


def _natural(task: str) -> list[tuple[int, str]]:
    """Return a sort key for a task's id in which numbers are compared by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", task)]


def by_task(rows: Iterable[EpisodeLocation]) -> dict[tuple[str, str], list[EpisodeLocation]]:
    """Group rows by (file, task), in the order in which each first occurs."""
    groups: dict[tuple[str, str], list[EpisodeLocation]] = {}
    for row in rows:
        groups.setdefault((row.part.name, row.entry.task), []).append(row)
    return groups


def neighbours(
    run: ViewedRun, where: EpisodeFilter, row: EpisodeLocation
) -> tuple[EpisodeLocation | None, EpisodeLocation | None]:
    """Return the previous and the next row in the list of matching episodes; None at either end, and for a
    row not in the list."""
    rows = find(run, replace(where, text="", where="")).matching
    if (position := rows.position(row)) is None:
        return None, None
    rows_before, rows_after = rows[:position][::-1], rows[position + 1 :]
    return next(_read(run, rows_before, where), None), next(_read(run, rows_after, where), None)


class TaskElsewhere(NamedTuple):
    """Rollouts of a task in another run, or at another step of the same run."""

    number: int
    """Number of the run."""
    name: str
    """Name of the run."""
    rows: EpisodeRows


def elsewhere(runs: Sequence[ViewedRun], number: int, row: EpisodeLocation) -> list[TaskElsewhere]:
    """Return the other runs and steps that have the task of an episode, each run's newest MOST_STEPS steps.

    Args:
        runs: Runs to search; damaged ones are left out.
        number: Number of the episode's run.
        row: Location of the episode.
    """
    other_tasks: list[TaskElsewhere] = []
    for other, (name, run) in enumerate(zip(run_names(runs), runs, strict=True)):
        parts = [] if run.fault else [part for part in run.parts() if (other, part) != (number, row.part)]
        rows_of_task = (run.rows(part).of_task(row.entry.task) for part in parts)
        steps = (TaskElsewhere(other, name, rows) for rows in rows_of_task if rows)
        other_tasks += islice(steps, MOST_STEPS)
    return other_tasks


class EpisodeText(NamedTuple):
    """Text of an episode that a text filter searches."""

    place: str
    """Place of the text: `task`, or a role instance and its failure, answer, thought, action or messages."""
    text: str


def texts(episode: Episode) -> Iterator[EpisodeText]:
    """Yield all texts of an episode that a text filter searches: task, then each role instance."""
    fields = {name: value for name, value in episode.task.items() if name != "id"}
    yield from (EpisodeText("task", text) for text in _strings(fields))
    for it in episode.trajectories:
        name = instance(episode, it)
        values: list[tuple[str, object]] = [("failure", it.failure.message)] if it.failure is not None else []
        for step in it.steps:
            values += [("answer", step.model_response), ("thought", step.thought), ("action", step.action)]
        values += [("messages", step.chat_completions) for step in it.steps]
        for part, value in values:
            yield from (EpisodeText(f"{name}, {part}", text) for text in _strings(value))
    yield from (EpisodeText("failure", text) for text in _strings([*episode.failures.values()]))


class TextHit(NamedTuple):
    """First text of an episode that has the text of a filter, cut around it."""

    place: str
    """Place of the text, such as `solver 1, answer`."""
    pieces: Sequence[tuple[str, bool]]
    """Pieces of the cut text, each with True if it is the filter's text."""


def text_hit(among: Iterable[EpisodeText], wanted: str, around: int = 60) -> TextHit | None:
    """Return the first text that contains `wanted`, ignoring case; None if no text does.

    Args:
        among: Texts to search.
        wanted: Text to find.
        around: Number of characters to keep at either side.
    """
    pattern = re.compile(re.escape(wanted), re.IGNORECASE)
    for place, text in among:
        if first_match := pattern.search(text):
            start, end = max(first_match.start() - around, 0), first_match.end() + around
            excerpt = ("… " if start else "") + text[start:end] + (" …" if len(text) > end else "")
            pieces = re.split(f"({pattern.pattern})", re.sub(r"\s+", " ", excerpt), flags=re.IGNORECASE)
            return TextHit(place, [(piece, bool(number % 2)) for number, piece in enumerate(pieces) if piece])
    return None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from _strings([*cast("Mapping[str, object]", value).values()])
    elif isinstance(value, Sequence):
        for item in cast("Sequence[object]", value):
            yield from _strings(item)


_KEY = re.compile(rb'"[a-z_]+":')
"""Pattern of a JSON key; quotes inside a text have backslashes."""


def _read(
    run: ViewedRun, rows: EpisodeRows, where: EpisodeFilter, *, hidden: bool = True
) -> Iterator[EpisodeLocation]:
    """Yield the rows whose episodes contain the filter's text and make its expression true.

    With `hidden`, texts that may quote hidden fields are searched as well.

    Raises:
        SpecError: The expression has a fault.
        UsageError: The expression cannot be computed for an episode.
    """
    rows_with_text = _with_text(run, rows, where.text, hidden=hidden)
    if not where.where:
        return rows_with_text

    def read(row: EpisodeLocation) -> Episode:
        return run.read(row) if hidden else run.without_hidden(run.read(row))

    test = episode_test(where.where, most_instances(rows.numbers.outcomes), map(read, rows))

    def holds(row: EpisodeLocation) -> bool:
        answers, offset = run.answers(row.part, f"{hidden} {where.where}"), row.entry.offset
        if offset not in answers:
            answers[offset] = test.holds(read(row), row.part.step)
        return answers[offset]

    return filter(holds, rows_with_text)


def _with_text(
    run: ViewedRun, rows: Iterable[EpisodeLocation], text: str, *, hidden: bool = True
) -> Iterator[EpisodeLocation]:
    """Yield the rows whose episodes contain a text, ignoring case; all rows for an empty text.

    With `hidden`, texts that may quote hidden fields are searched as well.
    """
    if not text:
        yield from rows
        return
    lower_text = text.lower()
    # As JSON writes it within its quotes.
    json_bytes = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace").lower()
    for part, part_rows in groupby(rows, key=lambda row: row.part):
        with os_errors_as(DataError, f"cannot read {part.path}"), part.path.open("rb") as file:
            for row in part_rows:
                file.seek(row.entry.offset)
                line = file.read(row.entry.length)
                if json_bytes not in line.lower() or json_bytes not in _KEY.sub(b"", line).lower():
                    continue
                episode = run.read(row)
                searched_episode = episode if hidden else run.without_hidden(episode)
                if any(lower_text in text_.text.lower() for text_ in texts(searched_episode)):
                    yield row
