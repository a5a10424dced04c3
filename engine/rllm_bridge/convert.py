"""Conversion of our episodes to rLLM's, and of rLLM's trajectories to ours."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import rllm.types as theirs
from rllm.workflows.workflow import TerminationReason

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import WITHHELD, Episode, Step, Trajectory
from rolegraph.engine.rllm_bridge.estimators import name_of
from rolegraph.engine.rllm_bridge.models import Call
from rolegraph.engine.training.credit import members, turn_uid, turns

Outputs = Mapping[Call, Any]
"""rLLM's ModelOutput of each call, which its verl trainer reads."""
Roles = Mapping[str, RolePlan]
"""Trained roles, by name."""


class ExportedTrajectory(NamedTuple):
    """Trajectory to send to rLLM: one of ours, or a turn of it where turns are compared."""

    name: str
    """Name by which rLLM groups it."""
    trajectory: Trajectory
    group: Mapping[str, Any]
    """Fields of the group's key besides task and role, which our grouping hook reads."""


def exported(episode: Episode, trajectory: Trajectory, roles: Roles) -> list[ExportedTrajectory]:
    """Convert a trajectory for rLLM; a role that compares turns gives one trajectory per turn.

    A turn that is in no group is masked.
    """
    role = roles.get(trajectory.name)
    if role is None or not role.compares_turns or not trajectory.steps:
        return [ExportedTrajectory(trajectory.name, trajectory, {})]
    compared = {turn.uid: (turn, key.apart) for key, turn in members(episode, trajectory, role)}
    found: list[ExportedTrajectory] = []
    for steps in turns(trajectory):
        uid = turn_uid(trajectory, steps[0].round)
        masked = trajectory._replace(steps=steps, uid=uid, masked=True)
        found.append(ExportedTrajectory(name_of(role, steps[0].round), *compared.get(uid, (masked, {}))))
    return found


def calls(trajectory: Trajectory) -> Iterator[tuple[Call, Step]]:
    """Yield the identity of the model call (node and number) of each step of a trajectory, with the step."""
    for steps in turns(trajectory):
        node = trajectory.node._replace(round=steps[0].round)
        yield from (((node, number), step) for number, step in enumerate(steps, 1))


def episode_to_rllm(
    episode: Episode, trained: Roles, outputs: Outputs, reason: TerminationReason | None = None
) -> theirs.Episode:
    """Convert an episode; trajectories of roles that ran a tool instead of a model are left out.

    Args:
        episode: the episode.
        trained: the trained roles.
        outputs: rLLM's output of each call.
        reason: rLLM's reason for the end of the episode; None takes the episode's own.
    """
    metadata = dict(episode.metadata)
    metadata["data_source"] = episode.task.get("data_source") or episode.metadata["spec"]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        termination_reason=reason or TerminationReason(episode.termination_reason.value),
        is_correct=episode.is_correct,
        trajectories=[
            trajectory_to_rllm(unit, outputs, trained)
            for trajectory in episode.trajectories
            if not any("tool" in step.metadata for step in trajectory.steps)
            for unit in exported(episode, trajectory, trained)
        ],
        metrics=dict(episode.metrics),
        metadata=metadata,
    )


def trajectory_to_rllm(
    unit: ExportedTrajectory, outputs: Outputs, trained: Roles | None
) -> theirs.Trajectory:
    """Convert a trajectory, with its reward on itself and on its last step: rLLM adds up the steps' rewards.

    rLLM trains on every step of an episode, on any backend, and has no mark to exclude one. So the steps of
    masked turns and of roles that are not trained are put into the metadata.

    Args:
        unit: the trajectory.
        outputs: rLLM's output of each call.
        trained: the trained roles; None withholds no step.
    """
    trajectory, info = unit.trajectory, unit.trajectory.info
    if unit.group:
        info["group"] = dict(unit.group)
    sent, withheld = list(calls(trajectory)), list[Step]()
    if trained is not None:
        whole = trajectory.masked or trajectory.name not in trained
        withheld = [step for _, step in sent if whole or step.masked]
        sent = [] if whole else [(call, step) for call, step in sent if not step.masked]
    if withheld:
        info[WITHHELD] = [step.to_dict() for step in withheld]
    # rLLM requires a reward of all members of a group or of none, and turns None into 0.0 at a commit.
    reward = trajectory.reward or 0.0
    rewards: Sequence[float] = [0.0] * (len(sent) - 1) + [reward]
    return theirs.Trajectory(
        uid=trajectory.uid,
        name=unit.name,
        steps=[
            _step_to_rllm(step._replace(reward=earned), outputs.get(call))
            for (call, step), earned in zip(sent, rewards, strict=False)
        ],
        reward=reward,
        signals=dict(trajectory.terms),
        metadata=info,
    )


def _step_to_rllm(step: Step, output: Any) -> theirs.Step:
    """Convert a step; rLLM takes its token ids and log-probabilities from `output` where there is one."""
    converted = theirs.Step(model_output=output)
    # Set one by one: the constructor would copy every message deeply.
    for name, value in step.to_dict().items():
        if value is not None and not (output is not None and name in _OF_OUTPUT):
            setattr(converted, name, value)
    return converted


_OF_OUTPUT = ("prompt_ids", "response_ids", "logprobs")


def trajectory_from_rllm(trajectory: theirs.Trajectory) -> Trajectory:
    """Convert one of rLLM's trajectories; its lists are shared, not copied."""
    info: Mapping[str, Any] = trajectory.metadata or {}
    return Trajectory(
        name=trajectory.name,
        index=info.get("index", 1),
        steps=tuple(_step_from_rllm(step) for step in trajectory.steps),
        reward=None if trajectory.reward is None else float(trajectory.reward),
        is_correct=info.get("is_correct", False),
        uid=trajectory.uid,
        terms=info.get("signals", {}),
        masked=info.get("masked", False),
    )


def _step_from_rllm(step: theirs.Step) -> Step:
    fields: dict[str, Any] = {name: getattr(step, name) for name in Step._fields}
    fields["metadata"] = step.metadata or {}
    return Step(**fields)
