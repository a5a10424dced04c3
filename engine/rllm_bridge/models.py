"""rLLM's rollout engine as a model of ours."""
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
    """What a call asks of the engine: what the spec says, and how long the answer may be.

    The rest is rLLM's configuration, whose own limit is that of the role with the longest answers.
    """
    said = {name: getattr(sampling, name) for name in _SAMPLING if name in sampling.model_fields_set}
    return {**said, "max_tokens": sampling.max_tokens}


Call = tuple[NodeId, int]
"""A turn, and which of its calls."""


def _said(output: ModelOutput, tools: Sequence[Function]) -> tuple[str, Sequence[ToolCall]]:
    """An answer's text and its calls of tools: those that rLLM's parser found, or that stand in the text."""
    text = (output.text if output.content is None else output.content) or ""
    if not tools:
        return text, ()
    text, calls = HERMES.find(text)
    if output.tool_calls and not calls:
        calls = tuple(tool_call(call.name, json.dumps(call.arguments)) for call in output.tool_calls)
    return text, calls


class PolicyModel:
    """rLLM's rollout engine, for one episode.

    An answer that the engine refuses with a TerminationEvent is that instance's failure alone: `timeout` for
    its timeouts, else `model_error`; the event's reason is kept in `ended`.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self.outputs: dict[Call, ModelOutput] = {}
        """The last answer to each call."""
        self.ended: dict[NodeId, TerminationReason] = {}
        """Why the engine gave a turn no answer."""

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError or TimeoutError."""
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
        text, calls = _said(output, request.tools)
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
        """The engine is rLLM's."""
