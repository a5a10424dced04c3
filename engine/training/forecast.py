"""What a first step of training will come to: calls, tokens, time, groups that teach, memory, cost.

In: a plan, and what episodes of it came to, from a probe or an earlier run. Without episodes, only bounds.
Pure but for the adapter's size, which is read off the model's folder (`adapter_size`).

How sure it is. Tokens: a bootstrap over tasks of the mean of an episode, times the step's episodes. Groups
that teach: groups of the same K rollouts are made of the episodes there are; a task counts by the share of
its groups with an advantage that is not 0. With the share's Jeffreys posterior, Beta(½ + s, ½ + n - s) over n
tasks, the interval is the middle 95 % of what the step's tasks come to (a beta-binomial): it has to hold the
step's own share, not the mean of many steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.size import calls_of, size_of
from rolegraph.engine.records import Episode, TrajectoryGroup
from rolegraph.engine.training.advantages import estimate, group_episodes, teaches
from rolegraph.engine.training.compare import Interval, interval
from rolegraph.engine.training.shares import CAPTURED

DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class ObservedEpisodes:
    """Episodes that the forecast is made from."""

    source: str
    episodes: Sequence[Episode]
    seconds: float = 0.0
    """What they took; 0 where that is not known."""
    update_seconds: float = 0.0
    """What one update of the policy took, where the episodes are a training's first step."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars, or any other money, for a million tokens."""

    prompt: float = 0.0
    response: float = 0.0
    train: float = 0.0
    """For each token, asked or answered, of a trained role."""


@dataclass(frozen=True, slots=True)
class RoleForecast:
    """What one role does in the step."""

    name: str
    trained: bool
    calls_at_most: int
    """Retries not counted."""
    response_tokens_at_most: int
    prompt_tokens: Interval | None = None
    response_tokens: Interval | None = None
    groups: float | None = None
    """How many groups there are."""
    group_sizes: tuple[int, int] | None = None
    """The smallest and the largest."""
    teaching: Interval | None = None
    """The share of them that will teach; `n` is the tasks that it is told from."""
    share: float | None = None
    """Of the gradient of its policy, by the sum of |advantage| over tokens."""
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """The memory of one policy's adapter while it trains."""

    parameters: int
    bytes: int
    """Weights, gradients and Adam's two moments."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A first step, before it is made."""

    source: str
    """What it is told from."""
    tasks: int
    rollouts: int
    calls_at_most: int
    chain: int
    """Model calls after one another in an episode, at most."""
    roles: Mapping[str, RoleForecast]
    adapters: Mapping[str, AdapterMemory] = field(default_factory=dict[str, AdapterMemory])
    """By policy; those of models that are not on this machine are left out."""
    seconds: float | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def episodes(self) -> int:
        """Tasks times rollouts."""
        return self.tasks * self.rollouts

    def tokens(self, kind: str = "response") -> float | None:
        """`prompt` or `response` tokens of all roles that are expected."""
        found = [getattr(role, f"{kind}_tokens") for role in self.roles.values()]
        known: list[float] = [row.mean for row in found if row is not None]
        return sum(known) if known else None


def forecast(
    plan: Plan,
    observed: ObservedEpisodes | None = None,
    *,
    prices: Mapping[str, Price] | None = None,
    adapters: Mapping[str, AdapterMemory] | None = None,
) -> Forecast:
    """What the first step of a plan's training comes to.

    `prices` are by model, as `openai:NAME`, and under `default` for the others.
    """
    train, size = plan.spec.train, size_of(plan)
    episodes = train.batch_size * train.rollouts
    found = _compared(plan, observed) if observed else {}
    shares = _shares(plan, found)
    rows: dict[str, RoleForecast] = {}
    for role in plan.roles:
        tokens = _tokens(role, observed, episodes) if observed and role.run is None else None
        groups = found.get(role.name)
        turns = sum(plan.roles[node.role].name == role.name for node in plan.nodes)
        calls = calls_of(role) * turns * episodes
        longest = max((sampling.max_tokens for sampling in role.samplings), default=0)
        rows[role.name] = RoleForecast(
            role.name,
            role.name in plan.trained,
            calls,
            calls * longest,
            *(tokens or (None, None)),
            groups=groups.count * train.batch_size if groups else None,
            group_sizes=groups.sizes if groups else _sizes(plan, role),
            teaching=groups.teaching(train.batch_size) if groups else None,
            share=shares.get(role.name),
            cost=_cost(plan, role, tokens, prices) if prices and tokens else None,
        )
    costs = [row.cost for row in rows.values() if row.cost is not None]
    return Forecast(
        source=observed.source if observed else "the spec's bounds",
        tasks=train.batch_size,
        rollouts=train.rollouts,
        calls_at_most=size.calls * episodes,
        chain=size.chain,
        roles=rows,
        adapters=adapters or {},
        seconds=_seconds(observed, episodes) if observed else None,
        cost=sum(costs) if costs else None,
        warnings=tuple(_warnings(plan, rows, observed, prices)),
    )


