"""Episodes as OpenTelemetry spans, by the semantic conventions for generative AI (version 1.41).

An episode is a trace: `invoke_workflow`; below it an `invoke_agent` for each turn of a role that asks a
model, and an `execute_tool` for each turn of a role that runs a tool; below an agent a `chat` for each model
call and an `execute_tool` for each tool call. Other values are attributes `rolegraph.*`.

Spans hold names, times, counts and rewards. Texts are added only on request, and only those that may leave
(`engine/compile/leaving.py`). Only the name of a failure is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from rolegraph.engine.compile.leaving import DisclosureRule, disclosure_rule, without_hidden
from rolegraph.engine.records import Episode, Message, RunInfo, Step, TerminationReason
from rolegraph.engine.records.episode import NOTHING
from rolegraph.engine.secrets import without_secrets
from rolegraph.engine.shipped import BASE_NAME
from rolegraph.engine.spec import ModelRef, Spec
from rolegraph.pages.view.turns import TurnRecord, turns

TEXT = 32_000
"""Largest number of characters of the texts in one attribute; of a longer chat the last messages are kept."""
LONGEST = 1e9
"""Latest start of a span, in seconds from the episode's start, because an untrusted file may hold any
number."""
LATEST = 9e9
"""Latest start of an episode, in seconds from 1970, because OTLP counts nanoseconds in 64 bits."""

Attributes = Mapping[str, str | bool | int | float | Sequence[str] | None]
"""Attributes of a span by name; an attribute with the value None is not sent."""


Times = tuple[float, float]
"""Start and end, in seconds from the start of the episode."""


class Span(NamedTuple):
    """One operation of an episode, with its times and attributes, before it is converted to OpenTelemetry."""

    operation: str
    """`invoke_workflow`, `invoke_agent`, `chat` or `execute_tool`."""
    subject: str
    """Name of the workflow, role, model or tool; empty if unknown."""
    trace_id: int
    span_id: int
    parent_id: int | None
    start: int
    """Start in nanoseconds since 1970; `end` has the same unit."""
    end: int
    attributes: Mapping[str, str | bool | int | float | Sequence[str]]
    error: str = ""
    """Name of the failure; empty without a failure."""

    @property
    def name(self) -> str:
        """Name of the span, such as `invoke_agent solver`."""
        return f"{self.operation} {self.subject}".rstrip()


@dataclass(frozen=True)
class TracedRun:
    """Facts about a run that its episodes' spans need: folder, settings, spec."""

    folder: str
    """Name of the run's folder."""
    info: RunInfo
    spec: Spec | None
    """The spec; None if it cannot be read, in which case no text of a role is sent."""

    @cached_property
    def rule(self) -> DisclosureRule:
        """Rule that decides which values of the episodes may leave."""
        return disclosure_rule(self.spec, self.info.is_hidden)

    def model_of(self, role: str, index: int) -> ModelRef | None:
        """Return the model that answers for a role's instance; None if unknown."""
        if self.spec is None or (role_spec := self.spec.roles.get(role)) is None:
            return None
        if role_spec.model is not None and role_spec.policy is None:
            return role_spec.model
        policies = self.info.roles[role].policies if role in self.info.roles else ()
        policy = self.spec.policies.get(policies[(index - 1) % len(policies)]) if policies else None
        return (policy and policy.model) or self.spec.model


def trace_id(episode: Episode) -> int:
    """Return the id of an episode's trace, which does not change between exports."""
    key = (episode.metadata.get("hash"), episode.metadata.get("started_at"), episode.id)
    return int.from_bytes(hashlib.blake2b(repr(key).encode("utf-8", "replace"), digest_size=16).digest())


def is_sampled(episode: Episode, share: float) -> bool:
    """Return True if an episode is among the given share of all episodes, chosen by trace id."""
    return trace_id(episode) % 2**32 < share * 2**32


def spans_of(
    episode: Episode, run: TracedRun, *, content: bool = False, split: str = "", step: int | None = None
) -> list[Span]:
    """Return the spans of an episode, the root first.

    Args:
        episode: The episode.
        run: Run of the episode.
        content: True to add texts: visible task fields, messages, arguments and results of tools.
        split: `train` or `validation` in a training.
        step: Number of the training step.
    """
    return [*_Trace(without_hidden(episode, run.rule), run, content=content).spans(split, step)]


