"""Result of an optimization of prompts, as a record and as a page that opens offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from rolegraph.engine.records.numbers import number
from rolegraph.engine.records.plain import text_difference
from rolegraph.engine.records.schema import Figure
from rolegraph.pages.report import html

_HERE = Path(__file__).parent


class Candidate(BaseModel):
    """Templates that an optimization scored on every validation task."""

    model_config = ConfigDict(frozen=True)

    templates: dict[str, str]
    """Text of each template, by role and part: `solver.prompt`."""
    parents: tuple[int, ...]
    """Numbers of the candidates that this one was made from; empty for the spec's own templates."""
    scores: dict[str, Figure]
    """Mean score over the rollouts of each validation task, by the task's id."""
    figures: dict[str, Figure]
    """Means over the validation tasks: `correct`, the spec's metrics and `reward/{role}`."""
    best_on: tuple[str, ...]
    """Ids of the tasks on which no other candidate has a higher score."""
    folder: str
    """Folder of the candidate's run on the validation tasks, relative to the optimization's folder."""

    @property
    def score(self) -> float:
        """Mean score over the validation tasks."""
        return sum(self.scores.values()) / len(self.scores)

    def dominates(self, other: Candidate) -> bool:
        """Return True if no score is lower than the other candidate's, and at least one is higher."""
        pairs = [(score, other.scores[task]) for task, score in self.scores.items()]
        return all(score >= rival for score, rival in pairs) and any(score > rival for score, rival in pairs)

    def changes(self, parent: Candidate) -> dict[str, list[str]]:
        """Return the unified diff, from a parent's text to this candidate's, of each template that
        differs."""
        text_pairs = {name: (parent.templates[name], text) for name, text in self.templates.items()}
        return {
            name: text_difference(old_text, new_text, "", "").splitlines()[2:]
            for name, (old_text, new_text) in text_pairs.items()
            if old_text != new_text
        }


class RefusedTemplate(NamedTuple):
    """Template for which a model proposed a text that does not compile, with the compiler's faults."""

    template: str
    """Role and part: `solver.prompt`."""
    reason: str
    """Faults that the compiler found."""


class OptimizationRecord(BaseModel):
    """`result.json`: the candidates of a finished optimization."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the spec."""
    score: str
    """Name of the score: `correct`, `mean reward`, a metric of the spec, or `reward/ROLE`."""
    budget: int
    """Largest number of episodes."""
    episodes: int
    """Number of episodes that were made."""
    reflections: int
    """Number of answers of the reflecting model."""
    refused: tuple[RefusedTemplate, ...]
    candidates: tuple[Candidate, ...]
    """Candidates in the order in which they were found; the first has the spec's own templates."""

    @property
    def best(self) -> int:
        """Number of the candidate with the highest mean score; the earliest if several are equal."""
        scores = [candidate.score for candidate in self.candidates]
        return scores.index(max(scores))

    @property
    def front(self) -> list[int]:
        """Numbers of the candidates that no other candidate dominates: the Pareto front over the tasks."""
        pool = self.candidates
        return [index for index, one in enumerate(pool) if not any(other.dominates(one) for other in pool)]


def optimization_page(record: OptimizationRecord) -> str:
    """Return the HTML of an optimization: its Pareto front, scores by task, and changes of templates."""
    original = record.candidates[0]

    def change(candidate: Candidate) -> Mapping[str, list[str]]:
        parent = record.candidates[candidate.parents[0]] if candidate.parents else candidate
        return candidate.changes(parent)

    return html.render(
        _HERE / "optimization.html.j2",
        record=record,
        best=record.best,
        tasks=[*original.scores],
        figures=[name for name in original.figures if name != record.score],
        front=record.front,
        change=change,
        number=number,
    )
