"""Metrics: a number for each episode, from the trajectories of one role or from its loops."""

from __future__ import annotations

from collections.abc import Sequence

from rolegraph.engine.records import Episode, TerminationReason, Trajectory
from rolegraph.engine.vocabulary import Metric, role_metric

_WRONG, _UNKNOWN, _RIGHT = range(3)
"""Verdicts on a trajectory; with several, the least of them is that on all, and the largest that on any."""


def _verdict(trajectory: Trajectory) -> int:
    return _UNKNOWN if trajectory.failed_by == "reward" else _RIGHT if trajectory.is_correct else _WRONG


def _known(verdict: int) -> float | None:
    return None if verdict == _UNKNOWN else float(verdict == _RIGHT)


def mean_reward(role: str, /) -> Metric:
    """Measure the mean reward of a role's instances.

    role: the role that is measured
    """
    return role_metric(
        lambda trajectories: sum(t.reward or 0.0 for t in trajectories) / max(1, len(trajectories)), role
    )


def correct(role: str, /) -> Metric:
    """Measure 1 when every instance of the role is right, else 0.

    An episode that a failed reward decides is not measured.

    role: the role that is measured
    """
    return role_metric(lambda each: _known(min(map(_verdict, each), default=_WRONG)), role, unjudged=True)


def any_correct(role: str, /) -> Metric:
    """Measure 1 when an instance of the role is right, else 0: pass@count.

    An episode that a failed reward decides is not measured.

    role: the role that is measured
    """
    return role_metric(lambda each: _known(max(map(_verdict, each), default=_WRONG)), role, unjudged=True)


def term(role: str, /, *, name: str) -> Metric:
    """Measure the mean of one named term of the role's reward.

    role: the role that is measured
    name: the term's name in the role's `weighted` reward
    """

    def mean(trajectories: Sequence[Trajectory]) -> float | None:
        # A failed turn earned nothing of the term; a turn without a rating has no such term.
        scores = [t.terms.get(name, 0.0) for t in trajectories if name in t.terms or t.failure is not None]
        return None if trajectories and not scores else sum(scores) / max(1, len(scores))

    return role_metric(mean, role, term=name)


def rounds(loop: str, /) -> Metric:
    """Count the rounds of a loop, on the branch with the most rounds.

    loop: the loop that is measured
    """

    def measure(episode: Episode) -> float | None:
        count = episode.metadata.get("rounds", {}).get(loop)
        return None if count is None else float(count)

    return Metric(measure, loop=loop)


def skipped(role: str, /) -> Metric:
    """Measure the share of a role's turns that were skipped: by its condition, or because its loop was over.

    role: the role that is measured
    """

    def measure(episode: Episode) -> float | None:
        if episode.termination_reason is not TerminationReason.ENV_DONE:
            return None
        return episode.metadata.get("skipped", {}).get(role, 0.0)

    return Metric(measure, role)
