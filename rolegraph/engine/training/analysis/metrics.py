"""Metrics of episodes and updates, for `metrics.jsonl`, the live table and comparisons. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.records import Episode, Note, Trajectory
from rolegraph.engine.records.episodes import common_failure
from rolegraph.engine.records.means import Means
from rolegraph.engine.training.advantages.group_metrics import Metrics
from rolegraph.engine.training.analysis.constants import SAME, metrics_of_answers, tally_answers
from rolegraph.engine.training.analysis.divergence import ENTROPY_SHARE, steps_of_rl
from rolegraph.engine.training.analysis.outcomes import GroupOutcome
from rolegraph.engine.training.analysis.role_metrics import ROLE_METRICS

if TYPE_CHECKING:  # both import the Tinker SDK, which comparisons do without
    from rolegraph.engine.training.policies.batches import RoleBatch
    from rolegraph.engine.training.policies.policies import UpdateResult

CAPTURED_SHARE = 0.9
"""Share of a policy's gradient above which one role is said to capture the policy."""
CAPTURED_STEPS = 10
"""Consecutive updates above `CAPTURED_SHARE` before the warning."""
LEAST_ANSWERS = 8
"""Number of untrained answers from which their equal rewards mean something."""
NOTHING_RIGHT = (
    "first show worked examples in the prompt (data.examples), then begin with a stage of imitation "
    "(train.stages), then take another model (--model)"
)
"""Remedies for a role that is never right, in the order in which to try them."""
COLLAPSED_SHARE = 0.9
"""Share of the commonest answer above which a role's answers have collapsed."""


def episode_metrics(plan: Plan, episode: Episode) -> Metrics:
    """Return the known values of `correct` and of the spec's metrics for one episode."""
    return {name: value for name, value in episode.figures.items() if name in ("correct", *plan.metrics)}


def answer_counts(roles: Iterable[str], episodes: Sequence[Episode]) -> Metrics:
    """Return `answers/n/{role}`, the number of each role's trajectories, failed ones included."""
    counts = Counter(t.name for episode in episodes for t in episode.trajectories)
    return {f"answers/n/{role}": float(counts[role]) for role in roles if counts[role]}


def mean_metrics(plan: Plan, episodes: Sequence[Episode], prefix: str) -> Metrics:
    """Return means over episodes: `{prefix}/correct`, the spec's metrics and `{prefix}/reward/{role}`.

    `{prefix}/n/{metric}` is the number of values in each mean: of episodes that have a metric; of a reward
    the trajectories, or the turns where those are compared.
    """
    episode_means = Means(episode_metrics(plan, episode) for episode in episodes)
    means = episode_means.means() | {f"n/{name}": float(n) for name, n in episode_means.counts.items()}
    for name, rewards in rewards_by_role(plan, episodes).items():
        means |= {f"reward/{name}": sum(rewards) / len(rewards), f"n/reward/{name}": float(len(rewards))}
    return {f"{prefix}/{name}": value for name, value in means.items()}


def failures(episodes: Sequence[Episode]) -> Metrics:
    """Count failed trajectories, `failures/{role}/{failure}`, and `REMARKS`, such as `truncated/{role}`."""
    trajectories = [t for episode in episodes for t in episode.trajectories]
    counts = Counter(f"failures/{t.name}/{t.failure.name.value}" for t in trajectories if t.failure)
    counts.update(f"{name}/{t.name}" for t in trajectories for name in t.remarks)
    return {name: float(count) for name, count in counts.items()}


