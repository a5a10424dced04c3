"""Our episodes as rLLM's, and rLLM's trajectories as ours: the values end up where each side reads them."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import rllm.types as theirs
from rllm.workflows.workflow import TerminationReason

from engine.records import WITHHELD, Episode, NodeId, Step, Trajectory, plain_advantage

Outputs = Mapping[tuple[NodeId, int], Any]
"""rLLM's ModelOutput of each call of a turn; its trainers for verl read it."""


def episode_to_rllm(
    episode: Episode, trained: Collection[str], outputs: Outputs, reason: TerminationReason | None = None
) -> theirs.Episode:
    """One episode. `reason` says in rLLM's words why it ended; None takes the episode's own."""
    metadata = dict(episode.metadata)
    metadata["data_source"] = episode.task.get("data_source") or episode.metadata["spec"]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        termination_reason=reason or TerminationReason(episode.termination_reason.value),
        is_correct=episode.is_correct,
        trajectories=[trajectory_to_rllm(it, outputs, trained) for it in episode.trajectories],
        metrics=dict(episode.metrics),
        metadata=metadata,
    )


def trajectory_to_rllm(
    trajectory: Trajectory, outputs: Outputs, trained: Collection[str] | None
) -> theirs.Trajectory:
    """One trajectory, its reward on itself and on its last step.

    rLLM trains on every step it sees and has no mark to keep one from that, on any backend. So what is to be
    withheld, a masked trajectory or one of a role that is not `trained`, has its steps in its metadata.
    None withholds nothing.
    """
    info = trajectory.info
    steps: list[theirs.Step] = []
    if trained is not None and (trajectory.masked or trajectory.name not in trained):
        info[WITHHELD] = [step.to_dict() for step in trajectory.steps]
    else:
        steps = [
            _step_to_rllm(step, outputs.get((trajectory.node, step.metadata.get("call", 1))))
            for step in trajectory.steps
        ]
    # rLLM wants all rewards of a group or none, and makes 0.0 of None when it commits a trajectory.
    return theirs.Trajectory(
        uid=trajectory.uid,
        name=trajectory.name,
        steps=steps,
        reward=trajectory.reward or 0.0,
        signals=dict(trajectory.terms),
        metadata=info,
    )


def _step_to_rllm(step: Step, output: Any) -> theirs.Step:
    converted = theirs.Step(
        action=step.action,
        reward=step.reward,
        done=step.done,
        metadata=dict(step.metadata),
        thought=step.thought,
        model_response=step.model_response,
        model_output=output,
        advantage=plain_advantage(step.advantage),
        weight_version=step.weight_version,
    )
    converted.chat_completions = [dict(message) for message in step.chat_completions]
    if output is None:
        converted.prompt_ids, converted.response_ids = list(step.prompt_ids), list(step.response_ids)
        converted.logprobs = list(step.logprobs)
    return converted


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
    return Step(
        prompt_ids=step.prompt_ids,
        response_ids=step.response_ids,
        logprobs=step.logprobs,
        chat_completions=step.chat_completions,
        thought=step.thought or "",
        action=step.action,
        model_response=step.model_response or "",
        reward=step.reward,
        done=step.done,
        advantage=step.advantage,
        weight_version=step.weight_version,
        metadata=step.metadata or {},
    )
