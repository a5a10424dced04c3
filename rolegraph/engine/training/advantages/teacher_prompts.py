"""Prompts of teachers, as tokens in the student's chat format.

Input: a call of the student, and the texts of its teacher. Output: the tokens of the same chat with the
teacher's texts instead of the student's. Tokens that the student sampled in an earlier turn of its
conversation are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rolegraph.engine.compile.role_plan import TeacherPlan
from rolegraph.engine.errors import ModelError
from rolegraph.engine.prompts import ChatPrefix, PromptError, TokenizedPrompt
from rolegraph.engine.records import Episode, Message, Step


class StudentChat(Protocol):
    """Chat format of a policy, `ChatFormat`."""

    def prompt(self, messages: Sequence[Message]) -> TokenizedPrompt:
        """Return the tokens of a chat with the opening of the model's turn; raises ModelError."""
        ...

    def extended(self, continued: ChatPrefix, messages: Sequence[Message]) -> TokenizedPrompt:
        """Return the tokens of a chat that continues `continued`, whose tokens are kept; raises
        ModelError."""
        ...

    def turn(self, text: str) -> Sequence[int]:
        """Return the tokens of an answer that the model did not sample."""
        ...


def teacher_prompt(
    teacher: TeacherPlan, variables: Mapping[str, Any], step: Step, episode: Episode, chat: StudentChat
) -> Sequence[int]:
    """Return the tokens of a call's prompt with the teacher's messages in place of the role's.

    Args:
        teacher: The teacher, with a template of its own.
        variables: Names that its templates read.
        step: The only call of a turn of the student.
        episode: The episode.
        chat: Chat format of the student.

    Raises:
        PromptError: A template fails, or the chat template refuses the messages.
    """
    prompt = [*step.chat_completions[:-1]]
    messages = [*prompt]
    if teacher.prompt:
        messages[-1] = {"role": "user", "content": teacher.prompt.render(variables)}
    if teacher.system:
        system: Message = {"role": "system", "content": teacher.system.render(variables)}
        messages[: messages[0]["role"] == "system"] = [system]
    if messages == prompt:
        return step.prompt_ids
    prefix = _chat_before(episode, messages[:-1])
    try:
        return (chat.extended(prefix, messages) if prefix else chat.prompt(messages)).ids
    except ModelError as error:
        raise PromptError(str(error)) from error


def _chat_before(episode: Episode, before: Sequence[Message]) -> ChatPrefix | None:
    """Return the recorded tokens of the conversation before a turn; None for a first turn, and if the system
    message has changed."""
    if not before or before[-1]["role"] != "assistant":
        return None
    steps = (step for trajectory in episode.trajectories for step in trajectory.steps if step.response_ids)
    step_before = next((step for step in steps if [*step.chat_completions] == before), None)
    return step_before and ChatPrefix((*step_before.prompt_ids, *step_before.response_ids), len(before))
