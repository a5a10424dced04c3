"""Advantage estimators that a role may name, and the smallest group each can learn from.

A group is the trajectories of one role on one task: G = count × rollouts of them.
"""

from __future__ import annotations

from roles.vocabulary import Estimator, estimators


@estimators.register("grpo")
def grpo(*, std: bool = True) -> Estimator:
    """Reward less the group's mean, over its standard deviation if std (DeepSeekMath, 2402.03300)."""
    return Estimator("grpo", {"std": std}, min_group=2)


@estimators.register("reinforce")
def reinforce() -> Estimator:
    """The reward itself, without a baseline (Williams, 1992)."""
    return Estimator("reinforce")


@estimators.register("rloo")
def rloo() -> Estimator:
    """Reward less the mean of the group's others (Ahmadian et al., 2402.14740)."""
    return Estimator("rloo", min_group=2)


@estimators.register("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline() -> Estimator:
    """Reward less the group's mean, over the deviation in the role's whole batch (Hu, 2501.03262)."""
    return Estimator("reinforce_plus_plus_baseline", min_group=2)


@estimators.register("prpo")
def prpo() -> Estimator:
    """Reward less the mean of the role's whole batch, over its deviation (rLLM's continual learning)."""
    return Estimator("prpo")
