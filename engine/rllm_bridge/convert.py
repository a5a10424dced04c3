"""Our episodes as rLLM's, and rLLM's trajectories as ours: the values end up where each side reads them."""
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
"""rLLM's ModelOutput of each call; its trainers for verl read it."""
Roles = Mapping[str, RolePlan]
"""Those that are trained, by name."""


class ExportedTrajectory(NamedTuple):
    """What leaves as one of rLLM's trajectories: one of ours, or a turn where turns are compared."""

    name: str
    """Under which rLLM groups it."""
    trajectory: Trajectory
    group: Mapping[str, Any]
    """What sets its group apart, which our grouping hook goes by."""


def units(episode: Episode, trajectory: Trajectory, roles: Roles) -> list[ExportedTrajectory]:
    """What leaves of a trajectory; a turn that is in no group is masked."""
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
    """Each step with the call that it is of."""
    for steps in turns(trajectory):
        node = trajectory.node._replace(round=steps[0].round)
        yield from (((node, number), step) for number, step in enumerate(steps, 1))


def episode_to_rllm(
    episode: Episode, trained: Roles, outputs: Outputs, reason: TerminationReason | None = None
) -> theirs.Episode:
    """One episode. `reason` says in rLLM's words why it ended; None takes the episode's own.

    What was done without a model stays here.
    """
    metadata = dict(episode.metadata)
    metadata["data_source"] = episode.task.get("data_source") or episode.metadata["spec"]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        termination_reason=reason or TerminationReason(episode.termination_reason.value),
        is_correct=episode.is_correct,
        trajectories=[
            unit_to_rllm(unit, outputs, trained)
            for trajectory in episode.trajectories
            if not any("tool" in step.metadata for step in trajectory.steps)
            for unit in units(episode, trajectory, trained)
        ],
        metrics=dict(episode.metrics),
        metadata=metadata,
    )


def unit_to_rllm(unit: ExportedTrajectory, outputs: Outputs, trained: Roles | None) -> theirs.Trajectory:
    """One trajectory, its reward on itself and on its last step: rLLM adds up those of steps.

    rLLM trains on every step it sees and has no mark to keep one from that, on any backend. So what is to be
    withheld, of a masked turn or a role that is not `trained`, is in the metadata. None withholds nothing.
    """
    trajectory, info = unit.trajectory, unit.trajectory.info
    if unit.group:
        info["group"] = dict(unit.group)
    shown, withheld = list(calls(trajectory)), list[Step]()
    if trained is not None:
        whole = trajectory.masked or trajectory.name not in trained
        withheld = [step for _, step in shown if whole or step.masked]
        shown = [] if whole else [(call, step) for call, step in shown if not step.masked]
    if withheld:
        info[WITHHELD] = [step.to_dict() for step in withheld]
    # rLLM wants all rewards of a group or none, and makes 0.0 of None when it commits a trajectory.
    reward = trajectory.reward or 0.0
    rewards: Sequence[float] = [0.0] * (len(shown) - 1) + [reward]
    return theirs.Trajectory(
        uid=trajectory.uid,
        name=unit.name,
        steps=[
            _step_to_rllm(step._replace(reward=earned), outputs.get(call))
            for (call, step), earned in zip(shown, rewards, strict=False)
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
    """One of rLLM's trajectories as ours; its lists are shared, not copied."""
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
