"""Metrics: a number for each episode, from the trajectories of one role or from how its loops went."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rolegraph.engine.records import Episode, TerminationReason, Trajectory
from rolegraph.engine.vocabulary import Metric, role_metric


def mean_reward(role: str, /) -> Metric:
    """The mean reward of a role's instances.

    role: the role that is measured
    """
    return role_metric(_mean_reward, role)


def _mean_reward(trajectories: Sequence[Trajectory]) -> float:
    return sum([t.reward or 0.0 for t in trajectories]) / max(1, len(trajectories))


def correct(role: str, /) -> Metric:
    """1 when the role is right: every instance of it.

    role: the role that is measured
    """
    return role_metric(_all_correct, role)


def _all_correct(trajectories: Sequence[Trajectory]) -> float:
    return float(bool(trajectories) and all(t.is_correct for t in trajectories))


def any_correct(role: str, /) -> Metric:
    """1 when an instance of the role is right: pass@count.

    role: the role that is measured
    """
    return role_metric(_any_correct, role)


def _any_correct(trajectories: Sequence[Trajectory]) -> float:
    return float(any(t.is_correct for t in trajectories))


def term(role: str, /, *, name: str) -> Metric:
    """The mean of one named term of the role's reward.

    role: the role that is measured
    name: the term, as the role's `weighted` reward calls it
    """
    return role_metric(partial(_mean_term, name), role, term=name)


def _mean_term(name: str, trajectories: Sequence[Trajectory]) -> float:
    return sum(t.terms.get(name, 0.0) for t in trajectories) / max(1, len(trajectories))


def rounds(loop: str, /) -> Metric:
    """How many rounds a loop went, on the branch where it went furthest.

    loop: the loop that is measured
    """
    return Metric(partial(_rounds, loop), loop=loop)


def _rounds(loop: str, episode: Episode) -> float | None:
    went = episode.metadata.get("rounds", {}).get(loop)
    return None if went is None else float(went)


def skipped(role: str, /) -> Metric:
    """The share of a role's turns that were skipped: by its condition, or because its loop was over.

    role: the role that is measured
    """
    return Metric(partial(_skipped, role), role)


def _skipped(role: str, episode: Episode) -> float | None:
    if episode.termination_reason is not TerminationReason.ENV_DONE:
        return None
    return episode.metadata.get("skipped", {}).get(role, 0.0)
