"""Conversion of our trajectories to rLLM's, and of rLLM's to ours."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import WITHHELD, Episode, GroupKey, NodeId, Step, Trajectory
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.records.episode import NOTHING
from rolegraph.engine.training.advantages.ledger import comparisons
from rolegraph.integrations.rllm.estimators import name_of

if TYPE_CHECKING:
    import rllm.types as theirs

Call = tuple[NodeId, int]
"""Identity of a model call: the turn's node, and the call's number in the turn, from 1."""
Outputs = Mapping[Call, Any]
"""rLLM's ModelOutput of each call, which its verl trainer reads."""
Roles = Mapping[str, RolePlan]
"""Trained roles, by name."""


def calls(trajectory: Trajectory) -> Iterator[tuple[Call, Step]]:
    """Yield ((node, number of the call in its turn), step) for each step of a trajectory."""
    for steps in trajectory.turns:
        node = NodeId(trajectory.name, trajectory.index, steps[0].round)
        yield from (((node, number), step) for number, step in enumerate(steps, 1))


def trajectories_to_rllm(
    episode: Episode, trajectory: Trajectory, trained: Roles, outputs: Outputs, *, withhold: bool = True
) -> Iterator[theirs.Trajectory]:
    """Convert a trajectory; if a role compares turns, each turn becomes one of rLLM's trajectories.

    rLLM trains on every step of an episode, on every backend, and has no mark that excludes a step. So the
    steps of masked turns, of turns without a group and of untrained roles are put into the metadata. The
    reward is on the trajectory and on its last step, because rLLM adds up the steps' rewards.

    Args:
        episode: The trajectory's episode.
        trajectory: The trajectory.
        trained: The trained roles.
        outputs: Output of each call, as rLLM returns it.
        withhold: False to keep all steps in the trajectory.
    """
    import rllm.types as theirs

    role = trained.get(trajectory.name)
    units: list[tuple[str, Trajectory, Mapping[str, Any]]] = [(trajectory.name, trajectory, NOTHING)]
    if role is not None and role.compares_turns and trajectory.steps:
        by_turn = {
            member.round: (member, key.apart)
            for key, member in comparisons(episode, trajectory, role, failures=episode.failures)
            if key is not None
        }
        units = [
            (name_of(role, steps[0].round), *_turn(trajectory, steps, by_turn.get(steps[0].round)))
            for steps in trajectory.turns
        ]
    for name, unit, group_data in units:
        hides_steps = withhold and (role is None or unit.masked)
        sent_calls: list[tuple[Call, Step]] = []
        withheld_steps: list[dict[str, Any]] = []
        for call, step in calls(unit):
            if hides_steps or (withhold and step.masked):
                withheld_steps.append(step.to_dict())
            else:
                sent_calls.append((call, step))
        # rLLM requires a reward of all members of a group or of none, and turns None into 0.0 at a commit.
        reward = unit.reward or 0.0
        rllm_steps = [_step_to_rllm(step, outputs.get(call)) for call, step in sent_calls]
        if rllm_steps:
            rllm_steps[-1].reward = reward
        yield theirs.Trajectory(
            uid=unit.uid,
            name=name,
            steps=rllm_steps,
            reward=reward,
            signals=dict(unit.terms),
            metadata={**unit.info, **group_data, **({WITHHELD: withheld_steps} if withheld_steps else {})},
        )


def _turn(
    trajectory: Trajectory, steps: Sequence[Step], compared: tuple[Member, Mapping[str, Any]] | None
) -> tuple[Trajectory, Mapping[str, Any]]:
    """Return (the turn as a Trajectory with its reward, metadata for the grouping hook).

    A turn without a group is masked. Only the last turn gets the trajectory's verdict and terms. The metadata
    has the fields of the group's key besides task and role, and whether the turn failed.

    Args:
        trajectory: The turn's trajectory.
        steps: Steps of the turn.
        compared: Group member of the turn, with the fields of the group's key; None without a group.
    """
    uid, is_last = f"{trajectory.uid}@{steps[0].round}", steps[-1] is trajectory.steps[-1]
    if compared is None:
        return trajectory._replace(steps=steps, uid=uid, masked=True), NOTHING
    member, group_fields = compared
    turn_source = trajectory if is_last else Trajectory(trajectory.name, trajectory.index)
    turn_metadata: dict[str, Any] = {"group": group_fields} if group_fields else {}
    turn_metadata |= {"failed": True} if member.failed else {}
    return turn_source._replace(steps=steps, reward=member.reward, uid=uid, masked=False), turn_metadata


def _step_to_rllm(step: Step, output: Any) -> theirs.Step:
    """Convert a step to rLLM's Step without its reward; rLLM reads ids and log-probabilities from `output` if
    set."""
    import rllm.types as theirs

    omitted_fields = _APART if output is None else _APART | _OF_OUTPUT
    fields = {
        name: value
        for name, value in zip(Step._fields, step, strict=True)
        if value is not None and name not in omitted_fields
    }
    rllm_step = theirs.Step(model_output=output, **fields)
    # Set apart: the constructor would copy every message deeply.
    rllm_step.chat_completions = [*step.chat_completions]
    return rllm_step


_APART = frozenset({"chat_completions", "reward"})
_OF_OUTPUT = frozenset({"prompt_ids", "response_ids", "logprobs"})


def trajectory_from_rllm(trajectory: theirs.Trajectory) -> Trajectory:
    """Convert one of rLLM's trajectories; its lists are shared, not copied."""
    info: Mapping[str, Any] = trajectory.metadata or {}
    return Trajectory(
        name=trajectory.name,
        index=info.get("index", 1),
        steps=tuple(map(_step_from_rllm, trajectory.steps)),
        reward=None if trajectory.reward is None else float(trajectory.reward),
        is_correct=info.get("is_correct", False),
        uid=trajectory.uid,
        terms=info.get("signals", {}),
        masked=info.get("masked", False),
    )


def group_from_rllm(key: GroupKey, group: theirs.TrajectoryGroup) -> Group:
    """Convert one of rLLM's groups, for our estimators."""
    members: list[Member] = []
    for index, (trajectory, metadata) in enumerate(zip(group.trajectories, group.metadata, strict=True)):
        ours, info = trajectory_from_rllm(trajectory), trajectory.metadata or NOTHING
        rollout = int(metadata.get("rollout_idx", index))
        round = ours.steps[0].round if ours.steps else 0
        member_fields = key.task, rollout, ours, 0, len(ours.steps), ours.reward, round
        has_failed = not info.keys().isdisjoint(("failed", "failure"))
        members.append(Member(*member_fields, failed=has_failed, number=index))
    return Group(key, members, key.role)


def _step_from_rllm(step: theirs.Step) -> Step:
    fields: dict[str, Any] = {name: getattr(step, name) for name in Step._fields}
    fields["metadata"] = step.metadata or {}
    return Step(**fields)
