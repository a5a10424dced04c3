"""rLLM's rollout engine, wrapped as one of our models."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.models.openai import wire_message
from rolegraph.engine.prompts.call_forms import HERMES, tool_call
from rolegraph.engine.prompts.tools import described
from rolegraph.engine.records import NodeId
from rolegraph.engine.spec import Sampling
from rolegraph.engine.vocabulary import Function, ToolCall

if TYPE_CHECKING:
    from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
    from rllm.workflows.workflow import TerminationReason

_SAMPLING = ("temperature", "top_p", "stop")


def _options(sampling: Sampling) -> dict[str, Any]:
    """Return a call's sampling options for the engine: those that the spec sets, and `max_tokens`.

    The others are rLLM's configuration, whose own `max_tokens` is the longest of all roles.
    """
    written = {name: getattr(sampling, name) for name in _SAMPLING if name in sampling.model_fields_set}
    return {**written, "max_tokens": sampling.max_tokens}


Call = tuple[NodeId, int]
"""Turn, and number of a call in it, from 1."""


def _text_and_calls(output: ModelOutput, tools: Sequence[Function]) -> tuple[str, Sequence[ToolCall]]:
    """Return an answer's text and tool calls: those in the text, else those that rLLM's parser found."""
    text = (output.text if output.content is None else output.content) or ""
    if not tools:
        return text, ()
    text, calls = HERMES.find(text)
    if output.tool_calls and not calls:
        calls = tuple(tool_call(call.name, json.dumps(call.arguments)) for call in output.tool_calls)
    return text, calls


class PolicyModel:
    """rLLM's rollout engine as the model of one episode.

    A TerminationEvent of the engine fails the calling instance alone: with `timeout` for a timeout, else with
    `model_error`. The event's reason is kept in `ended`.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self.outputs: dict[Call, ModelOutput] = {}
        """Last answer to each call."""
        self.ended: dict[NodeId, TerminationReason] = {}
        """Reason of the TerminationEvent of each turn that got no answer."""

    async def complete(self, request: Request) -> Completion:
        """Answer a request; raises ModelError or TimeoutError if the engine terminates the call."""
        from rllm.workflows.workflow import TerminationEvent, TerminationReason

        node = request.id.node
        options = _options(request.sampling)
        if request.seed is not None:
            options["seed"] = request.seed
        if request.tools:
            options["tools"] = described(request.tools)
        messages = list(map(wire_message, request.messages))
        try:
            output = await self._engine.get_model_response(messages, **options)
        except TerminationEvent as event:
            self.ended[node] = event.reason
            if event.reason is TerminationReason.TIMEOUT:
                raise TimeoutError from event
            raise ModelError(f"rLLM's engine ended the call: {event.reason.value}") from event
        self.outputs[node, request.id.call] = output
        text, calls = _text_and_calls(output, request.tools)
        return Completion(
            text=text,
            thought=output.reasoning or "",
            prompt_ids=output.prompt_ids or (),
            response_ids=output.completion_ids or (),
            logprobs=output.logprobs or (),
            finish_reason=output.finish_reason or "stop",
            weight_version=output.weight_version,
            calls=calls,
        )

    async def aclose(self) -> None:
        """Do nothing: rLLM owns the engine."""
