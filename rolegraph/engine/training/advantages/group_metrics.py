"""Metrics of groups: rewards, advantages, how hard the tasks are, and states of estimators. Pure.

Names and values are rLLM's (`rllm/trainer/algorithms/advantage.py`), but for the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rolegraph.engine.vocabulary import Floats
from rolegraph.engine.vocabulary.items import State

MIN_MAGNITUDE = 1e-8
"""Magnitude below which an advantage, or a standard deviation of rewards, counts as 0; as in rLLM."""

KL = "KL sampler‖trainer"
"""Name of `kl/{role}` in tables and charts: the mean of log p of the sampler less that of the trainer."""

Metrics = dict[str, float]


def any_nonzero(advantages: Iterable[float]) -> bool:
    """Return True if an advantage differs from 0, so that there is a gradient."""
    return any(abs(value) >= MIN_MAGNITUDE for value in advantages)


def reward_metrics(role: str, rewards: Floats) -> Metrics:
    """Return `reward/{role}/{mean,std,max,min}` of all members' rewards."""
    return spread(f"reward/{role}", rewards)


def spread(prefix: str, values: Floats) -> Metrics:
    """Return mean, standard deviation, maximum and minimum of values as `{prefix}/{mean,std,max,min}`."""
    return {
        f"{prefix}/mean": float(np.mean(values)),
        f"{prefix}/std": float(np.std(values)),
        f"{prefix}/max": float(np.max(values)),
        f"{prefix}/min": float(np.min(values)),
    }


def advantage_metrics(role: str, values: Floats) -> Metrics:
    """Return `advantage/{role}/{mean,std,max,min,fraction_zero}` of the values."""
    if not values.size:
        return {}
    fraction_zero = float(np.mean(np.abs(values) < MIN_MAGNITUDE))
    return spread(f"advantage/{role}", values) | {f"advantage/{role}/fraction_zero": fraction_zero}


def difficulty_metrics(role: str, rewards_P_G: Iterable[Floats]) -> Metrics:
    """Return `batch/{role}/*`: number of groups, those with unequal rewards, and fractions too easy or too
    hard.

    Percentiles of the groups' means and deviations follow. Groups of one member are left out, as in rLLM's
    `advantage.py`: they have no spread.
    """
    groups = [rewards_G for rewards_G in rewards_P_G if len(rewards_G) > 1]
    if not groups:
        return {}
    means, stds = np.array([group.mean() for group in groups]), np.array([group.std() for group in groups])
    is_equal = stds < MIN_MAGNITUDE
    metrics: Metrics = {
        f"batch/{role}/total": float(len(groups)),
        f"batch/{role}/informative": float(np.sum(~is_equal)),
        f"batch/{role}/fractions/effective": float(np.mean(~is_equal)),
        f"batch/{role}/fractions/too_easy": float(np.mean(is_equal & (means >= 1.0))),
        f"batch/{role}/fractions/too_hard": float(np.mean(is_equal & (means <= 0.0))),
    }
    for percent in (10, 50, 90):
        metrics[f"batch/{role}/group_reward_mean/p{percent}"] = float(np.percentile(means, percent))
        metrics[f"batch/{role}/group_reward_std/p{percent}"] = float(np.percentile(stds, percent))
    return metrics


def state_metrics(role: str, states: Mapping[str, State]) -> Metrics:
    """Return `estimator/{role}` and `estimator/{role}/{key}`: the states of a role's estimator."""
    return {
        "/".join(filter(None, ("estimator", role, grouping if len(states) > 1 else "", key))): value
        for grouping, state in states.items()
        for key, value in state.items()
    }
