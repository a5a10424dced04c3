"""Chats of episodes as rows for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rolegraph.engine.prompts.markers import escape_families
from rolegraph.engine.records import Episode
from rolegraph.pages.view.finding import EpisodeFilter


def chats(episode: Episode, where: EpisodeFilter) -> Iterator[dict[str, Any]]:
    """Yield a row for each chat of an episode: its `messages`, and the role instance that they belong to.

    A chat that a later turn or call continues is only part of the later row. Failed and masked turns have no
    row. Trainers encode a chat at once, so a space is put into chat markers in its texts. Answers of other
    roles and of masked turns have `weight` 0, as in OpenAI's format.

    Args:
        episode: The episode.
        where: Filter; `role`, `low` and `high` also select among the episode's trajectories.
    """
    failures = episode.failures
    for trajectory in episode.trajectories:
        if trajectory.masked or where.role not in ("", trajectory.name) or not where.takes(trajectory.reward):
            continue
        good_steps = [
            step
            for step in trajectory.steps
            if step.chat_completions and not (step.tool or step.masked)
            if trajectory.node._replace(round=step.round) not in failures
        ]
        learned: set[int] = set()
        for step, next_step in zip(good_steps, [*good_steps[1:], None], strict=False):
            chat = [*step.chat_completions]
            learned.add(len(chat) - 1)  # answers in this row that its role learns
            if next_step is not None and [*next_step.chat_completions[: len(chat)]] == chat:
                continue
            yield {
                "messages": [
                    {
                        **escape_families(message),
                        **({} if index in learned or message["role"] != "assistant" else {"weight": 0}),
                    }
                    for index, message in enumerate(chat)
                ],
                "task": episode.task_id,
                "rollout": episode.rollout,
                "role": trajectory.name,
                "index": trajectory.index,
                "reward": trajectory.reward,
            }
            learned.clear()
