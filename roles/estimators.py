"""Advantage estimators that a role may name, and the smallest group each can learn from.

A group is the trajectories of one role on one task: G = count × rollouts of them. An estimator's `compute`
gets `rewards_P_G`, an array [G] for each of the role's P groups (ragged), and the groups themselves, from
which it may read more than rewards (see `opo`). It returns an array of each group's shape. The built-in
ones give rLLM's numbers; a package adds its own by the entry-point group `rolegraph.estimators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.records import TrajectoryGroup
from engine.vocabulary import Estimator, Floats

EPSILON = 1e-6
"""Added to a deviation before dividing by it."""

Groups = Sequence[TrajectoryGroup]


def grpo(*, std: bool = True) -> Estimator:
    """Reward less the group's mean, over its standard deviation if std (DeepSeekMath, 2402.03300).

    std: whether to divide by the group's standard deviation
    """

    def group(rewards: Floats) -> Floats:
        # A group of one has nothing to compare with: its reward itself counts, as in rLLM.
        alone = len(rewards) < 2
        centred = rewards - (0.0 if alone else rewards.mean())
        return centred / ((1.0 if alone else rewards.std()) + EPSILON) if std else centred

    return Estimator("grpo", {"std": std}, min_group=2, compute=_each(group), loss="ppo")


def reinforce() -> Estimator:
    """The reward itself, without a baseline (Williams, 1992)."""
    return Estimator("reinforce", compute=_each(lambda rewards: rewards))


def rloo() -> Estimator:
    """Reward less the mean of the group's others (Ahmadian et al., 2402.14740)."""

    def group(rewards: Floats) -> Floats:
        size = len(rewards)
        return rewards if size < 2 else size / (size - 1) * (rewards - rewards.mean())

    return Estimator("rloo", min_group=2, compute=_each(group))


def reinforce_plus_plus_baseline() -> Estimator:
    """Reward less the group's mean, over the deviation in the role's whole batch (Hu, 2501.03262)."""

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        import numpy as np

        centred = [rewards - rewards.mean() for rewards in rewards_P_G]
        deviation = np.concatenate(centred).std()
        return [values / (deviation + EPSILON) for values in centred]

    return Estimator("reinforce_plus_plus_baseline", min_group=2, compute=batch)


def prpo() -> Estimator:
    """Reward less the mean of the role's whole batch, over its deviation (rLLM's continual learning)."""

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        import numpy as np

        everything = np.concatenate(rewards_P_G)
        mean, deviation = everything.mean(), everything.std()
        return [(rewards - mean) / (deviation + EPSILON) for rewards in rewards_P_G]

    return Estimator("prpo", compute=batch)


def opo() -> Estimator:
    """Reward less the group's mean weighted by response length, the least-variance baseline (2505.23585)."""

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        import numpy as np

        return [
            rewards - np.average(rewards, weights=_lengths(group))
            for rewards, group in zip(rewards_P_G, groups, strict=True)
        ]

    return Estimator("opo", min_group=2, compute=batch)


def _lengths(group: TrajectoryGroup) -> Floats:
    """Response tokens of each member, [G]; 1 each where the model gave no tokens."""
    import numpy as np

    lengths = np.array([sum(len(step.response_ids) for step in t.steps) for t in group.trajectories], float)
    return lengths if lengths.sum() else np.ones_like(lengths)


def precomputed() -> Estimator:
    """Advantages that the role's `signal` sets, token by token, in place of a reward's."""
    return Estimator("precomputed")


def _each(group: Callable[[Floats], Floats]) -> Callable[[Sequence[Floats], Groups], list[Floats]]:
    """An estimator that looks at one group at a time."""

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        return [group(rewards) for rewards in rewards_P_G]

    return batch
