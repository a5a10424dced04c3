"""The ledger of credit: from the rewards of a step's episodes to the advantage of each call.

`Membership` decides once for each episode which trajectories or turns are compared with each other. Its
`ledger` holds the groups of a step; `add_signals` and `add_advantages` return copies with signals and
advantages added. The last copy gives the datums (`policies/batches.py`, which multiplies each advantage by
the loss weight of policy and role), the metrics, and the rows of the credit table. Pure, except for the
teachers that signals ask.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import TeacherKey
from rolegraph.engine.compile.role_plan import GroupingPlan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import (
    MAIN,
    Advantage,
    Episode,
    GroupKey,
    NodeId,
    Note,
    PolicyOf,
    Step,
    StepMetadata,
    Task,
    Trajectory,
)
from rolegraph.engine.records.credit import CreditRow, Group, LeftOut, Member
from rolegraph.engine.records.episode import NOTHING
from rolegraph.engine.spec import Credit
from rolegraph.engine.training.advantages.estimates import NO_STATES, Estimates, States, estimate
from rolegraph.engine.training.advantages.group_metrics import MIN_MAGNITUDE, Metrics
from rolegraph.engine.training.advantages.signals import SignalResult, apply_signals
from rolegraph.engine.training.advantages.teacher_prompts import StudentChat
from rolegraph.engine.training.advantages.terms import compared_terms, estimator_of

UNUSED = "unused"
"""Key in the metadata of an episode that the update leaves out, with `refill`: the task is not informative,
or enough other tasks are."""
WHOLE = (GroupingPlan(),)
"""Default groupings of a role: its whole trajectories are compared on each task."""
LossWeights = Mapping[tuple[str, str], float]
"""Weight of a role's advantages in a policy's loss, by the names of policy and role."""


class Learner(NamedTuple):
    """Trajectory of a trained role that is a member of at least one group."""

    number: int
    """Number of the trajectory in the step, from 0."""
    episode: Episode
    trajectory: Trajectory
    role: RolePlan
    policy: str
    signal_rounds: Collection[int]
    """Rounds of its turns that are in a group and not masked; empty for a role without a signal."""


class Membership:
    """Groups of the episodes that a step has so far.

    Args:
        roles: The trained roles; trajectories of another role are grouped by task and role.
        policy_of: Function from (role, instance index) to the name of the policy.
    """

    def __init__(
        self, roles: Mapping[str, RolePlan] | None = None, policy_of: PolicyOf = lambda role, index: MAIN
    ) -> None:
        self._roles, self._policy_of = roles or {}, policy_of
        self.episodes: list[Episode] = []
        self._tasks: dict[str, Task] = {}
        self._trajectories = self._before = 0
        self._members: dict[GroupKey, list[Member]] = {}
        self._keyless: list[Member] = []
        self._learners: list[Learner] = []

    def add(self, episodes: Iterable[Episode]) -> Membership:
        """Add episodes to their groups, and return this Membership.

        Trajectories and turns without a step, masked ones, and past selves are in no group.
        """
        for episode in episodes:
            self.episodes.append(episode)
            self._tasks[episode.task_id] = episode.task
            failures = episode.failures
            for trajectory in episode.trajectories:
                self._add(episode, trajectory, failures)
                self._trajectories += 1
        return self

    def _add(self, episode: Episode, trajectory: Trajectory, failures: Collection[NodeId]) -> None:
        role = self._roles.get(trajectory.name)
        self._before += len(trajectory.turns) if role is not None and role.compares_turns else 1
        policy = self._policy_of(trajectory.name, trajectory.index)
        members: list[Member] = []
        for key, member in comparisons(episode, trajectory, role, policy, failures, self._trajectories):
            if key is None:
                self._keyless.append(member)
            else:
                self._members.setdefault(key, []).append(member)
                members.append(member)
        if role is not None and members:
            rounds = set[int]()
            if role.signal is not None:
                masked_rounds = {step.round for step in trajectory.steps if step.masked}
                rounds = {step.round for member in members for step in member.steps} - masked_rounds
            self._learners.append(Learner(self._trajectories, episode, trajectory, role, policy, rounds))

    def groups(self) -> list[Group]:
        """Return the groups, in the order in which they first occur."""
        return [
            _group(number, key, members, name, self._roles.get(name), self._tasks)
            for number, (key, members) in enumerate(self._members.items())
            for name in dict.fromkeys([key.role] if key.role else [member.role for member in members])
        ]

    def informative(self) -> list[str]:
        """Return the ids of the tasks that have a group with unequal rewards or terms, in the order of the
        episodes.

        Groups of a role without an estimator do not count.
        """
        informative_ids: set[str] = set()
        for group in self.groups():
            role = self._roles.get(group.role)
            if group.too_small or role is None or not role.compares_rewards:
                continue
            rewards = [member.reward for member in group.members if member.reward is not None]
            reward_lists = [*compared_terms(role, group.members).values()] or [rewards]
            if rewards and any(max(values) - min(values) >= MIN_MAGNITUDE for values in reward_lists):
                informative_ids.update(member.task for member in group.members)
        return [task for task in dict.fromkeys(e.task_id for e in self.episodes) if task in informative_ids]

    def ledger(
        self,
        kept: Collection[str] | None = None,
        version: Callable[[Trajectory], int | None] = lambda trajectory: None,
    ) -> Ledger:
        """Return the ledger of all episodes, without advantages.

        Args:
            kept: Ids of the tasks that the update uses; None uses all.
            version: Function that returns how many updates a trajectory's policy has had, or None where the
                staleness of its steps is not recorded.
        """
        groups = self.groups()
        sizes = [*map(len, self._members.values())]
        small_groups = Counter(f"groups/too_small/{group.role}" for group in groups if group.too_small)
        keyless_counts = Counter(f"groups/no_key/{member.role}" for member in self._keyless)
        metrics = {
            "groups/num_trajs_before_filter": float(self._before),
            "groups/num_trajs_after_filter": float(sum(sizes)),
            "groups/num_groups": float(len(sizes)),
            "groups/avg_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
            "groups/max_group_size": float(max(sizes, default=0)),
            "groups/min_group_size": float(min(sizes, default=0)),
            **{name: float(count) for name, count in (small_groups + keyless_counts).items()},
        }
        ledger = Ledger(self.episodes, self._roles, self._policy_of, groups, self._keyless, self._learners)
        ledger = replace(ledger, group_metrics=metrics, kept=kept, version=version)
        return replace(ledger, loss_weights=_loss_weights(ledger.used))


def comparisons(
    episode: Episode,
    trajectory: Trajectory,
    role: RolePlan | None,
    policy: str = MAIN,
    failures: Collection[NodeId] = (),
    number: int = 0,
) -> Iterator[tuple[GroupKey | None, Member]]:
    """Yield the members that a trajectory gives to each of its role's groupings, with their groups' keys.

    A masked turn is a part of its whole trajectory, but no member by itself; datums leave its tokens out.

    Args:
        episode: The trajectory's episode.
        trajectory: The trajectory.
        role: Its role; None compares the whole trajectory.
        policy: Policy of the trajectory.
        failures: Turns of the episode that failed.
        number: Number of the trajectory in the step.

    Yields:
        The key and the member; None for a key that cannot be computed.
    """
    if role is not None and trajectory.index in role.frozen:
        return
    for position, grouping in enumerate(WHOLE if role is None else role.groupings):
        for start, end, reward in _compared(trajectory, grouping):
            step, round, is_failed = trajectory.steps[start], 0, trajectory.failure is not None
            if grouping.of_turns:
                round = step.round
                is_last = end == len(trajectory.steps)
                is_failed = (is_failed and is_last) or (NodeId(*trajectory.node[:2], round) in failures)
            member = Member(
                task=episode.task_id,
                rollout=episode.rollout,
                trajectory=trajectory,
                first=start,
                last=end,
                reward=reward,
                round=round,
                failed=is_failed,
                number=number,
            )
            yield _key(episode.task_id, trajectory.name, policy, position, grouping, step), member


def _compared(trajectory: Trajectory, grouping: GroupingPlan) -> list[tuple[int, int, float | None]]:
    """Return (index of the first step, index after the last step, reward) for each member that a trajectory
    has in a grouping.

    The member is the whole trajectory, or each unmasked turn, oldest first, with the turn's credit as reward.
    """
    if not grouping.of_turns:
        is_compared = trajectory.by_model and not trajectory.masked
        return [(0, len(trajectory.steps), trajectory.reward)] if is_compared else []
    spans: list[tuple[int, int]] = []
    end = 0
    for turn in trajectory.turns:
        start, end = end, end + len(turn)
        if not any(step.masked for step in turn):
            spans.append((start, end))
    if grouping.credit.kind != "trajectory":
        rewards = credited([trajectory.steps[end - 1].reward for _, end in spans], grouping.credit)
    elif trajectory.reward is None or trajectory.masked:
        return []
    else:
        rewards = [trajectory.reward] * len(spans)
    return [(start, end, reward) for (start, end), reward in zip(spans, rewards, strict=True)]


def _key(
    task: str, role: str, policy: str, part: int, grouping: GroupingPlan, first: Step
) -> GroupKey | None:
    """Return the key of the group in which `grouping` puts a member; None if the key cannot be computed.

    `first` is the member's first Step, which has the prompt and the digests of expressions.
    """
    task = grouping.over.task_of(task)
    match grouping.by:
        case "task":
            return GroupKey(task, role, policy, part=part)
        case "turn":
            return GroupKey(task, role, policy, first.round, part=part)
        case "prompt":
            return GroupKey(task, role, policy, prompt=_digest(first), part=part)
        case "episode":  # one group for all roles, wherever their lists name it
            return GroupKey(task, "", policy)
        case _:
            digest = (first.metadata.get("by") or {}).get(grouping.by)
            return None if digest is None else GroupKey(task, role, policy, by=digest, part=part)


def _digest(step: Step) -> str:
    """Return a digest of a step's prompt: its messages without the last, which is the answer."""
    prompt = json.dumps([dict(message) for message in step.chat_completions[:-1]], sort_keys=True)
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def _group(
    number: int,
    key: GroupKey,
    members: Sequence[Member],
    name: str,
    role: RolePlan | None,
    tasks: Mapping[str, Task],
) -> Group:
    """Return a Group, set up for the estimator of role `name`."""
    if role is None:
        return Group(key, members, name, number)
    state_keys: Mapping[str, str] = {}
    if role.state_key is not None:
        state_keys = {task: role.state_key.of(tasks[task]) for task in {member.task for member in members}}
    spans_roles = [grouping.by == "episode" for grouping in role.groupings]
    grouping = role.groupings[key.part if key.role else spans_roles.index(True)]
    # The compiler refuses a spec whose full groups are too small, so skips and failures shrank this one.
    return Group(
        key,
        members,
        name,
        number,
        too_small=len(members) < role.min_group,
        by=grouping.by,
        over=grouping.over,
        weight=grouping.weight if len(role.groupings) > 1 else 1.0,
        in_list=len(role.groupings) > 1,
        state_keys=tuple(state_keys[member.task] for member in members) if state_keys else (),
    )