@dataclass(slots=True)
class _Groups:
    """What of a role was compared in the episodes that there are."""

    by_task: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])
    """For each task, whether each of its groups taught."""
    members: list[int] = field(default_factory=list[int])
    mass: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The sum of |advantage| over tokens, by policy."""

    @property
    def count(self) -> float:
        """Groups for each task."""
        return sum(map(len, self.by_task.values())) / max(1, len(self.by_task))

    @property
    def sizes(self) -> tuple[int, int]:
        return min(self.members), max(self.members)

    def teaching(self, tasks: int) -> Interval:
        """The share of the groups of so many new tasks that teach, with the interval that has to hold it."""
        shares = [sum(taught) / len(taught) for taught in self.by_task.values()]
        hits, n = sum(shares), len(shares)
        random = np.random.default_rng(0)
        chances = random.beta(0.5 + hits, 0.5 + n - hits, size=DRAWS)
        low, high = np.percentile(random.binomial(tasks, chances) / tasks, (2.5, 97.5))
        return Interval(hits / n, float(low), float(high), n)


def _compared(plan: Plan, observed: ObservedEpisodes) -> dict[str, _Groups]:
    """Groups of as many rollouts as the step has, by role; tasks with fewer episodes have none."""
    rollouts = plan.spec.train.rollouts
    by_task: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in observed.episodes:
        by_task[episode.task_id].append(episode)
    whole = [e for theirs in by_task.values() if len(theirs) >= rollouts for e in theirs[:rollouts]]
    trained = {name: role for name, role in plan.trained.items() if by_reward(role)}
    groups, _ = group_episodes(whole, trained, plan.policy_of)
    groups = tuple(group for group in groups if group.key.role in trained)
    estimators = {name: role.estimator for name, role in trained.items() if role.estimator}
    made = estimate(groups, estimators, {})
    found: dict[str, _Groups] = {}
    for group, advantages in zip(groups, made.advantages, strict=True):
        own = found.setdefault(group.key.role, _Groups())
        values = [*_values(group, advantages)]
        own.by_task.setdefault(group.key.task, []).append(teaches(values))
        own.members.append(len(group.trajectories))
        own.mass[group.key.policy] += sum(map(abs, values)) * trained[group.key.role].weight
    return found


def _values(group: TrajectoryGroup, advantages: Sequence[Sequence[object]]) -> Iterator[float]:
    """The advantage of each token."""
    for trajectory, steps in zip(group.trajectories, advantages, strict=True):
        for step, advantage in zip(trajectory.steps, steps, strict=False):
            tokens = max(1, step.response_tokens)
            yield from map(float, advantage if isinstance(advantage, list | tuple) else [advantage] * tokens)  # pyright: ignore


def by_reward(role: RolePlan) -> bool:
    """Whether what it earned is compared, and not each token with a teacher's."""
    return role.estimator is not None and role.estimator.compute is not None


def _shares(plan: Plan, found: Mapping[str, _Groups]) -> dict[str, float]:
    masses: defaultdict[str, float] = defaultdict(float)
    for groups in found.values():
        for policy, mass in groups.mass.items():
            masses[policy] += mass
    shares: dict[str, float] = {}
    for name, groups in found.items():
        if whole := sum(masses[policy] for policy in plan.policies_of(name)):
            shares[name] = sum(groups.mass.values()) / whole
    return shares