def failure_lines(
    roles: Iterable[RolePlan], episodes: Sequence[Episode], *, every: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (role name, line) for each role with failed or unrated answers; the line counts them and has an
    example.

    Args:
        roles: The roles.
        episodes: Their episodes.
        every: Yield only roles whose answers all failed or are unrated.
    """
    for role in roles:
        trajectories = [t for episode in episodes for t in episode.trajectories if t.name == role.name]
        unrated_count = sum(t.is_unrated for t in trajectories)
        if every and unrated_count + sum(t.failure is not None for t in trajectories) < len(trajectories):
            continue
        if line := common_failure(trajectories):
            yield role.name, line
        if unrated_count:
            count = f"{unrated_count} of {len(trajectories)} answers are unrated"
            yield role.name, f"{role.name}: {count}: {role.explain('unrated')}"


def failed_roles(episodes: Sequence[Episode]) -> Iterator[Trajectory]:
    """Yield a trajectory of each role whose answers all failed in the same way, or whose rewards all failed.

    A failure of the reward, which no training of the role mends, counts for any number of answers, even if
    other answers failed before their reward. Other failures count only for a role that ran in every episode:
    a role that runs now and then may fail by chance.

    Args:
        episodes: All episodes of a step.
    """
    for role, trajectories in _by_role(episodes).items():
        names = {t.failure and t.failure.name for t in trajectories}
        runs_always = all(any(t.name == role for t in episode.trajectories) for episode in episodes)
        reward_failures = [t for t in trajectories if t.failed_by == "reward"]
        if None not in names and (reward_failures or (len(names) == 1 and runs_always)):
            yield (reward_failures or trajectories)[0]


def lost_roles(episodes: Sequence[Episode]) -> Iterator[Trajectory]:
    """Yield a failed trajectory of each role that lost more than half of its answers to failures of a machine
    or network.

    Metrics of such answers say nothing of the weights.
    """
    for trajectories in _by_role(episodes).values():
        lost_trajectories = [t for t in trajectories if t.failed_by == "world"]
        if 2 * len(lost_trajectories) > len(trajectories):
            yield lost_trajectories[0]


def _by_role(episodes: Sequence[Episode]) -> dict[str, list[Trajectory]]:
    by_role: dict[str, list[Trajectory]] = {}
    for trajectory in (t for episode in episodes for t in episode.trajectories):
        by_role.setdefault(trajectory.name, []).append(trajectory)
    return by_role


def rewards_by_role(plan: Plan, episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Return each role's rewards: of its trajectories, or of its turns if the spec compares turns.

    Roles without a reward are left out, and so are past selves in a trained role.
    """
    frozen_instances = {(role.name, index) for role in plan.trained.values() for index in role.frozen}
    by_turn = {role.name for role in plan.trained.values() if role.compares_turns}
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        for trajectory in episode.trajectories:
            if trajectory.node[:2] in frozen_instances:
                continue
            if trajectory.name in by_turn:
                rewards.setdefault(trajectory.name, []).extend(
                    turn[-1].reward for turn in trajectory.turns if not any(step.masked for step in turn)
                )
            elif trajectory.reward is not None:
                rewards.setdefault(trajectory.name, []).append(trajectory.reward)
    return {name: values for name, values in rewards.items() if values}


def response_tokens(episodes: Sequence[Episode]) -> Metrics:
    """Return `tokens/response`, the sum, and `tokens/per_response`, the mean over model calls.

    Calls of a model that reports no tokens are left out.
    """
    steps = [step for episode in episodes for t in episode.trajectories for step in t.steps]
    lengths = [step.response_tokens for step in steps if step.response_tokens]
    total = float(sum(lengths))
    return {"tokens/response": total, "tokens/per_response": total / max(1, len(lengths))}


def update_metrics(updates: Mapping[str, UpdateResult], *, several: bool) -> Metrics:
    """Return `loss/{role}/mean`, `kl/{role}`, `imitation/{role}/*` and `optim/grad_norm` of one step's
    updates.

    Metrics of a custom loss are `loss/{role}/{name}`; of several policies their mean.

    Args:
        updates: Result of each policy's update, by policy.
        several: True if the plan has several policies; adds `optim/{grad_norm,loss,kl}/{policy}`.
    """
    metrics: Metrics = {}
    means = Means()
    surprisals_by_role: defaultdict[str, list[float]] = defaultdict(list)
    for policy, result in updates.items():
        for role, surprisals in result.imitated.items():
            surprisals_by_role[role] += surprisals
        for role, value in result.loss.items():
            metrics[f"loss/{role}/mean"] = metrics.get(f"loss/{role}/mean", 0.0) + value
        for role, loss_metrics in result.metrics.items():
            means.add({f"loss/{role}/{name}": value for name, value in loss_metrics.items()})
        for role, value in result.kl.items():
            both = {f"kl/{role}": value, f"optim/kl/{policy}": value}
            means.add(both if several else {f"kl/{role}": value}, result.tokens[role])
        if result.grad_norm is not None:
            metrics[f"optim/grad_norm/{policy}" if several else "optim/grad_norm"] = result.grad_norm
        if several and result.loss:
            metrics[f"optim/loss/{policy}"] = sum(result.loss.values())
    for role, surprisals in surprisals_by_role.items():
        metrics[f"imitation/{role}/loss"] = fmean(surprisals)
        metrics[f"imitation/{role}/tokens"] = float(len(surprisals))
    return metrics | means.means()


def gradient_shares(batches: Mapping[str, Sequence[RoleBatch]], plan: Plan) -> Metrics:
    """Return `optim/share/{role}`: the role's share, from 0 to 1, of the sum of |advantage| of its policies.

    Args:
        batches: Batches of this step, by policy.
        plan: The plan; roles whose policies have no batch in this step are left out.
    """
    masses = {policy: {batch.role: batch.mass for batch in batches[policy]} for policy in batches}
    metrics: Metrics = {}
    for role in plan.trained:
        policy_masses = [masses[policy] for policy in plan.policies_of(role) if policy in masses]
        if total := sum(sum(mass.values()) for mass in policy_masses):
            metrics[f"optim/share/{role}"] = sum(mass.get(role, 0.0) for mass in policy_masses) / total
    return metrics


def constant_metrics(roles: Iterable[RolePlan], episodes: Sequence[Episode]) -> Metrics:
    """Return `answers/same/{role}`, the share of the commonest answer, and `answers/constant/{role}`.

    The latter is the reward that always giving the best single answer would get. Only roles with discrete
    answers have both.
    """
    tallies = tally_answers(episodes, {role.name: role.allowed_answers for role in roles})
    return {name: fmean(values.values()) for name, values in metrics_of_answers(tallies).items()}


def answer_metrics(roles: Mapping[str, RolePlan], episodes: Sequence[Episode]) -> Metrics:
    """Return metrics that show whether a role's answers collapse.

    They are the metrics of `ROLE_METRICS` that have a measure. `answers/same/{role}` is the share
    of the commonest answer, over a batch of several tasks, whether or not answers are discrete; for
    `answers/constant/{role}` see `constant_metrics`, for `answers/n/{role}` `answer_counts`.

    Args:
        roles: The roles by name.
        episodes: Episodes of a batch.
    """
    metrics: Metrics = {}
    for role in roles:
        trajectories = [t for episode in episodes for t in episode.trajectories if t.name == role]
        measures = {metric.name: metric.measure(trajectories) for metric in ROLE_METRICS if metric.measure}
        metrics |= {name.format(role): value for name, value in measures.items() if value is not None}
    tallies = tally_answers(episodes, {name: role.allowed_answers for name, role in roles.items()})
    shares = {f"{SAME}{role}": tally.share for role, tally in tallies.items()}
    metrics |= {name: share for name, share in shares.items() if share is not None}
    metrics |= answer_counts(roles, episodes)
    return metrics | {name: fmean(values.values()) for name, values in metrics_of_answers(tallies).items()}


@dataclass(frozen=True, slots=True)
class _Sign:
    """Rule for a warning about a role's metric, which must hold for some steps in a row."""

    metric: str
    holds: Callable[[float, float], bool]
    """Function from the metric's first and present values to True where the rule holds."""
    text: str
    steps: int = 5
    shared: bool = False
    """True for a rule that concerns only roles that share their policy."""
    read: Callable[[Mapping[str, float], str], float | None] | None = None
    """Function from (metrics of a step, role) to the value; None reads `metric` of the step."""
    unless_better: bool = False
    """True for a rule that does not concern a role whose reward rose in validation."""

    def value(self, line: Mapping[str, float], role: str) -> float | None:
        """Return a role's value of the metric at a step; None if the step lacks the metric."""
        return self.read(line, role) if self.read else line.get(self.metric.format(role=role))


def taught_share(line: Mapping[str, float], role: str) -> float | None:
    """Return the share of a role's groups that prefer some members to others; None for a step without groups.

    It is 1 for a role with a signal, which gives every group a gradient.
    """
    share = line.get(GroupOutcome.TAUGHT.metric(role))
    by_signal = any(line.get(f"signal/{role}/advantage/{end}") for end in ("min", "max"))
    return 1.0 if share is not None and by_signal else share


_SIGNS: Sequence[_Sign] = (
    _Sign(
        "optim/share/{role}",
        lambda _, now: now > CAPTURED_SHARE,
        f"{{role}} has over {CAPTURED_SHARE:.0%} of the gradient that it shares with {{sharing}}; lower its "
        "`weight`, raise theirs, or give them policies of their own",
        CAPTURED_STEPS,
        shared=True,
    ),
    _Sign(
        "outcome/{role}/taught",
        lambda _, now: now == 0,
        "{role} is dead: none of its groups taught anything; the report's groups say why",
        read=taught_share,
    ),
    _Sign(
        "entropy/{role}",
        lambda first, now: now < ENTROPY_SHARE * first,
        "{role}'s entropy is below a tenth of its first value: its samples are nearly all alike; lower the "
        "learning rate, or stop at the best checkpoint",
        unless_better=True,
    ),
    _Sign(
        "tokens/per_response/{role}",
        lambda first, now: not first / 3 < now < first * 3,
        "{role}'s answers have less than a third, or more than three times, of their first length",
    ),
    _Sign(
        "answers/same/{role}",
        lambda _, now: now > COLLAPSED_SHARE,
        f"{{role}} gives one answer to over {COLLAPSED_SHARE:.0%} of the tasks, so its reward is about that "
        "of a constant answer; if it did not at first, lower the learning rate, or stop at the best "
        "checkpoint",
        2,
    ),
)


class LastingSign(NamedTuple):
    """Warning about a role whose rule holds at the last step that has the metric."""

    metric: str
    text: str
    """Text of the warning and of its remedy, without a full stop."""
    steps: int
    """Number of consecutive steps, up to the last, in which the rule held."""
    needed: int
    """Number of consecutive steps after which the warning is given."""

    def __str__(self) -> str:
        return f"for {self.steps} steps in a row, {self.text}"


def lasting_signs(
    lines: Sequence[Mapping[str, float]], policies: Mapping[str, Collection[str]]
) -> Iterator[LastingSign]:
    """Yield the warnings of roles that capture a shared policy (arXiv 2605.24202), get no gradient, or
    collapse to one answer.

    Args:
        lines: Metrics of all steps so far, oldest first; steps of a stage of imitation do not count.
        policies: Names of the policies of each trained role.
    """
    all_lines, lines = lines, steps_of_rl(lines)
    for role, role_policies in policies.items():
        sharing = [name for name, names in policies.items() if name != role and {*names} & {*role_policies}]
        for sign in _SIGNS:
            metric = sign.metric.format(role=role)
            values = [value for line in lines if (value := sign.value(line, role)) is not None]
            learning_roles = [other for other in sharing if _has_gradient(other, lines, sign.steps)]
            if not values or metric not in lines[-1] or (sign.shared and not learning_roles):
                continue
            if sign.unless_better and _has_risen(role, all_lines):
                continue
            step_count = sum(1 for _ in takewhile(partial(sign.holds, values[0]), reversed(values)))
            if step_count >= sign.steps:
                text = sign.text.format(role=role, sharing=", ".join(sorted(learning_roles)))
                yield LastingSign(metric, text, step_count, sign.steps)


def _has_risen(role: str, lines: Sequence[Mapping[str, float]]) -> bool:
    """Return True if a role's last validation reward is over the first by a standard error of a share."""
    name = f"validation/reward/{role}"
    rewards = [(line[name], line.get(f"validation/n/reward/{role}", 1.0)) for line in lines if name in line]
    return len(rewards) > 1 and rewards[-1][0] - rewards[0][0] > 0.5 / max(rewards[-1][1], 1.0) ** 0.5


def start_warnings(plan: Plan, episodes: Sequence[Episode], when: str) -> Iterator[Note]:
    """Warn of trained roles whose answers the limit of tokens cuts off, and of roles with equal rewards.

    Args:
        plan: The plan of the first step.
        episodes: Episodes of the untrained weights.
        when: Words for when they were made, such as "before training".
    """
    by_role = _by_role(episodes)
    for name, role in plan.trained.items():
        answers = by_role.get(name, [])
        rewards = [t.reward for t in answers if t.reward is not None]
        cut = sum("truncated" in t.remarks for t in answers)
        if len(answers) < LEAST_ANSWERS:
            continue
        if 2 * cut > len(answers):
            text = f"{name}: {cut} of {len(answers)} answers were cut off at max_tokens ({role.max_tokens}); "
            text += f"raise roles.{name}.sampling.max_tokens"
            yield Note(text, "warning", f"cut off/{name}")
        elif role.compares_rewards and role.signal is None and len({*rewards}) == 1:
            n_right, is_judged = sum(t.is_correct for t in answers), name in plan.judged
            outcome = f"{n_right} of {len(answers)} right" if is_judged else f"every reward is {rewards[0]:g}"
            method = role.estimator.name.upper() if role.estimator else "training"
            cause = f"{method} learns from differences, and there is no difference"
            remedy = "take harder tasks" if n_right == len(answers) else NOTHING_RIGHT
            yield Note(f"{name}: {outcome} {when}: {cause}; {remedy}", "warning", f"equal rewards/{name}")


def sign_warnings(lines: Sequence[Mapping[str, float]], plan: Plan) -> Iterator[Note]:
    """Warn of each entry of `lasting_signs` in the step in which it reaches its number of steps, and in no
    later step.

    Args:
        lines: Metrics of all steps so far, oldest first.
        plan: The plan.
    """
    for sign in lasting_signs(lines, {role: plan.policies_of(role) for role in plan.trained}):
        if sign.steps == sign.needed:
            yield Note(str(sign), "warning", sign.metric)


def _has_gradient(role: str, lines: Sequence[Mapping[str, float]], steps: int) -> bool:
    """Return True if a role had a share of the gradient in any of the last `steps` steps that measured the
    share.

    A role without a gradient has another warning sign, and a smaller weight of the roles that share its
    policy does not help it.
    """
    shares = [line[f"optim/share/{role}"] for line in lines if f"optim/share/{role}" in line]
    return any(shares[-steps:])
