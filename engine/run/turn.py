"""The turn of one node: a model is asked, or a tool is run, until it succeeds or no retry is left.

In: what the node sends and sees. Out: a `NodeResult`, whatever failed on the way. A turn owns its retries,
timeouts and seeds, and knows nothing of other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import Node, RunPlan
from rolegraph.engine.errors import ContextFull, ModelError, RolegraphError
from rolegraph.engine.limits.answers import ANSWER_TEXT
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.models import Clock, Completion, LimitedModel, Request
from rolegraph.engine.prompts import ChatPrefix, PromptError
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.records import (
    CallId,
    Failure,
    FailureName,
    Message,
    Observer,
    Task,
    call_seed,
    derive_seed,
)
from rolegraph.engine.run.isolation import CallTimeout, Isolation
from rolegraph.engine.run.tools import CallResult, Functions, OpenTools, call_all, result_text
from rolegraph.engine.vocabulary import Function, ParseFailure, Score, ToolError, Upstream, View
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, plain_json


class EpisodeJob(NamedTuple):
    """An episode to run. With a seed, the same model gives the same episode."""

    task: Task
    rollout: int = 0
    seed: int | None = None

    def episode_seed(self, seed: int) -> int:
        """Return the episode's seed, from which the seeds of its calls are derived."""
        return derive_seed(seed, self.task["id"], self.rollout)


@dataclass(slots=True, eq=False)
class ModelCall:
    """One call of a model that was answered."""

    messages: Sequence[Message]
    """The messages that were sent."""
    completion: Completion
    started: float
    """Seconds after the episode's start."""
    seconds: float
    attempt: int
    """Number of the attempt, from 0."""
    number: int
    """Number of the call in the turn, from 1."""
    results: Sequence[CallResult] = ()
    """Results of the tools that the answer called."""

    @property
    def chat(self) -> tuple[Message, ...]:
        """The messages that were sent, and the answer."""
        answer = self.completion
        return (*self.messages, answer_message(answer.text, answer.thought, answer.calls))

    @property
    def chat_prefix(self) -> ChatPrefix | None:
        """The same as tokens; None where the model gives none."""
        answer = self.completion
        if not answer.response_ids:
            return None
        return ChatPrefix((*answer.prompt_ids, *answer.response_ids), len(self.messages) + 1)


class ToolRun(NamedTuple):
    """One run of a tool in place of a model."""

    tool: str
    started: float
    """Seconds after the episode's start."""
    seconds: float
    attempt: int
    """Number of the attempt, from 0."""


@dataclass(slots=True, eq=False)
class NodeResult:
    """The result of a node; its score is set when its reward is computed."""

    view: View
    calls: Sequence[ModelCall] = ()
    """The calls of the turn that were answered, each of which becomes a Step."""
    failure: Failure | None = None
    score: Score | None = None
    tool_run: ToolRun | None = None
    """The run of the tool of a role that runs one in place of a model."""

    @property
    def continues_chat(self) -> bool:
        """True where later turns of a role with memory continue this chat, also after a reward_error."""
        failed = self.failure is not None and self.failure.name is not FailureName.REWARD_ERROR
        return bool(self.calls) and not failed


def failure_score(role: RolePlan) -> Score:
    """Return the score of a failed turn of a role."""
    return Score(role.spec.on_failure.reward or 0.0, False)


async def model_turn(
    role: RolePlan,
    node: Node,
    model: LimitedModel,
    job: EpisodeJob,
    episode_seed: int | None,
    observe: Observer | None,
    clock: Clock,
    began: float,
    messages: Sequence[Message] | Failure,
    upstream: Upstream,
    tools: OpenTools | None = None,
    prefix: ChatPrefix | None = None,
) -> NodeResult:
    """Take the turn of a node that asks a model. Only cancellation and errors of this program raise.

    Args:
        role: The node's role.
        node: The node.
        model: The model to ask.
        job: The episode's task, rollout and seed.
        episode_seed: The seed that those of the calls are derived from; None in a run without a seed.
        observe: Receives a CallDone for each attempt.
        clock: The event loop's clock.
        began: The episode's start on the clock.
        messages: The messages to send; a Failure where the prompt could not be rendered.
        upstream: The results of other nodes that the parser may read.
        tools: The episode's tools, where the role has any.
        prefix: The beginning of the messages as tokens, where they continue an earlier turn.
    """
    if isinstance(messages, Failure):
        return _failed(role, node, messages)
    _, index, round_number = node.id
    sampling = role.samplings[index - 1]
    if sampling.seed is not None:
        episode_seed = job.episode_seed(sampling.seed)
    functions: Functions | None = None
    offered: Sequence[Function] = ()
    earlier: list[ModelCall] = []  # the calls of this turn whose answers called tools
    call, attempt = 1, 0
    while True:
        answered: ModelCall | None = None
        # By position: with keywords, these cost more than 1 % of an episode.
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, call, attempt)
        id = CallId(job.task["id"], job.rollout, node.id, call, attempt)
        try:
            if tools is not None and functions is None:
                functions = await tools.named_functions(role.tools)
                offered = tuple(functions.values())
            request = Request(messages, sampling, seed, id, offered, prefix)
            completion, start, seconds = await model.complete(request, role.spec.timeout, observe, clock)
            text, calls = completion.text, completion.calls
            answered = ModelCall(messages, completion, start - began, seconds, attempt, call)
            if calls:
                chat = answered.chat  # raises where calls of a foreign client cannot be written as JSON
                if functions and call < role.spec.calls:
                    answered.results = await call_all(functions, calls, role.spec.timeout)
                    messages = (*chat, *(result.message for result in answered.results))
                    prefix = answered.chat_prefix
                    earlier.append(answered)
                    call, attempt = call + 1, 0
                    continue
            if len(text) > ANSWER_TEXT.most:
                raise ParseFailure(FailureName.MALFORMED_OUTPUT, ANSWER_TEXT.exceeded("the answer has"))
            action = role.parser.parse(text, upstream)
            if type(action) is not str:
                action = _recordable(action)
        except TimeoutError:
            failure = Failure(FailureName.TIMEOUT, f"no answer {_within(role.spec.timeout)}")
        except ContextFull as error:
            failure = Failure(FailureName.CONTEXT_FULL, str(error))
        except ModelError as error:
            failure = Failure(FailureName.MODEL_ERROR, str(error))
        except ParseFailure as error:
            failure = Failure(error.name, str(error))
        except ToolError as error:
            failure = Failure(FailureName.TOOL_ERROR, str(error))
        except RolegraphError:
            raise
        except FOREIGN_ERRORS as error:  # a foreign client or parser: its error fails this node only
            name = FailureName.MODEL_ERROR if answered is None else FailureName.MALFORMED_OUTPUT
            failure = Failure(name, describe_error(error))
        else:
            thought, lineage = completion.thought, node.lineage
            view = View(index, action, text, thought, round_number, lineage, True, False, role.name)
            return NodeResult(view, (*earlier, answered))
        if attempt == role.spec.on_failure.retry:
            return _failed(role, node, failure, earlier, answered)
        attempt += 1


