"""Episodes of a run by outcome, as parts of a bar and as links to the episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from rolegraph.pages.view.finding import ANY, EpisodeFilter
from rolegraph.pages.view.runs import EpisodeCounts
from rolegraph.pages.view.texts import words

MOST_FAILURES = 1
"""Number of a run's most frequent failures that the table names."""


class OutcomeLink(NamedTuple):
    """Number of a run's episodes with an outcome or a failure, and the filter that lists them."""

    text: str
    style: str
    """CSS class of the outcome's colour."""
    n: int
    where: EpisodeFilter
    among: bool = False
    """True if these episodes are part of the previous link's episodes."""


@dataclass(frozen=True, slots=True)
class RunOutcomes:
    """Episodes by outcome: all episodes of a run, or the episodes of a training's headline figure."""

    counts: EpisodeCounts
    where: EpisodeFilter
    """Filter that lists the episodes."""
    can_be_correct: bool

    @property
    def links(self) -> list[OutcomeLink]:
        """Links to the right, the wrong and the failed episodes; a wrong episode with a failure is in both of
        the latter."""
        counts, where = self.counts, self.where
        judged_links = [
            OutcomeLink("right", "good", counts.right, replace(where, correct="yes")),
            OutcomeLink("wrong", "hard", counts.wrong, replace(where, correct="no")),
        ]
        is_part_of_wrong = self.can_be_correct and counts.failed == counts.wrong_by_failure
        failed = OutcomeLink("failed", "failed", counts.failed, replace(where, failure=ANY), is_part_of_wrong)
        return [*(judged_links if self.can_be_correct else ()), *((failed,) if failed.n else ())]

    @property
    def bar(self) -> list[OutcomeLink]:
        """Parts of a bar, which add up to all episodes: a wrong episode with a failure counts as failed."""
        counts, where = self.counts, self.where
        if not self.can_be_correct:
            unjudged_count = counts.right + counts.wrong + counts.undecided - counts.failed
            parts = [
                OutcomeLink("without a failure", "rest", unjudged_count, where),
                OutcomeLink("failed", "failed", counts.failed, replace(where, failure=ANY)),
            ]
        else:
            wrong = replace(where, correct="no")
            parts = [
                OutcomeLink("right", "good", counts.right, replace(where, correct="yes")),
                OutcomeLink("wrong without a failure", "hard", counts.wrong - counts.wrong_by_failure, wrong),
                OutcomeLink("failed", "failed", counts.wrong_by_failure, replace(wrong, failure=ANY)),
                OutcomeLink("not decided", "rest", counts.undecided, where),
            ]
        return [part for part in parts if part.n]

    @property
    def failures(self) -> list[OutcomeLink]:
        """The most frequent failures of roles, at most MOST_FAILURES."""
        return [
            OutcomeLink(f"{role}: {words(name)}", "failed", n, replace(self.where, role=role, failure=name))
            for (role, name), n in self.counts.failures.most_common(MOST_FAILURES)
        ]
