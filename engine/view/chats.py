"""Chats of episodes as rows for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rolegraph.engine.records import Episode, Message, Step, Trajectory
from rolegraph.engine.view.finding import EpisodeFilter


def chats(episode: Episode, where: EpisodeFilter) -> Iterator[dict[str, Any]]:
    """Yield a row for each chat of an episode: its `messages`, and whose they are.

    A chat that a later turn or call continues is part of that one's row. Failed and masked turns have none.
    Answers in a row that are another role's, or of a masked turn, have the `weight` 0 of OpenAI's form.

    Args:
        episode: the episode.
        where: filter; `role`, `low` and `high` also select among the episode's trajectories.
    """
    failed = {
        (f.get("role"), f.get("index"), f.get("round", 1)) for f in episode.metadata.get("failures", ())
    }
    for trajectory in episode.trajectories:
        if where.role not in ("", trajectory.name) or not where.takes(trajectory.reward):
            continue
        good = [
            s for s in trajectory.steps if _is_answer(trajectory, s) and _turn(trajectory, s) not in failed
        ]
        own: set[int] = set()
        for step, following in zip(good, [*good[1:], None], strict=False):
            own.add(len(step.chat_completions) - 1)
            if following is None or not _continues(following, step):
                weighted = [
                    _weighted(message, place in own) for place, message in enumerate(step.chat_completions)
                ]
                own.clear()
                yield {
                    "messages": weighted,
                    "task": episode.task_id,
                    "rollout": episode.rollout,
                    "role": trajectory.name,
                    "index": trajectory.index,
                    "reward": trajectory.reward,
                }


def _weighted(message: Message, is_own: bool) -> dict[str, Any]:
    """Return a message, with weight 0 for an answer that the row's role does not learn."""
    return {**message} if is_own or message["role"] != "assistant" else {**message, "weight": 0}


def _is_answer(trajectory: Trajectory, step: Step) -> bool:
    return bool(step.chat_completions) and not (step.tool or step.masked or trajectory.masked)


def _turn(trajectory: Trajectory, step: Step) -> tuple[str, int, int]:
    return trajectory.name, trajectory.index, step.round


def _continues(step: Step, before: Step) -> bool:
    """Return whether a step's messages begin with all those of the step before, answer included."""
    return list(step.chat_completions[: len(before.chat_completions)]) == list(before.chat_completions)