class _Trace:
    """Builder of the spans of one episode."""

    def __init__(self, episode: Episode, run: TracedRun, *, content: bool) -> None:
        self.episode, self.run, self.content = episode, run, content
        self.id, self._numbers = trace_id(episode), count()
        start_seconds = _started_at(episode) or (run.info.started or datetime.now(UTC)).timestamp()
        self.begin = int(start_seconds * 1e9)

    def spans(self, split: str, step: int | None) -> Iterator[Span]:
        """Yield the episode's root span, then for each turn its span and those of its calls and tools."""
        episode, info, reason = self.episode, self.run.info, self.episode.termination_reason
        turn_times = [(turn, turn.span or (0.0, turn.seconds)) for turn in turns(episode).values()]
        episode_seconds = max((end for _, (_, end) in turn_times), default=0.0)
        is_shown = self.content and episode.task
        texts = _cut(json.dumps(episode.task, ensure_ascii=False, default=str)) if is_shown else None
        attributes: Attributes = {
            "gen_ai.workflow.name": info.name,
            "rolegraph.run": self.run.folder,
            "rolegraph.spec.hash": info.hash,
            "rolegraph.task.id": episode.task_id,
            "rolegraph.rollout": episode.rollout,
            "rolegraph.correct": episode.is_correct,
            "rolegraph.split": split or None,
            "rolegraph.step": step,
            "rolegraph.times": None if _started_at(episode) else "from the start of the run",
            "rolegraph.task": texts,
            **{f"rolegraph.metrics.{name}": value for name, value in episode.metrics.items()},
        }
        error = "" if reason is TerminationReason.ENV_DONE else reason.value
        root = self.span("invoke_workflow", info.name, None, (0.0, episode_seconds), attributes, error)
        yield root
        for turn, times in turn_times:
            # A turn that failed without an answer has no times: it stands at the end.
            yield from self.turn(turn, root, times if turn.calls else (episode_seconds, episode_seconds))

    def turn(self, turn: TurnRecord, root: Span, times: Times) -> Iterator[Span]:
        """Yield the span of a turn, then the spans of its model calls and their tools."""
        (role, index, round_no), steps, owner = turn.node, [call.step for call in turn.calls], turn.trajectory
        terms = owner.terms if owner is not None and turn.is_last else NOTHING
        is_rewarded = steps and owner is not None and owner.reward is not None
        attributes: Attributes = {
            "gen_ai.agent.name": role,
            "rolegraph.index": index,
            "rolegraph.round": round_no,
            "rolegraph.masked": turn.masked,
            "rolegraph.reward": sum(step.reward for step in steps) if is_rewarded else None,
            **{f"rolegraph.terms.{name}": value for name, value in terms.items()},
        }
        error = "" if turn.failure is None else turn.failure["name"]
        if steps and steps[0].tool:
            result = steps[0].model_response if self.content else None
            yield self.tool(steps[0].tool, root, times, error, result, attributes)
            return
        model = _model(self.run.model_of(role, index))
        agent = self.span("invoke_agent", role, root, times, {**model, **_usage(steps), **attributes}, error)
        yield agent
        for step, next_step in zip(steps, [*steps[1:], None], strict=False):  # no step of a failed turn
            yield from self.call(step, next_step, agent, model)

    def call(self, step: Step, following: Step | None, agent: Span, model: Attributes) -> Iterator[Span]:
        """Yield the span of a model call, then the spans of the tools that its answer called."""
        metadata, chat = step.metadata, step.chat_completions
        finish, shows_texts = metadata.get("finish_reason"), bool(self.content and chat)
        answer = chat[-1:] if chat and chat[-1].get("role") == "assistant" else ()
        prompt_messages = chat[: len(chat) - len(answer)]
        times = _times(step)
        about: Attributes = {
            **model,
            **_usage([step]),
            "gen_ai.response.finish_reasons": [finish] if finish else None,
            "gen_ai.input.messages": _messages(prompt_messages) if shows_texts else None,
            "gen_ai.output.messages": _messages(answer, {"finish_reason": finish}) if shows_texts else None,
            "rolegraph.attempts": metadata.get("attempts"),
            "rolegraph.weight_version": step.weight_version,
        }
        yield self.span("chat", str(model.get("gen_ai.request.model") or ""), agent, times, about, "")
        requested_calls: list[Any] = [call for message in answer for call in message.get("tool_calls") or ()]
        results = () if following is None else following.chat_completions[len(chat) :]
        # The tools of an answer run side by side; only the end of the last of them is on record.
        end = times[1]
        times = (end, end if following is None else max(end, _times(following)[0]))
        for index, tool_record in enumerate(metadata.get("calls", ())):
            call: Mapping[str, Any] = requested_calls[index] if index < len(requested_calls) else NOTHING
            result = str(results[index].get("content")) if shows_texts and index < len(results) else None
            arguments = _cut(call["function"]["arguments"]) if shows_texts and call else None
            attributes = {"gen_ai.tool.call.id": call.get("id"), "gen_ai.tool.call.arguments": arguments}
            error = "tool_error" if tool_record.get("error") else ""
            yield self.tool(tool_record["name"], agent, times, error, result, attributes)

    def tool(
        self, name: str, parent: Span, times: Times, error: str, result: str | None, about: Attributes
    ) -> Span:
        """Return the span of one run of a tool; the result's text is left out if `result` is None."""
        attributes = {
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.result": None if result is None else _cut(result),
            **about,
        }
        return self.span("execute_tool", name, parent, times, attributes, error)

    def span(
        self, operation: str, subject: str, parent: Span | None, times: Times, about: Attributes, error: str
    ) -> Span:
        """Return a span with a new id below `parent`; `times` are seconds from the start of the episode."""
        start, end = (self.begin + int(min(max(0.0, time), LONGEST) * 1e9) for time in times)
        raw_attributes = {"gen_ai.operation.name": operation, "error.type": error or None, **about}
        attributes = {name: _plain(value) for name, value in raw_attributes.items() if value is not None}
        digest = hashlib.blake2b(f"{self.id} {next(self._numbers)}".encode(), digest_size=8).digest()
        span_id, parent_id = int.from_bytes(digest), None if parent is None else parent.span_id
        return Span(
            operation=operation,
            subject=_plain(subject),
            trace_id=self.id,
            span_id=span_id,
            parent_id=parent_id,
            start=start,
            end=end,
            attributes=attributes,
            error=error,
        )