def credited(rewards: Sequence[float], credit: Credit) -> list[float]:
    """Compute each turn's credit, a discounted return or a margin, from the rewards of all unmasked turns,
    oldest first."""
    if credit.kind == "margin":
        totals = accumulate(rewards, initial=0.0)
        return [reward - total / max(1, n) for n, (reward, total) in enumerate(zip(rewards, totals))]  # noqa: B905
    discount = credit.discount or 0.0
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + (discount * returns[-1] if returns else 0.0))
    return returns[::-1]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Groups of one training step, with the signals and advantages computed so far."""

    episodes: Sequence[Episode]
    roles: Mapping[str, RolePlan]
    """Trained roles."""
    policy_of: PolicyOf
    """Function from (role, instance index) to the name of the policy."""
    groups: Sequence[Group]
    keyless: Sequence[Member]
    """Members without a group, because their group's key cannot be computed."""
    learners: Sequence[Learner]
    """Trajectories that are compared, in the order of the episodes."""
    group_metrics: Metrics = field(default_factory=Metrics)
    """`groups/*` metrics of rLLM's `transform.py`, with the groups that are too small and the members without
    a key, by role."""
    kept: Collection[str] | None = None
    """Tasks that the update uses; None uses all."""
    version: Callable[[Trajectory], int | None] = lambda trajectory: None
    """Function that returns how many updates a trajectory's policy has had."""
    signals: SignalResult = field(default_factory=SignalResult)
    estimates: Estimates = field(default_factory=Estimates)
    """Advantages of `groups`."""
    partial_sums: Mapping[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Weighted sum of a member's advantages, by (number of the trajectory, round of the turn); round 0 stands
    for the whole trajectory. The advantage of a model call is the sum of both."""
    token_advantages: Mapping[tuple[int, int], Sequence[float]] = field(
        default_factory=dict[tuple[int, int], Sequence[float]]
    )
    """Advantages [T] of a signal without an estimator, by number of the trajectory and of the Step."""
    loss_weights: LossWeights = field(default_factory=dict[tuple[str, str], float])
    """Weight of a role's advantages in the loss of a policy, by (policy, role)."""

    @property
    def tasks(self) -> set[str]:
        """Ids of all tasks that the step has episodes of."""
        return {episode.task_id for episode in self.episodes}

    @property
    def used_tasks(self) -> set[str]:
        """Ids of the tasks whose episodes the policy update uses."""
        return self.tasks if self.kept is None else {*self.kept}

    @property
    def used(self) -> list[Learner]:
        """Learners that the policy update uses."""
        tasks = self.used_tasks
        return [learner for learner in self.learners if learner.episode.task_id in tasks]

    @property
    def warnings(self) -> list[Note]:
        """Warnings of signals and estimators in this step."""
        return [*self.signals.warnings, *self.estimates.warnings]

    def filled(self, number: int, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory with the advantages, signals and staleness of its Steps.

        Args:
            number: Number of the trajectory in the step.
            trajectory: The trajectory.
        """
        details, additions = self.signals.details.get(trajectory.uid), self.signals.added.get(trajectory.uid)
        version = self.version(trajectory)
        trajectory_sum, filled_steps = self.partial_sums.get((number, 0)), list[Step]()
        for index, step in enumerate(trajectory.steps):
            turn_sum = self.partial_sums.get((number, step.round))
            advantage: Advantage | None = step.advantage
            if (tokens := self.token_advantages.get((number, index))) is not None:
                advantage = tokens
            elif sums := [value for value in (trajectory_sum, turn_sum) if value is not None]:
                advantage = sum(sums[1:], sums[0])  # a lone -0.0 stays what it is
            detail: StepMetadata = details[index] if details else {}
            if additions is not None and advantage is not None:
                # A demonstration replaces the answer, so its weight replaces the advantage.
                is_replaced = "demonstration" in detail
                advantage = additions[index] if is_replaced else _plus(advantage, additions[index])
            metadata: StepMetadata = {**step.metadata, **detail}
            if version is not None and step.weight_version is not None:
                metadata["staleness"] = version - step.weight_version
            filled_steps.append(step._replace(advantage=advantage, metadata=metadata))
        return trajectory._replace(steps=tuple(filled_steps))

    def filled_episodes(self) -> Iterator[Episode]:
        """Yield the episodes with their advantages; those that the update leaves out are marked `unused`."""
        tasks, number = self.used_tasks, 0
        for episode in self.episodes:
            trajectories = [self.filled(number + n, t) for n, t in enumerate(episode.trajectories)]
            number += len(trajectories)
            filled_episode = episode._replace(trajectories=tuple(trajectories))
            if episode.task_id not in tasks:
                filled_episode = filled_episode._replace(metadata={**episode.metadata, UNUSED: True})
            yield filled_episode


def _plus(advantage: Advantage, signal: Advantage) -> Advantage:
    """Add a signal's advantage to an estimator's; return a number, or a list with one for each token."""
    assert isinstance(advantage, float)
    return [advantage + value for value in signal] if isinstance(signal, Sequence) else advantage + signal


async def add_signals(
    ledger: Ledger,
    plan: Plan,
    teachers: Mapping[TeacherKey, LimitedModel],
    chats: Mapping[str, StudentChat],
) -> Ledger:
    """Return the ledger with the advantages that teachers give, token by token; raises the errors of
    `apply_signals`."""
    rounds_by_uid = {learner.trajectory.uid: learner.signal_rounds for learner in ledger.learners}
    return replace(ledger, signals=await apply_signals(plan, ledger.episodes, teachers, chats, rounds_by_uid))


def add_advantages(ledger: Ledger, states: States = NO_STATES) -> Ledger:
    """Return the ledger with the estimators' advantages, and their sum for each member.

    Args:
        ledger: The ledger, with signals.
        states: States of the estimators after the previous step.

    Raises:
        AdvantageError: As `estimate` does.
    """
    estimators = {name: estimator_of(role) for name, role in ledger.roles.items()}
    estimates = estimate(ledger.groups, estimators, ledger.signals.advantages, states)
    sums: dict[tuple[int, int], float] = {}
    tokens: dict[tuple[int, int], Sequence[float]] = {}
    for group, group_estimate in zip(ledger.groups, estimates.groups, strict=True):
        for index in group.places if group_estimate.advantages else ():
            member, value = group.members[index], group_estimate.advantages[index]
            target = member.number, member.round
            sums[target] = sums.get(target, 0.0) + group.weight * value if group.in_list else value
        for member, step_advantages in zip(group.members, group_estimate.token_advantages, strict=False):
            tokens |= {(member.number, member.first + n): values for n, values in enumerate(step_advantages)}
    return replace(ledger, estimates=estimates, partial_sums=sums, token_advantages=tokens)


def _loss_weights(learners: Iterable[Learner]) -> LossWeights:
    """Return the weight of a role's advantages in a policy's loss.

    Losses are sums over tokens; dividing each by the weights of all trajectories that the policy was compared
    in, those without a gradient included, makes its loss a weighted mean that does not depend on the batch's
    size.
    """
    policy_weights: dict[str, float] = {}
    role_weights: dict[tuple[str, str], float] = {}
    for learner in learners:
        weight = learner.role.spec.weight
        policy_weights[learner.policy] = policy_weights.get(learner.policy, 0.0) + weight
        role_weights[learner.policy, learner.role.name] = weight
    return {key: weight / (policy_weights[key[0]] or 1.0) for key, weight in role_weights.items()}


def credit_rows(ledger: Ledger, step: int = 0) -> Iterator[CreditRow]:
    """Yield the rows of a step's credit table: for each trajectory its members or the reason why it has none,
    then its signals.

    Args:
        ledger: The ledger, with advantages.
        step: Number of the training step.
    """
    indices: dict[int, list[tuple[int, int]]] = {}
    for number, group in enumerate(ledger.groups):
        for index in group.places:
            indices.setdefault(group.members[index].number, []).append((number, index))
    keyless_members: dict[int, list[Member]] = {}
    for member in ledger.keyless:
        keyless_members.setdefault(member.number, []).append(member)
    tasks, number = ledger.used_tasks, -1
    for episode in ledger.episodes:
        for trajectory in episode.trajectories:
            number += 1
            if (role := ledger.roles.get(trajectory.name)) is None:
                continue
            policy = ledger.policy_of(trajectory.name, trajectory.index)
            weight = ledger.loss_weights.get((policy, role.name)) if episode.task_id in tasks else None
            ungrouped = CreditRow.in_no_group(step, episode, trajectory, policy)
            weighted = ungrouped._replace(loss_weight=weight)
            rows = [_compared_row(ledger, weighted, *index) for index in indices.get(number, ())]
            yield from rows
            reason = LeftOut.of(trajectory, is_past=trajectory.index in role.frozen)
            if reason is not None and all(row.low is None for row in rows):
                yield ungrouped._replace(left_out=reason)
            else:
                yield from _masked_rows(ungrouped, episode, trajectory)
            for member in keyless_members.get(number, ()):
                turn = {"round": member.round, "reward": member.reward, "failed": member.failed}
                yield ungrouped._replace(left_out=LeftOut.NO_KEY, tokens=0, **turn)
            yield from _signal_rows(ledger, trajectory, weighted)


def _masked_rows(alone: CreditRow, episode: Episode, trajectory: Trajectory) -> Iterator[CreditRow]:
    """Yield a credit row for each masked turn of a trajectory, made from the row of the whole trajectory."""
    for turn in trajectory.turns:
        if any(step.masked for step in turn):
            node = trajectory.node._replace(round=turn[0].round)
            is_failed = node in episode.failures or (alone.failed and turn[-1] is trajectory.steps[-1])
            token_count = sum(call.response_tokens for call in turn)
            masked_row = alone._replace(left_out=LeftOut.MASKED, reward=None, terms=NOTHING)
            yield masked_row._replace(round=node.round, tokens=token_count, failed=is_failed)


def _compared_row(ledger: Ledger, whole: CreditRow, number: int, place: int) -> CreditRow:
    """Return the credit row of one member of a group.

    Args:
        ledger: The ledger, with advantages.
        whole: Row of the member's whole trajectory.
        number: Index of the group in the ledger.
        place: Index of the member in the group.
    """
    group, estimate = ledger.groups[number], ledger.estimates.groups[number]
    member, values = group.members[place], estimate.advantages[place : place + 1]
    if member_advantages := estimate.token_advantages:
        values = [value for step_advantages in member_advantages[place] for value in step_advantages]
    baselines, token_count = estimate.baselines, whole.tokens
    if member.round:
        token_count = sum(step.response_tokens for step in member.steps)
    return whole._replace(
        round=member.round,
        source="signal" if member_advantages else "estimator",
        left_out=LeftOut.TOO_SMALL if group.too_small else None,
        group=group.number,
        grouping=group.key.part if group.key.role else None,
        by=group.by,
        over=group.over,
        reward=member.reward,
        terms=NOTHING if member.round else whole.terms,
        baseline=baselines[place] if baselines else None,
        advantage=sum(values) / len(values) if values else None,
        low=min(values, default=None),
        high=max(values, default=None),
        weight=group.weight,
        tokens=token_count,
        failed=member.failed,
    )


def _signal_rows(ledger: Ledger, trajectory: Trajectory, whole: CreditRow) -> Iterator[CreditRow]:
    """Yield a credit row for each call of a role with both a signal and an estimator; a demonstration
    replaces the call's answer."""
    additions, details = ledger.signals.added.get(trajectory.uid), ledger.signals.details.get(trajectory.uid)
    if additions is None or details is None:
        return
    for call, (step, value, detail) in enumerate(zip(trajectory.steps, additions, details, strict=True), 1):
        if detail:
            demonstration = detail.get("demonstration")
            values = value if isinstance(value, Sequence) else (value,)
            yield whole._replace(
                round=step.round,
                call=call,
                source="signal" if demonstration is None else "demonstration",
                reward=None,
                terms=NOTHING,
                gate=detail.get("gate"),
                tokens=step.response_tokens if demonstration is None else len(demonstration["ids"]),
                advantage=sum(values) / len(values) if values else None,
                low=min(values, default=None),
                high=max(values, default=None),
            )
