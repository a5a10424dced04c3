"""Advantages of a reward whose terms an estimator compares separately: `sum` with `normalize: term`.

GDPO (2601.05242): the estimator compares each term within its group, the results are added with the terms'
weights, and the sums are normalized over the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.training.advantages.group_metrics import MIN_MAGNITUDE
from rolegraph.engine.vocabulary import Estimator, Floats

EPSILON = 1e-6
"""Added to the standard deviation of the batch before the division, as in `grpo`."""


def compared_terms(role: RolePlan, members: Sequence[Member]) -> dict[str, Floats]:
    """Return each term of the members' rewards, [G], by its name; empty for a role whose terms are not
    compared separately.

    A member without terms, such as an answer that cannot be read, has 0 in each, or its share of
    `on_failure.reward`: the smallest terms whose weighted sum is the member's reward.
    """
    if not role.compares_terms or role.reward is None:
        return {}
    weights = role.reward.normalized
    shares = {name: weight / sum(other**2 for other in weights.values()) for name, weight in weights.items()}

    def values(member: Member) -> Mapping[str, float]:
        terms, reward = member.trajectory.terms, member.reward or 0.0
        return terms or {name: reward * share for name, share in shares.items()}

    terms_G = [values(member) for member in members]
    return {name: np.array([terms.get(name, 0.0) for terms in terms_G]) for name in weights}


def estimator_of(role: RolePlan) -> Estimator | None:
    """Return a role's estimator; if terms are compared separately, wrap it to compare each term, without a
    baseline."""
    estimator = role.estimator
    if estimator is None or role.reward is None or not role.compares_terms:
        return estimator
    weights, compute = role.reward.normalized, estimator.compute

    def by_term(rewards_P_G: Sequence[Floats], groups: Sequence[Group]) -> list[Floats]:
        terms_P_G = [compared_terms(role, group.members) for group in groups]
        sums_P_G = [np.zeros(len(rewards_G)) for rewards_G in rewards_P_G]
        for name, weight in weights.items():
            for sums_G, values in zip(
                sums_P_G, compute([terms_G[name] for terms_G in terms_P_G], groups), strict=True
            ):
                sums_G += weight * np.asarray(values)
        sums = np.concatenate(sums_P_G)
        sums[np.abs(sums) < MIN_MAGNITUDE] = 0.0  # else rounding errors become a batch's only gradient
        sums = (sums - sums.mean()) / (sums.std() + EPSILON)
        return np.split(sums, np.cumsum([len(rewards_G) for rewards_G in rewards_P_G])[:-1])

    return replace(estimator, compute=by_term, baseline=None)
