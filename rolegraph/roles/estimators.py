"""Advantage estimators that a role may name, and the smallest group that each can learn from.

A group is the trajectories of one role on one task: G = K·N members, for K rollouts and N instances. Both
`compute` and `baseline` of an estimator get `rewards_P_G`, an array [G] for each of the role's P groups
(ragged), and the groups themselves, and return an array [G] for each group. The numbers of the built-in
estimators equal those of rLLM (rllm/trainer/algorithms/advantage.py), except `opo`, which rLLM lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from rolegraph.engine.records.credit import Group
from rolegraph.engine.vocabulary import Estimator, Floats, State

EPSILON = 1e-6
"""Number added to a standard deviation before a division by it."""

Groups = Sequence[Group]
Batch = Callable[[Sequence[Floats], Groups], list[Floats]]
"""Function from the rewards of a role's groups to a number for each member."""


def grpo(*, std: bool = True) -> Estimator:
    """Subtract the group's mean, and divide by its standard deviation if std (DeepSeekMath, 2402.03300).

    std: whether to divide by the group's standard deviation
    """

    def mean(rewards: Floats) -> Floats:
        # A group of one has nothing to compare with: its reward itself counts, as in rLLM.
        return _same(rewards, rewards.mean() if len(rewards) > 1 else 0.0)

    def group(rewards: Floats) -> Floats:
        centred = rewards - mean(rewards)
        return centred / ((rewards.std() if len(rewards) > 1 else 1.0) + EPSILON) if std else centred

    baseline = _each(mean)
    return Estimator("grpo", {"std": std}, min_group=2, compute=_each(group), loss="ppo", baseline=baseline)


def reinforce() -> Estimator:
    """Take the reward itself, without a baseline (Williams, 1992)."""
    baseline = _each(lambda rewards: _same(rewards, 0.0))
    return Estimator("reinforce", compute=_less(baseline), baseline=baseline)


def rloo() -> Estimator:
    """Subtract the mean reward of the group's other members (Ahmadian et al., 2402.14740)."""

    def others(rewards: Floats) -> Floats:
        size = len(rewards)
        return _same(rewards, 0.0) if size < 2 else (rewards.sum() - rewards) / (size - 1)

    baseline = _each(others)
    return Estimator("rloo", min_group=2, compute=_less(baseline), baseline=baseline)


def reinforce_plus_plus_baseline() -> Estimator:
    """Subtract the group's mean, and divide by the deviation in the role's whole batch (Hu, 2501.03262)."""
    baseline = _each(lambda rewards: _same(rewards, rewards.mean()))

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        centred_P_G = _less(baseline)(rewards_P_G, groups)
        return _scaled(centred_P_G, centred_P_G)

    return Estimator("reinforce_plus_plus_baseline", min_group=2, compute=batch, baseline=baseline)


def prpo() -> Estimator:
    """Subtract the mean of the role's whole batch, divide by its deviation (rLLM's continual learning)."""

    def mean(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        import numpy as np

        mean_of_all = np.concatenate(rewards_P_G).mean()
        return [_same(rewards, mean_of_all) for rewards in rewards_P_G]

    def batch(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        return _scaled(_less(mean)(rewards_P_G, groups), rewards_P_G)

    return Estimator("prpo", compute=batch, baseline=mean)


def opo() -> Estimator:
    """Subtract the group's mean weighted by response length, the least-variance baseline (2505.23585)."""

    def weighted(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        import numpy as np

        return [
            _same(rewards, np.average(rewards, weights=_lengths(group)))
            for rewards, group in zip(rewards_P_G, groups, strict=True)
        ]

    return Estimator("opo", min_group=2, compute=_less(weighted), baseline=weighted)


def _lengths(group: Group) -> Floats:
    """Return the number of response tokens of each member, [G]; ones if the model returned no tokens."""
    import numpy as np

    lengths = np.array([member.tokens for member in group.members], float)
    return lengths if lengths.sum() else np.ones_like(lengths)


def ema(*, decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95, by: str = "") -> Estimator:
    """Subtract a running mean of the role's rewards, as SPIRAL's role-conditioned advantage (2506.24119).

    decay: share of the mean that each reward leaves
    by: expression over the visible fields of a task, such as `task.game`, with a mean for each value
    """

    def running(
        state: State, rewards_P_G: Sequence[Floats], groups: Groups
    ) -> tuple[Sequence[Floats], State]:
        means = dict(state)
        baselines = [_same(rewards, 0.0) for rewards in rewards_P_G]
        for p, g in _in_order(groups):
            key = groups[p].state_keys[g] if groups[p].state_keys else ""
            # Each reward is scored before the mean knows it, from 0 on, as in prime-rl.
            baselines[p][g] = mean = means.get(key, 0.0)
            means[key] = decay * mean + (1 - decay) * float(rewards_P_G[p][g])
        return baselines, means

    def from_nothing(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        return [*running({}, rewards_P_G, groups)[0]]

    compute = _less(from_nothing)
    return Estimator("ema", {"decay": decay, "by": by}, compute=compute, running=running, key=by)


def _in_order(groups: Groups) -> list[tuple[int, int]]:
    """Return the positions (group, member) of all members, sorted by task, rollout, instance and round."""
    member_at = {(p, g): it for p, group in enumerate(groups) for g, it in enumerate(group.members)}
    tasks = {task: n for n, task in enumerate(dict.fromkeys(it.task for it in member_at.values()))}

    def order(place: tuple[int, int]) -> tuple[int, int, int, int]:
        member = member_at[place]
        return tasks[member.task], member.rollout, member.index, member.round

    return sorted(member_at, key=order)


def best() -> Estimator:
    """Imitate the answers of each group with the highest reward (RAFT, 2304.06767; STaR, 2203.14465).

    Their advantage is 1, that of the others 0. A group whose rewards are equal and below 1 has no best
    answer, and an answer that failed cannot be it.
    """

    def targets(rewards_P_G: Sequence[Floats], groups: Groups) -> list[Floats]:
        return [_best_of(rewards, group) for rewards, group in zip(rewards_P_G, groups, strict=True)]

    return Estimator("best", compute=targets, loss="cross_entropy")


def _best_of(rewards: Floats, group: Group) -> Floats:
    """Return 1 for the group's best answers and 0 for all others, [G]."""
    import numpy as np

    is_readable = np.array([not member.failed for member in group.members], dtype=bool)
    highest = max(rewards[is_readable], default=-np.inf)
    is_preferred = highest >= 1 or highest > min(rewards, default=np.inf)
    return (is_readable & (rewards == highest) & is_preferred).astype(float)


def _each(group: Callable[[Floats], Floats]) -> Batch:
    """Return a function over all groups that applies `group` to each group's rewards [G]."""
    return lambda rewards_P_G, groups: [group(rewards) for rewards in rewards_P_G]


def _less(baseline: Batch) -> Batch:
    """Return a function over all groups that subtracts the `baseline` of each group from the group's
    rewards."""
    return lambda rewards_P_G, groups: [
        r - b for r, b in zip(rewards_P_G, baseline(rewards_P_G, groups), strict=True)
    ]


def _scaled(values_P_G: Sequence[Floats], rewards_P_G: Sequence[Floats]) -> list[Floats]:
    """Return the values divided by the standard deviation of all rewards of the batch."""
    import numpy as np

    deviation = np.concatenate(rewards_P_G).std() + EPSILON
    return [values / deviation for values in values_P_G]


def _same(rewards: Floats, value: float) -> Floats:
    """Return an array [G] filled with `value`, as long as `rewards`."""
    import numpy as np

    return np.full(len(rewards), value)