def _messages(chat: Sequence[Message], more: Mapping[str, Any] = NOTHING) -> str:
    """Return chat messages as JSON in the form of OpenTelemetry's GenAI conventions.

    Of a long chat only the last messages are kept.
    """
    kept_messages: list[dict[str, Any]] = []
    characters_left = TEXT
    for message in reversed(chat):
        kept_messages.append({"role": message.get("role"), "parts": _parts(message), **more})
        characters_left -= sum(len(str(part)) for part in kept_messages[-1]["parts"])
        if characters_left < 0:
            break
    return json.dumps(kept_messages[::-1], ensure_ascii=False)


def _parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message in the form of the conventions."""
    content, reasoning = (_cut(str(message.get(key) or "")) for key in ("content", "reasoning"))
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    texts = {"reasoning": reasoning, "text": content}
    parts: list[dict[str, Any]] = [{"type": kind, "content": text} for kind, text in texts.items() if text]
    for call in message.get("tool_calls") or ():
        call_fields = {"name": call["function"]["name"], "arguments": _cut(call["function"]["arguments"])}
        parts.append({"type": "tool_call", "id": call.get("id"), **call_fields})
    return parts


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}…"


def _model(model: ModelRef | None) -> Attributes:
    name = model and (model.name or (BASE_NAME if model.provider == "local" else None))
    return {"gen_ai.provider.name": model and model.provider, "gen_ai.request.model": name}


def _usage(steps: Sequence[Step]) -> Attributes:
    """Return the token counts of calls; empty if they are unknown."""
    return {
        "gen_ai.usage.input_tokens": sum(step.prompt_tokens for step in steps) or None,
        "gen_ai.usage.output_tokens": sum(step.response_tokens for step in steps) or None,
    }


def _times(step: Step) -> Times:
    """Return (start, end) of a call in seconds from the start of the episode."""
    start = step.metadata.get("started") or 0.0
    return start, start + step.metadata.get("seconds", 0.0)


def _started_at(episode: Episode) -> float | None:
    """Return the start of an episode in seconds from 1970; None if it is not on record."""
    seconds = episode.metadata.get("started_at")
    return seconds if seconds is not None and 0 < seconds < LATEST else None


def _plain(value: Any) -> Any:
    """Remove secrets from an attribute's value, and convert the value to a type that OTLP has."""
    if not isinstance(value, str):
        return value
    return without_secrets(value).encode("utf-8", "replace").decode()
