"""The turn of a role with an agent program, which calls the model itself.

Input: the role's prompt. The program writes the chat and decides how often it calls the model; its output is
parsed as the answer. Output: a `NodeResult` with each call of the model, also after a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import Node
from rolegraph.engine.errors import FOREIGN_ERRORS
from rolegraph.engine.limits.answers import ANSWER_TEXT
from rolegraph.engine.models import LimitedModel, Request
from rolegraph.engine.prompts.tools import calls_of
from rolegraph.engine.records import CallId, Failure, FailureName, Message, call_seed
from rolegraph.engine.run.tools import within
from rolegraph.engine.run.turn import (
    EpisodeSession,
    ModelCall,
    NodeResult,
    failure_of,
    keep_answer,
    node_result,
    read_answer,
)
from rolegraph.engine.vocabulary import AgentAnswer, Function, ParseFailure, ToolCall, ToolError, Upstream


async def agent_turn(
    role: RolePlan,
    node: Node,
    model: LimitedModel,
    session: EpisodeSession,
    messages: Sequence[Message] | Failure,
    upstream: Upstream,
) -> NodeResult:
    """Run the agent program of a role, and return the result of the turn; a failure is recorded in the
    result.

    Raises only for cancellation and for errors in this project's code.

    Args:
        role: The node's role, which has an agent.
        node: The node.
        model: The model that the program asks.
        session: The episode's job.
        messages: The rendered prompt; a Failure where it could not be rendered.
        upstream: The results of other nodes that the parser may read.
    """
    if isinstance(messages, Failure):
        return node_result(role, node, role.parser.default, failure=messages)
    assert role.agent is not None
    prompt, attempt = messages[-1]["content"], 0
    while True:
        calls, output = AgentCalls(role, node, model, session, attempt), ""
        try:
            output = await role.agent(prompt, calls.answer)
            if not calls.in_order:  # its output has no tokens, so that it can neither be kept nor trained
                raise ToolError("the agent has never asked its model")
            if len(output) > ANSWER_TEXT.most:
                output = output[: ANSWER_TEXT.most + 1]
                raise ParseFailure(FailureName.MALFORMED_OUTPUT, ANSWER_TEXT.exceeded("the output has"))
            action, chosen_turn = read_answer(role.parser, output, upstream)
            return node_result(role, node, action, output, "", calls.in_order, chosen=chosen_turn)
        except FOREIGN_ERRORS as error:  # a foreign program or parser: its error fails this node only
            failure = failure_of(error, FailureName.TOOL_ERROR, f"no answer {within(role.spec.timeout)}")
        if attempt == role.spec.on_failure.retry:
            return node_result(role, node, role.parser.default, output, "", calls.in_order, failure)
        attempt += 1


class AgentCalls:
    """Calls of the model by one run of an agent program."""

    def __init__(
        self, role: RolePlan, node: Node, model: LimitedModel, session: EpisodeSession, attempt: int
    ) -> None:
        self._role, self._node, self._model, self._session = role, node, model, session
        self._attempt, self._asked = attempt, 0
        self._answered: list[ModelCall] = []
        self._sampled: dict[str, ToolCall] = {}
        """Function calls in the model's answers, by their ids."""

    @property
    def in_order(self) -> list[ModelCall]:
        """Answered calls, in the order in which the program made them."""
        return sorted(self._answered, key=lambda call: call.number)

    async def answer(self, messages: Sequence[Message], functions: Sequence[Function]) -> AgentAnswer:
        """Answer a request of the program.

        If the messages continue an earlier chat of this run, the prompt keeps that chat's tokens.

        Raises:
            ToolError: The program has made the last of the role's `max_calls`.
            ModelError: The model refused, or failed too often.
            ParseFailure: The answer is too long, or has special tokens within it.
            TimeoutError: The call took longer than the role's `timeout`.
        """
        role, node, session = self._role, self._node, self._session
        self._asked = number = self._asked + 1
        if number > role.spec.max_calls:
            raise ToolError(f"the agent asks its model more often than `max_calls`, {role.spec.max_calls}")
        call_before, prefix = self._chat_before(messages), None
        if call_before is not None:
            messages, prefix = _continued(call_before.chat, messages), call_before.chat_prefix
        sampling = role.samplings[node.id.index - 1]
        episode_seed = session.seed_of(sampling)
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, number, self._attempt)
        id = CallId(session.job.task["id"], session.job.rollout, node.id, number, self._attempt)
        request = Request(messages, sampling, seed, id, functions, prefix)
        completion, start, seconds = await self._model.complete(request, role.spec.timeout, session.observe)
        completion = completion._replace(calls=self._identified(number, completion.calls))
        usage = completion.usage
        size = len(completion.response_ids) or usage.get("completion_tokens")
        tokens_before = self._answered[-1].tokens if self._answered else 0
        tokens = None if size is None or tokens_before is None else tokens_before + size
        call = ModelCall(messages, completion, start - session.began, seconds, self._attempt, number, tokens)
        parse_failure = keep_answer(session, call)
        self._answered.append(call)
        if parse_failure is not None:
            raise parse_failure
        is_cut = completion.finish_reason == "length"
        prompt_tokens = len(completion.prompt_ids) or usage.get("prompt_tokens", 0)
        return AgentAnswer(completion.text, completion.calls, is_cut, prompt_tokens, size or 0)

    def _identified(self, number: int, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Return the function calls of answer `number`, each with an id that no other call of this run has.

        The program sends a result back with the id of its call, so the ids must differ; tokens may not
        contain any id.
        """
        calls_with_ids: list[ToolCall] = []
        for index, call in enumerate(calls):
            id = call.id
            if not id or id in self._sampled:
                id = f"c{number:04}{index:04}"  # nine characters, as Mistral's templates require
            calls_with_ids.append(call._replace(id=id))
            self._sampled[id] = calls_with_ids[-1]
        return calls_with_ids

    def _chat_before(self, messages: Sequence[Message]) -> ModelCall | None:
        """Return the earlier call whose chat is the longest beginning of the messages; None if no chat is a
        beginning. Messages are compared by `_seen`."""
        visible = [*map(self._seen, messages)]
        calls_before = [
            call
            for call in self._answered
            if len(call.chat) < len(visible) and [*map(self._seen, call.chat)] == visible[: len(call.chat)]
        ]
        return max(calls_before, key=lambda call: len(call.chat), default=None)

    def _seen(self, message: Message) -> tuple[Any, ...]:
        """Return the parts of a message that a model reads, for comparison: all but the reasoning.

        Clients send an answer's text back without spaces around it, and an empty text as null; calls without
        a name are part of the text. Proxies change the ids of calls. A malformed call is compared only by its
        id, since Anthropic's messages hold no text of arguments.
        """
        calls = [
            (call.id, call.name)
            if (sampled_call := self._sampled.get(call.id)) and sampled_call.malformed
            else (call.name, _normalized(call.arguments), call.malformed)
            for call in _named_calls(message)
        ]
        return message["role"], (message.get("content") or "").strip(), calls


def _named_calls(message: Message) -> list[ToolCall]:
    return [call for call in calls_of(message) if call.name]


def _continued(chat: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """Replace the beginning of the messages by the recorded `chat`, which is equal to it; adjust the call ids
    of later results."""
    ids = {
        sent_call.id: call.id
        for earlier_message, message in zip(chat, messages, strict=False)
        for call, sent_call in zip(_named_calls(earlier_message), _named_calls(message), strict=True)
    }
    later_messages = messages[len(chat) :]
    return [
        *chat,
        *(
            {**m, "tool_call_id": ids[m["tool_call_id"]]} if m.get("tool_call_id") in ids else m
            for m in later_messages
        ),
    ]


def _normalized(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON text that is equal for 1.0 and 1, as JavaScript writes both."""
    return json.dumps(json.loads(json.dumps(arguments), parse_int=float), sort_keys=True)
