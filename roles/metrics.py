"""Metrics: a number for each episode, from the trajectories of one role."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.records import Trajectory
from engine.vocabulary import Metric


def mean_reward(role: str, /) -> Metric:
    """The mean reward of a role's instances.

    role: the role that is measured
    """
    return Metric(_mean_reward, role)


def _mean_reward(trajectories: Sequence[Trajectory]) -> float:
    return sum([t.reward or 0.0 for t in trajectories]) / max(1, len(trajectories))


def correct(role: str, /) -> Metric:
    """1 when the role is right: every instance of it.

    role: the role that is measured
    """
    return Metric(_all_correct, role)


def _all_correct(trajectories: Sequence[Trajectory]) -> float:
    return float(bool(trajectories) and all(t.is_correct for t in trajectories))


def any_correct(role: str, /) -> Metric:
    """1 when an instance of the role is right: pass@count.

    role: the role that is measured
    """
    return Metric(_any_correct, role)


def _any_correct(trajectories: Sequence[Trajectory]) -> float:
    return float(any(t.is_correct for t in trajectories))


def term(role: str, /, *, name: str) -> Metric:
    """The mean of one named term of the role's reward.

    role: the role that is measured
    name: the term, as the role's `weighted` reward calls it
    """
    return Metric(partial(_mean_term, name), role, name)


def _mean_term(name: str, trajectories: Sequence[Trajectory]) -> float:
    return sum(t.terms.get(name, 0.0) for t in trajectories) / max(1, len(trajectories))
