"""Forecast of a training's first step: model calls, tokens, time, groups that teach, gradient shares, cost.

Pure. Input: a plan, and episodes of a probe or of an earlier run; without episodes, only the bounds that
follow from the spec. Estimates are plain means with their sample size n, without an interval.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import calls_of, size_of
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.records import Episode, Extent, Step
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.spec import Price
from rolegraph.engine.training.advantages.ledger import Membership, add_advantages, credit_rows
from rolegraph.engine.training.advantages.per_token import per_token
from rolegraph.engine.training.analysis.metrics import CAPTURED_SHARE, failure_lines
from rolegraph.engine.training.analysis.outcomes import GroupOutcome, Outcomes, group_results


@dataclass(frozen=True, slots=True)
class ObservedEpisodes:
    """Episodes from which a forecast extrapolates."""

    source: str
    """Origin of the episodes, as a text for the user."""
    episodes: Sequence[Episode]
    seconds: float = 0.0
    """Wall-clock seconds of all episodes together; 0 if unknown."""
    update_seconds: float = 0.0
    """Seconds of one policy update if the episodes are a training's first step; else 0."""


@dataclass(frozen=True, slots=True)
class SampleMean:
    """Mean of a sample, with its size."""

    mean: float
    n: int

    @property
    def share(self) -> str:
        """The mean as a share, such as `25% (n=8)`."""
        return f"{self.mean:.0%} (n={self.n})"


@dataclass(frozen=True, slots=True)
class RoleForecast:
    """Forecast of one role's part of the step."""

    name: str
    trained: bool
    calls_at_most: int
    """Upper bound of model calls, without retries."""
    response_tokens_at_most: int
    scorings_at_most: int = 0
    """Upper bound of requests for log-probabilities of given tokens, by teachers and likelihoods."""
    prompt_tokens: SampleMean | None = None
    """Expected number of prompt tokens in the step, a mean over n tasks; None without episodes."""
    response_tokens: SampleMean | None = None
    groups: float | None = None
    """Expected number of groups; None without episodes, and if groups span all tasks of a step."""
    group_sizes: tuple[int, int] | None = None
    """Numbers of members of the smallest and the largest group; None if they depend on answers or tasks."""
    teaching: SampleMean | None = None
    """Share of the observed groups that teach, from 0 to 1, by `GroupOutcome`; n is the number of groups."""
    failing: SampleMean | None = None
    """Share of the observed groups in which every answer failed."""
    share: float | None = None
    """Share of the gradient of the role's policy, from 0 to 1, by the sum of |advantage| over tokens."""
    cost: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Forecast(Summarized):
    """Forecast of a training's first step."""

    source: str
    """Description of the episodes from which the forecast extrapolates, or of the spec's bounds."""
    tasks: int
    rollouts: int
    """Number of episodes of each task."""
    calls_at_most: int
    chain: int
    """Upper bound of consecutive model calls in one episode."""
    roles: Mapping[str, RoleForecast]
    numbers: Mapping[str, Sequence[tuple[int, float]]]
    """Curve of each number that changes with the step, by path: (step, value) for each step, from 0, at which
    the slope changes."""
    seconds: float | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def episodes(self) -> int:
        """Number of episodes: tasks times rollouts."""
        return self.tasks * self.rollouts

    @property
    def calls_of_an_episode(self) -> int:
        """Upper bound of model calls of one episode."""
        return self.calls_at_most // self.episodes

    @property
    def scorings_at_most(self) -> int:
        """Upper bound of requests for log-probabilities of given tokens, which are not counted as calls."""
        return sum(role.scorings_at_most for role in self.roles.values())

    def summary(self) -> Summary:
        """Return the bound of calls, and a row for each role; unknown figures are None."""
        rows = [
            (
                role.name,
                f"{role.calls_at_most:,}",
                role.prompt_tokens and f"{role.prompt_tokens.mean:,.0f}",
                f"{role.response_tokens.mean:,.0f}"
                if role.response_tokens
                else f"≤ {role.response_tokens_at_most:,}",
                None if role.groups is None else f"{role.groups:,.0f}",
                "–".join(dict.fromkeys(map(str, role.group_sizes or ()))) or None,
                role.teaching and role.teaching.share,
                None if role.share is None else f"{role.share:.0%}",
                role.failing and role.failing.share,
            )
            for role in self.roles.values()
        ]
        columns = ("role", "calls ≤", "tokens in", "out", "groups", "of", "will teach", "share", "failed")
        title = f"Forecast: {self.episodes} episodes, at most {self.calls_at_most:,} calls"
        return Summary(title, columns, rows)

    def tokens(self, kind: str = "response") -> float | None:
        """Return the expected number of tokens of all roles together.

        Args:
            kind: `prompt` or `response`.

        Returns:
            The sum over roles; None for a forecast without episodes.
        """
        estimates = [getattr(role, f"{kind}_tokens") for role in self.roles.values()]
        means: list[float] = [tokens.mean for tokens in estimates if tokens is not None]
        return sum(means) if means else None