def _tokens(role: RolePlan, observed: ObservedEpisodes, episodes: int) -> tuple[Interval, Interval]:
    """Prompt and response tokens of the step."""
    asked: defaultdict[str, list[float]] = defaultdict(list)
    answered: defaultdict[str, list[float]] = defaultdict(list)
    for episode in observed.episodes:
        steps = [step for t in episode.trajectories if t.name == role.name for step in t.steps]
        asked[episode.task_id].append(sum(step.prompt_tokens for step in steps))
        answered[episode.task_id].append(sum(step.response_tokens for step in steps))
    return _times(asked, episodes), _times(answered, episodes)


def _times(by_task: Mapping[str, Sequence[float]], episodes: int) -> Interval:
    mean = interval({task: sum(values) / len(values) for task, values in by_task.items()})
    return Interval(mean.mean * episodes, mean.low * episodes, mean.high * episodes, mean.n)


def _seconds(observed: ObservedEpisodes, episodes: int) -> float | None:
    """At the speed of the episodes that there are."""
    if not observed.seconds or not observed.episodes:
        return None
    share = episodes / len(observed.episodes)
    return (observed.seconds + observed.update_seconds) * share


def _sizes(plan: Plan, role: RolePlan) -> tuple[int, int] | None:
    """The size of each group where nothing is skipped and nothing fails; None where answers decide it."""
    if role.name not in plan.trained or not by_reward(role) or role.group == "prompt":
        return None
    nodes = [node for node in plan.nodes if plan.roles[node.role].name == role.name]
    per_turn = role.compares_turns and role.group == "task"
    members = {(node.id.index, node.id.round if per_turn else 0) for node in nodes}
    sizes = Counter(plan.policy_of(role.name, index) for index, _ in members)
    rollouts = plan.spec.train.rollouts
    return min(sizes.values()) * rollouts, max(sizes.values()) * rollouts


def _cost(
    plan: Plan, role: RolePlan, tokens: tuple[Interval, Interval], prices: Mapping[str, Price]
) -> float | None:
    price = prices.get(_model_of(plan, role), prices.get("default"))
    if price is None:
        return None
    asked, answered = (row.mean for row in tokens)
    trained = (asked + answered) * price.train if role.name in plan.trained else 0.0
    return (asked * price.prompt + answered * price.response + trained) / 1e6


def _model_of(plan: Plan, role: RolePlan) -> str:
    model = plan.endpoints[role.endpoints[0]].model
    return f"{model.provider}:{model.name}" if model.name else model.provider


def _warnings(
    plan: Plan,
    rows: Mapping[str, RoleForecast],
    observed: ObservedEpisodes | None,
    prices: Mapping[str, Price] | None,
) -> Iterator[str]:
    """Why a role will not learn, and what could not be told."""
    for name, role in plan.trained.items():
        row = rows[name]
        if by_reward(role) and row.group_sizes and row.group_sizes[1] < 2 and role.group != "prompt":
            yield f"{name}: every group has one member, so there is nothing to compare it with"
        if observed is None or not by_reward(role):
            continue
        if row.teaching is None:
            yield (
                f"{name}: no task has {plan.spec.train.rollouts} episodes with an answer to compare, so it "
                "cannot be said how many groups will teach"
            )
        elif row.teaching.mean == 0:
            yield f"{name}: no group taught; {_flat(observed, name)}"
        if row.share is not None and row.share > CAPTURED and len(_sharing(plan, name)) > 1:
            others = ", ".join(sorted(_sharing(plan, name) - {name}))
            yield (
                f"{name} has {row.share:.0%} of the gradient that it shares with {others}; lower its "
                "`weight`, raise theirs, or give them policies of their own"
            )
    if prices and observed:
        unknown = [n for n, row in rows.items() if row.response_tokens is not None and row.cost is None]
        if unknown:
            yield f"no price for the model of {', '.join(unknown)}: its tokens are not in the cost"


def _flat(observed: ObservedEpisodes, name: str) -> str:
    rewards = {t.reward for e in observed.episodes for t in e.trajectories if t.name == name}
    earned = {reward for reward in rewards if reward is not None}
    if len(earned) == 1:
        return f"its reward was {earned.pop():g} every time"
    return "the rewards of each group were the same" if earned else "it earned nothing"


def _sharing(plan: Plan, name: str) -> set[str]:
    return {other for other in plan.trained if plan.policies_of(other) & plan.policies_of(name)}