async def tool_turn(
    role: RolePlan,
    run: RunPlan,
    node: Node,
    variables: Mapping[str, Any],
    upstream: Upstream,
    *,
    tools: OpenTools,
    isolation: Isolation,
    clock: Clock,
    began: float,
) -> NodeResult:
    """Take the turn of a node that runs a tool, whose result becomes the action.

    Only cancellation, the user's mistakes and errors of this program raise.

    Args:
        role: The node's role.
        run: The tool and its argument.
        node: The node.
        variables: What the argument's template may read.
        upstream: The results of other nodes, for a tool that chooses among them.
        tools: The episode's tools.
        isolation: The processes for a tool with a time limit of its own.
        clock: The event loop's clock.
        began: The episode's start on the clock.
    """
    try:
        value = "" if run.value is None else run.value.render(variables)
    except PromptError as error:
        return _tool_result(role, node, Failure(FailureName.PROMPT_ERROR, str(error)))
    attempt = 0
    while True:
        start, text = clock(), ""
        try:
            async with asyncio.timeout(role.spec.timeout):
                result: Any = await _run_tool(run, value, upstream, tools, isolation)
            text = result_text(run.name, result)
            result = plain_json(result, TOOL_TEXT)
        except ToolError as error:
            result = Failure(FailureName.TOOL_ERROR, str(error))
        except (TimeoutError, CallTimeout):
            result = Failure(
                FailureName.TIMEOUT, f"no result {_within(role.spec.timeout or run.tool.timeout)}"
            )
        except RolegraphError:
            raise
        except FOREIGN_ERRORS as error:  # a foreign tool: its error fails this node only
            result = Failure(FailureName.TOOL_ERROR, describe_error(error))
        if not isinstance(result, Failure) or attempt == role.spec.on_failure.retry:
            tool_run = ToolRun(run.name, start - began, clock() - start, attempt)
            return _tool_result(role, node, result, tool_run, text)
        attempt += 1


async def _run_tool(
    run: RunPlan, value: str, upstream: Upstream, tools: OpenTools, isolation: Isolation
) -> object:
    tool = run.tool
    if tool.choose is not None:
        if tool.timeout is None:
            return tool.choose(upstream, run.pairs)
        return await isolation.run(tool.choose, upstream, run.pairs, limit=tool.timeout)
    functions = await tools.functions(tool)
    if len(functions) != 1:
        raise ToolError(f"{run.name} has {len(functions)} functions; a role can run a tool of one")
    (function,) = functions
    first = next(iter(function.parameters.get("properties", {})), "value")
    return await function.call({first: value})


def _within(seconds: float | None) -> str:
    return "in time" if seconds is None else f"within {seconds:g} s"


def _recordable(action: object) -> Any:
    """Return an action as JSON holds it; raises ParseFailure, since a foreign parser may return anything."""
    try:
        return plain_json(action, ANSWER_TEXT)
    except ValueError as error:
        message = f"the parser gave neither text nor a JSON value: {error}"
        raise ParseFailure(FailureName.MALFORMED_OUTPUT, message) from None


def _failed(
    role: RolePlan,
    node: Node,
    failure: Failure,
    earlier: Sequence[ModelCall] = (),
    answered: ModelCall | None = None,
) -> NodeResult:
    """Return the result of a failed model turn: later roles see the parser's default as its action."""
    answer = answered.completion if answered else Completion("")
    (name, index, number), lineage = node.id, node.lineage
    action = role.parser.default
    view = View(index, action, answer.text, answer.thought, number, lineage, failed=True, role=name)
    calls = (*earlier, answered) if answered else tuple(earlier)
    return NodeResult(view, calls, failure, failure_score(role) if role.reward else None)


def _tool_result(
    role: RolePlan, node: Node, result: object, tool_run: ToolRun | None = None, text: str = ""
) -> NodeResult:
    """Return the result of a tool's turn; a failure's message is its action, for later roles to read."""
    failure = result if isinstance(result, Failure) else None
    action, text = (failure.message, failure.message) if failure else (result, text)
    (name, index, number), lineage = node.id, node.lineage
    view = View(index, action, text, "", number, lineage, failed=failure is not None, role=name)
    score = failure_score(role) if failure and role.reward else None
    return NodeResult(view, (), failure, score, tool_run)