def forecast(plan: Plan, observed: ObservedEpisodes | None = None, *, price: Price | None = None) -> Forecast:
    """Forecast the first step of RL in a plan's training.

    Args:
        plan: The compiled spec.
        observed: Episodes to extrapolate from; None for the spec's bounds alone.
        price: Price of every role's tokens, instead of the prices of the spec's models. If the endpoint
            counted the cost of the observed answers itself, that cost is used instead.
    """
    plan = plan_at(plan, plan.first_step_of_rl)
    train, size = plan.spec.train, size_of(plan)
    episodes = train.batch_size * train.rollouts
    observed_groups = _observed_groups(plan, observed.episodes) if observed else {}
    mass_of_policy = Counter[str]()
    for groups in observed_groups.values():
        mass_of_policy.update(groups.mass)
    forecasts: dict[str, RoleForecast] = {}
    for role_index, role in enumerate(plan.roles):
        name, is_trained = role.name, role.name in plan.trained
        turns = plan.turns[role_index]
        calls = calls_of(role) * turns * episodes
        sizes = _planned_sizes(plan, role)
        has_teacher = is_trained and role.signal is not None and bool(role.signal.all_teachers)
        row = RoleForecast(
            name,
            is_trained,
            calls,
            calls * role.max_tokens,
            scorings_at_most=calls * has_teacher + len(role.likelihoods) * turns * episodes,
            group_sizes=sizes,
        )
        if observed and role.run is None:
            prompt, response = (
                _mean_in(name, attrgetter(kind), observed, episodes)
                for kind in ("prompt_tokens", "response_tokens")
            )
            row = replace(row, prompt_tokens=prompt, response_tokens=response)
            of_model = price or plan.endpoints[role.endpoints[0]].model.price
            counted = _mean_in(name, lambda step: step.usage.get("cost", 0.0), observed, episodes).mean
            if counted or of_model is not None:
                sampling = of_model.of(prompt.mean, response.mean) if of_model and not counted else counted
                trained_tokens = (prompt.mean + response.mean) * is_trained
                row = replace(row, cost=sampling + (of_model.of(0, 0, trained_tokens) if of_model else 0.0))
        if groups := observed_groups.get(name):
            total = groups.outcomes.total()
            # Groups of a few tasks do not tell the number and sizes of groups over more tasks.
            spans_tasks = any(grouping.over is not Extent.TASK for grouping in role.groupings)
            observed_sizes = (min(groups.sizes), max(groups.sizes)) if groups.sizes else sizes
            policy_mass = sum(mass_of_policy[policy] for policy in plan.policies_of(name))
            row = replace(
                row,
                groups=None if spans_tasks else total / len(groups.tasks) * train.batch_size,
                group_sizes=None if spans_tasks else observed_sizes,
                teaching=SampleMean(groups.outcomes[GroupOutcome.TAUGHT] / total, total),
                failing=SampleMean(groups.outcomes[GroupOutcome.FAILED] / total, total),
                share=sum(groups.mass.values()) / policy_mass if policy_mass else None,
            )
        forecasts[name] = row
    costs = [row.cost for row in forecasts.values() if row.cost is not None]
    seconds = None
    if observed and observed.seconds and observed.episodes:
        seconds = (observed.seconds + observed.update_seconds) * episodes / len(observed.episodes)
    return Forecast(
        source=observed.source if observed else "the spec's bounds",
        tasks=train.batch_size,
        rollouts=train.rollouts,
        calls_at_most=size.calls * episodes,
        chain=size.chain,
        roles=forecasts,
        numbers=plan.numbers.curves(plan.last_step) if plan.numbers else {},
        seconds=seconds,
        cost=sum(costs) if costs else None,
        warnings=tuple(_warnings(plan, forecasts, observed)),
    )


@dataclass(slots=True)
class _RoleGroups:
    """Sizes, outcomes and gradient mass of one role's groups in the observed episodes."""

    tasks: set[str] = field(default_factory=set[str])
    sizes: list[int] = field(default_factory=list[int])
    """Number of members of each group that is not empty."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    mass: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Weighted sum of |advantage| over tokens, by policy."""


def _observed_groups(plan: Plan, observed: Sequence[Episode]) -> dict[str, _RoleGroups]:
    """Group observed episodes and estimate advantages, as training would; return the groups' data by role.

    Tasks with fewer than `train.rollouts` episodes are left out.
    """
    rollouts = plan.spec.train.rollouts
    by_task: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in observed:
        by_task[episode.task_id].append(episode)
    complete = [e for episodes in by_task.values() if len(episodes) >= rollouts for e in episodes[:rollouts]]
    roles = {name: role for name, role in plan.trained.items() if role.compares_rewards}
    ledger = add_advantages(Membership(roles, plan.policy_of).add(complete).ledger())
    by_role: dict[str, _RoleGroups] = {}
    for role, task, outcome in group_results(credit_rows(ledger)):
        role_groups = by_role.setdefault(role, _RoleGroups())
        role_groups.tasks.add(task)
        role_groups.outcomes[outcome] += 1
    for group in ledger.groups:
        if group.role in roles:
            by_role[group.role].sizes.append(len(group.members))
    filled = (trajectory_ for episode in ledger.filled_episodes() for trajectory_ in episode.trajectories)
    for trajectory in (trajectory_ for trajectory_ in filled if trajectory_.name in by_role):
        values = [
            value
            for step in trajectory.steps
            if step.advantage is not None
            # A model that reports no tokens counts one for each response.
            for value in per_token(step.advantage, max(1, step.response_tokens), trajectory.name)
        ]
        policy = plan.policy_of(trajectory.name, trajectory.index)
        by_role[trajectory.name].mass[policy] += sum(map(abs, values)) * roles[trajectory.name].spec.weight
    return by_role


def _mean_in(
    name: str, amount: Callable[[Step], float], observed: ObservedEpisodes, episodes: int
) -> SampleMean:
    """Estimate the sum of an amount, such as tokens, over a role's steps in `episodes` episodes.

    Args:
        name: Name of the role.
        amount: Function that returns the amount of a step.
        observed: Episodes to extrapolate from.
        episodes: Number of episodes to estimate for.
    """
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for episode in observed.episodes:
        steps = [step for t in episode.trajectories if t.name == name for step in t.steps]
        by_task[episode.task_id].append(sum(amount(step) for step in steps))
    # A probe has more episodes of some tasks than of others, and each task counts once.
    means = [sum(values) / len(values) for values in by_task.values()]
    return SampleMean(sum(means) / len(means) * episodes, len(means))


def _planned_sizes(plan: Plan, role: RolePlan) -> tuple[int, int] | None:
    """Return (smallest, largest) size of a role's groups if no turn is skipped or fails; None if the sizes
    depend on answers or tasks, or for a role without groups."""
    is_plain = len(role.groupings) == 1 and all(
        grouping.by in ("task", "turn") and grouping.over is Extent.TASK for grouping in role.groupings
    )
    if role.name not in plan.trained or not role.compares_rewards or not is_plain:
        return None
    nodes = [node for node in plan.nodes if plan.roles[node.role].name == role.name]
    is_per_turn = role.compares_turns and role.groupings[0].by == "task"
    members = {
        (node.id.index, node.id.round if is_per_turn else 0)
        for node in nodes
        if node.id.index not in role.frozen
    }
    sizes = Counter(plan.policy_of(role.name, index) for index, _ in members)
    rollouts = plan.spec.train.rollouts
    return min(sizes.values()) * rollouts, max(sizes.values()) * rollouts


def _warnings(
    plan: Plan, rows: Mapping[str, RoleForecast], observed: ObservedEpisodes | None
) -> Iterator[str]:
    """Yield warnings about the forecast: stages, refills, failures, and roles that will not learn or cannot
    be judged."""
    for stage in plan.stages:
        train = stage.spec.train
        yield (
            f"steps {stage.first} to {stage.last} imitate, with {train.batch_size * train.rollouts:,} "
            f"episodes each; this is a forecast of step {plan.first_step_of_rl}, without what they teach"
        )
    if refill := plan.spec.train.refill:
        yield (
            f"`train.refill` draws up to {refill} further batches: a step may have {refill + 1} times these "
            "calls, tokens and seconds"
        )
    if observed is not None:
        yield from (warning for _, warning in failure_lines(plan.roles, observed.episodes))
    for name, role in plan.trained.items():
        row = rows[name]
        if not role.compares_rewards:
            continue
        if row.group_sizes and row.group_sizes[1] < 2:
            yield f"{name}: every group has one member, so there is nothing to compare it with"
        if observed is None:
            continue
        if row.teaching is None:
            yield (
                f"{name}: no task has {plan.spec.train.rollouts} episodes in which it ran, so the share of "
                "groups that teach is unknown"
            )
        elif row.teaching.mean == 0 and row.share:
            yield f"{name}: no group has different rewards, so all its answers get likelier, or none"
        elif row.teaching.mean == 0 and not (row.failing and row.failing.mean == 1):
            yield f"{name}: every advantage was 0; {_reward_spread(observed, name)}"
        # A dead role, without a gradient, has a line of its own; a lower weight of this one does not wake it.
        companions = {
            other
            for other in plan.trained
            if plan.policies_of(other) & plan.policies_of(name) and (rows[other].share or other == name)
        }
        if row.share is not None and row.share > CAPTURED_SHARE and len(companions) > 1:
            yield (
                f"{name} has {row.share:.0%} of the gradient that it shares with "
                f"{', '.join(sorted(companions - {name}))}; lower its `weight`, raise theirs, or give them "
                "policies of their own"
            )


def _reward_spread(observed: ObservedEpisodes, name: str) -> str:
    """Return a text that explains why no group of a role had different rewards."""
    trajectories = [t for episode in observed.episodes for t in episode.trajectories if t.name == name]
    rewards = {t.reward for t in trajectories if t.reward is not None}
    if len(rewards) == 1:
        return f"its reward was {rewards.pop():g} every time"
    return "the rewards within each group were equal" if rewards else "it has no rewards"
