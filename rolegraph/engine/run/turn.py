"""The turn of one node: a model is asked, or a tool is run, until it succeeds or no retry is left.

In: the node's messages, or a tool's argument, and the results that it reads. Out: a `NodeResult`, whatever
failed. A turn owns its retries, timeouts and seeds, and knows nothing of other nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any, NamedTuple

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import Node
from rolegraph.engine.compile.role_plan import RunPlan
from rolegraph.engine.errors import (
    FOREIGN_ERRORS,
    AnswerWithheld,
    ContextFull,
    ModelError,
    RolegraphError,
    describe_error,
    place_of,
)
from rolegraph.engine.limits.answers import ANSWER_TEXT, EPISODE_SIZE, FAILURE_TEXT
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.models import Completion, LimitedModel, Request, ServedModel
from rolegraph.engine.models.limit import call_tool
from rolegraph.engine.prompts import EPISODE, ChatPrefix, PromptError
from rolegraph.engine.prompts.tools import answer_message
from rolegraph.engine.records import (
    CallId,
    Failure,
    FailureName,
    Message,
    Observer,
    StepMetadata,
    Task,
    call_seed,
    derive_seed,
)
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.run.tools import (
    Callees,
    CallResult,
    Functions,
    OpenTools,
    call_all,
    call_session,
    result_text,
    within,
)
from rolegraph.engine.spec import Sampling
from rolegraph.engine.vocabulary import (
    UNKNOWN,
    Function,
    Lineage,
    ParseFailure,
    Parser,
    ProgramFailure,
    Score,
    ToolError,
    Unknown,
    Upstream,
    View,
)
from rolegraph.engine.vocabulary.foreign import plain_json
from rolegraph.engine.vocabulary.isolation import CallTimeout, Isolation

LARGE_TASK = 1_000_000
"""Size of a task in bytes of JSON above which rewards read it in a separate process."""


class EpisodeJob(NamedTuple):
    """An episode to run. With a seed, the same model gives the same episode."""

    task: Task
    rollout: int = 0
    seed: int | None = None
    models: Sequence[ServedModel] = ()
    """Models of the plan's endpoints, for a maker that opens the models that a job names."""
    step: int | None = None
    """Training step, from 1, for numbers that follow the step; None outside of training."""

    def episode_seed(self, seed: int) -> int:
        """Return the episode's seed, derived from `seed`, the task and the rollout."""
        return derive_seed(seed, self.task["id"], self.rollout)


class EpisodeSession:
    """The job, the processes and the open tools that the turns of one episode share."""

    def __init__(self, job: EpisodeJob, isolation: Isolation, observe: Observer | None) -> None:
        self.job, self.isolation, self.observe = job, isolation, observe
        self.seed = None if job.seed is None else job.episode_seed(job.seed)
        self.is_large = len(json_line(job.task)) > LARGE_TASK
        """True if rewards read the task in a separate process, where it does not block other episodes."""
        self.tools: OpenTools | None = None
        """Open tools of the episode; None until a turn needs a tool."""
        self.began = time.monotonic()
        self.started_at = time.time()
        """Start of the episode, in seconds since the epoch."""
        self.kept = 0
        """Number of characters and tokens that the episode holds, at most `episode_size`."""

    def seed_of(self, sampling: Sampling) -> int | None:
        """Return the seed from which the seeds of a role's calls are derived; None if neither the sampling
        nor the run has a seed."""
        return self.seed if sampling.seed is None else self.job.episode_seed(sampling.seed)

    def open_tools(self) -> OpenTools:
        """Return the tools of the episode, made at the first call."""
        self.tools = self.tools or OpenTools(self.id)
        return self.tools

    @cached_property
    def id(self) -> str:
        """The episode's id for requests of its tools: random, and new each time the episode is run."""
        return token_hex(16)


@dataclass(slots=True, eq=False)
class ModelCall:
    """One answered call of a model, or one run of a tool in place of a model; it becomes a Step."""

    messages: Sequence[Message]
    """The messages that were sent."""
    completion: Completion
    started: float
    """Start of the call, in seconds after the episode's start."""
    seconds: float
    attempt: int
    """Number of the attempt, from 0."""
    number: int
    """Number of the call in the turn, from 1; 0 for a tool."""
    tokens: int | None
    """Number of tokens of the turn's answers so far; None if an endpoint gives neither ids nor a count."""
    results: Sequence[CallResult] = ()
    """Results of the tools that the answer called."""

    def cut(self) -> tuple[int, bool]:
        """Truncate an answer beyond `answer_text`, in place, to one character over the limit.

        The recorded answer is still too long, so a replay fails in the same way.

        Returns:
            (number of characters and tokens that are kept, True if the answer was cut).
        """
        answer, limit = self.completion, ANSWER_TEXT.most
        text = answer.text
        if answer.calls:  # written in the chat; raises where those of a foreign client have no JSON
            text = "".join((text, *(call["function"]["arguments"] for call in self.chat[-1]["tool_calls"])))
        is_long = len(text) > limit or len(answer.response_ids) > limit
        if is_long:
            text = text[: limit + 1]
            answer = self.completion = answer._replace(
                text=text,
                thought=answer.thought[:limit],
                response_ids=answer.response_ids[: limit + 1],
                logprobs=answer.logprobs[: limit + 1],
                calls=(),
            )
        return len(text) + len(answer.thought) + len(answer.prompt_ids) + len(answer.response_ids), is_long

    @property
    def chat(self) -> tuple[Message, ...]:
        """The chat of the call: the sent messages, and the answer as the last message."""
        answer = self.completion
        return (*self.messages, answer_message(answer.text, answer.thought, answer.calls))

    @property
    def chat_prefix(self) -> ChatPrefix | None:
        """The chat of the call as tokens, prompt and answer; None if the model gives no token ids."""
        answer = self.completion
        if not answer.response_ids:
            return None
        return ChatPrefix((*answer.prompt_ids, *answer.response_ids), len(self.messages) + 1)


@dataclass(slots=True, eq=False)
class NodeResult:
    """Result of one turn: its action, calls, failure and score; the score is set when the reward is
    computed."""

    role: RolePlan
    view: View
    """View of the turn for its own reward and for records; after a failure, with the parser's default or a
    tool's message."""
    public: View
    """View of the turn for other roles."""
    calls: Sequence[ModelCall] = ()
    """Answered calls of the turn, or the run of its tool; each becomes a Step."""
    failure: Failure | None = None
    score: Score | None = None
    group_keys: Mapping[str, str | None] | None = None
    """Digest of each group key of the turn, by expression; None without group keys."""
    opening: StepMetadata | None = None
    """`forked` or `restarted`, for the first Step of a turn that does not continue its own conversation."""
    word_rewards: Mapping[str, float] | None = None
    """Reward that each answer that the parser allows would have earned; None if not computed."""

    @property
    def continues_chat(self) -> bool:
        """True if later turns of the conversation continue this chat: it has a call, and no failure except
        its reward's."""
        is_failed = self.failure is not None and self.failure.name.cause != "reward"
        return bool(self.calls) and not is_failed


def node_result(
    role: RolePlan,
    node: Node,
    action: Any,
    text: str = "",
    thought: str = "",
    calls: Sequence[ModelCall] = (),
    failure: Failure | None = None,
    chosen: View | Unknown = UNKNOWN,
) -> NodeResult:
    """Return the NodeResult of a turn; for a failed turn, with the score of `on_failure`."""
    name, index, _ = node.id
    tokens, calls_taken = (calls[-1].tokens, calls[-1].number) if calls else (0, 0)
    used_tokens = UNKNOWN if tokens is None else tokens
    cause = "" if failure is None else failure.name.value
    view = View(
        *(index, action, text, thought, node.round, node.lineage),
        *(True, cause, name, used_tokens, calls_taken, node.outer, chosen),
    )
    public = view if failure is None else view.public
    score = failure_score(role) if failure is not None and role.reward else None
    return NodeResult(role, view, public, calls, failure, score)


def finished_view(result: NodeResult, within: Lineage) -> View:
    """Return the view of a turn, the object that expressions read, for expressions after the episode.

    Its reward is unknown if the reward raised or there was no answer.
    """
    failure = result.failure
    if result.score is None or (failure is not None and not failure.name.is_result):
        return result.public.earning(UNKNOWN, UNKNOWN, UNKNOWN, within)
    reward, is_right, terms = result.score
    reward = UNKNOWN if reward is None else reward
    is_right = UNKNOWN if is_right is None else is_right
    return result.public.earning(reward, is_right, terms, within)


def failure_score(role: RolePlan) -> Score:
    """Return the score of a failed turn: the reward of `on_failure`, or 0, and not correct."""
    return Score(role.spec.on_failure.reward or 0.0, False)


async def model_turn(
    role: RolePlan,
    node: Node,
    model: LimitedModel,
    session: EpisodeSession,
    messages: Sequence[Message] | Failure,
    upstream: Upstream,
    prefix: ChatPrefix | None = None,
    callees: Callees | None = None,
) -> NodeResult:
    """Run a turn that asks a model, with its tool calls, and return the result, which records any failure.

    Raises only for cancellation and for errors in this project's code.

    Args:
        role: The node's role.
        node: The node.
        model: The model to ask.
        session: The episode's job and tools.
        messages: The messages to send; a Failure where the prompt could not be rendered.
        upstream: The results of other nodes that the parser may read.
        prefix: The beginning of the messages as tokens, where they continue an earlier turn.
        callees: The roles that the model may call.
    """
    if isinstance(messages, Failure):
        return node_result(role, node, role.parser.default, failure=messages)
    job, limit, sampling = session.job, role.spec.timeout, role.samplings[node.id.index - 1]
    episode_seed = session.seed_of(sampling)
    functions: Functions = {}
    offered_functions: Sequence[Function] = ()
    calls_before: list[ModelCall] = []  # the calls of this turn whose answers called tools
    number, attempt = 1, 0
    while True:
        last_call: ModelCall | None = None
        # By position: with keywords, these cost more than 1 % of an episode.
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, number, attempt)
        id = CallId(job.task["id"], job.rollout, node.id, number, attempt)
        try:
            if role.has_functions and not functions:
                roles = [callee.function for callee in role.callees]
                functions = await session.open_tools().named_functions(role.tools, roles, role.kept_back)
                offered_functions = tuple(functions.values())
            request = Request(messages, sampling, seed, id, offered_functions, prefix)
            completion, start, seconds = await model.complete(request, limit, session.observe)
            text, thought, _, ids, _, _, _, usage, calls, *_ = completion
            tokens: int | None = len(ids) or (usage.get("completion_tokens") if usage else None)
            if calls_before:
                tokens_before = calls_before[-1].tokens
                tokens = None if tokens is None or tokens_before is None else tokens + tokens_before
            call = ModelCall(messages, completion, start - session.began, seconds, attempt, number, tokens)
            parse_failure = keep_answer(session, call)
            last_call = call
            if parse_failure is not None:
                raise parse_failure
            if calls and functions and number < role.spec.max_calls:
                last_call.results = await call_all(functions, calls, limit, callees, number)
                session.kept += sum(len(result.message["content"]) for result in last_call.results)
                messages = (*last_call.chat, *(result.message for result in last_call.results))
                prefix = last_call.chat_prefix
                calls_before.append(last_call)
                number, attempt = number + 1, 0
                continue
            action, choice = read_answer(role.parser, text, upstream)
            return node_result(role, node, action, text, thought, [*calls_before, last_call], chosen=choice)
        except FOREIGN_ERRORS as error:  # a foreign client or parser: its error fails this node only
            foreign_failure = FailureName.MODEL_ERROR if last_call is None else FailureName.MALFORMED_OUTPUT
            failure = failure_of(error, foreign_failure, f"no answer {within(limit)}")
        if attempt == role.spec.on_failure.retry:
            last = Completion("") if last_call is None else last_call.completion
            all_calls = calls_before if last_call is None else [*calls_before, last_call]
            return node_result(role, node, role.parser.default, last.text, last.thought, all_calls, failure)
        attempt += 1


def keep_answer(session: EpisodeSession, call: ModelCall) -> ParseFailure | None:
    """Count the size of an answer, and truncate an answer beyond the limit.

    Returns:
        The failure of an answer that is too long, or has special tokens within it; None without a failure.

    Raises:
        ModelError: With this answer the episode is too large.
    """
    special_tokens = call.completion.special_tokens
    size, is_cut = call.cut()
    if session.kept + size > EPISODE_SIZE.most:
        raise ModelError(EPISODE_SIZE.exceeded("with this answer the episode has"))
    session.kept += size
    if is_cut:
        return ParseFailure(FailureName.MALFORMED_OUTPUT, ANSWER_TEXT.exceeded("the answer has"))
    return ParseFailure(FailureName.SPECIAL_TOKEN, _special(special_tokens)) if special_tokens else None


async def tool_turn(
    role: RolePlan,
    run: RunPlan,
    node: Node,
    session: EpisodeSession,
    variables: Mapping[str, Any],
    upstream: Upstream,
) -> NodeResult:
    """Run the tool of a node; its result, parsed if there is a parser, becomes the action.

    Raises only for cancellation, the user's mistakes and errors in this project's code.

    Args:
        role: The node's role.
        run: The tool and its argument.
        node: The node.
        session: The episode's tools and processes.
        variables: Variables that the argument's template may read.
        upstream: The results of other nodes, for a tool that chooses among them.
    """
    limit, value, text, action, printed_text = role.spec.timeout, "", None, None, ""
    chosen_turn: View | Unknown = UNKNOWN
    failure: Failure | None = None
    calls: Sequence[ModelCall] = ()
    try:
        if run.value is not None and EPISODE in run.value.mentions:
            variables = {EPISODE: {"id": session.id}, **variables}
        value = "" if run.value is None else run.value.render(variables)
    except PromptError as error:
        failure = Failure(FailureName.PROMPT_ERROR, str(error))
    for attempt in range(0 if failure else role.spec.on_failure.retry + 1):
        start, text, failure = time.monotonic(), None, None
        try:
            action = await _run_tool(run, value, upstream, session, limit)
            result_value = result_text(run.name, action)
            if session.kept + len(result_value) > EPISODE_SIZE.most:
                raise ToolError(EPISODE_SIZE.exceeded("with this result the episode has"))
            session.kept += len(result_value)
            text = result_value
            if run.parser is None:
                action = plain_json(action, TOOL_TEXT)
            else:
                action, chosen_turn = read_answer(run.parser, text, upstream)
        except FOREIGN_ERRORS as error:  # a foreign tool or parser: its error fails this node only
            foreign_failure = FailureName.TOOL_ERROR if text is None else FailureName.MALFORMED_OUTPUT
            failure = failure_of(error, foreign_failure, f"no result {within(limit or run.tool.timeout)}")
            printed_text = error.output if isinstance(error, ProgramFailure) else ""
            session.kept += len(printed_text)
        seconds = time.monotonic() - start
        calls = (ModelCall((), Completion(text or ""), start - session.began, seconds, attempt, 0, 0),)
        if failure is None:
            break
    if failure is not None:  # the result is the default, or without a parser the output with the message
        message = f"{printed_text}\n{failure.message}" if printed_text else failure.message
        action = message if run.parser is None else run.parser.default
        text = message if run.parser is None else text
    return node_result(role, node, action, text or "", "", calls, failure, chosen_turn)


async def _run_tool(
    run: RunPlan, value: str, upstream: Upstream, session: EpisodeSession, seconds: float | None
) -> object:
    """Run the tool once, within `seconds`; raises TimeoutError and the tool's own errors."""
    tool = run.tool
    async with asyncio.timeout(seconds):
        if tool.choose is not None:
            if tool.timeout is None:
                return tool.choose(upstream, run.pairs)
            return await session.isolation.run(tool.choose, upstream, run.pairs, limit=tool.timeout)
        if tool.open is None and tool.session is None:
            return value
        tools = run.session if tool.session is not None else (tool,)
        functions = await session.open_tools().named_functions(tools)
    if tool.session is not None:
        return await call_session(functions, *tool.session, value, seconds)
    if len(functions) != 1:
        raise ToolError(f"{run.name} has {len(functions)} functions; a role can run a tool of one")
    (function,) = functions.values()
    first_parameter = next(iter(function.parameters.get("properties", {})), "value")
    return await call_tool(function, {first_parameter: value}, seconds)


def _special(tokens: Sequence[str]) -> str:
    """Return the message of the failure that a model sampled these special tokens within its answer."""
    more_tokens = f" and {len(tokens) - 1} more" if len(tokens) > 1 else ""
    return (
        f"the model sampled the special token {tokens[0]!r}{more_tokens} within its answer; "
        "expected one at its end only"
    )


def read_answer(parser: Parser, text: str, upstream: Upstream) -> tuple[Any, View | Unknown]:
    """Parse an answer; return (action as plain JSON data, turn that the action chooses or UNKNOWN).

    Raises:
        ParseFailure: The answer cannot be read.
    """
    if parser.chooses is not None:
        chosen_turn = parser.chooses(text, upstream)
        return recordable(chosen_turn.action), chosen_turn
    action = parser.parse(text, upstream)
    return action if type(action) is str else recordable(action), UNKNOWN


def recordable(action: object) -> Any:
    """Return a parser's action as plain JSON data; raises ParseFailure for a value that JSON cannot
    express."""
    try:
        return plain_json(action, ANSWER_TEXT)
    except ValueError as error:
        message = f"the parser gave neither text nor a JSON value: {error}"
        raise ParseFailure(FailureName.MALFORMED_OUTPUT, message) from None


def failure_of(error: BaseException, foreign: FailureName, overtime: str) -> Failure:
    """Return the Failure of a turn for an error that it raised; errors that are no failure of a turn are
    raised again.

    Args:
        error: The error.
        foreign: Name of the failure for an error of third-party code.
        overtime: Message of the failure for a timeout.
    """
    match error:
        case TimeoutError() | CallTimeout():
            return Failure(FailureName.TIMEOUT, overtime)
        case ContextFull():
            name = FailureName.CONTEXT_FULL
        case AnswerWithheld():
            name = FailureName.REFUSED
        case ModelError():
            name = FailureName.MODEL_ERROR
        case ParseFailure():
            name = error.name
        case ProgramFailure():
            name = FailureName.PROGRAM_ERROR
        case ToolError():
            name = FailureName.TOOL_ERROR
        case RolegraphError():
            raise error
        case _:
            return Failure(foreign, describe_error(error), place_of(error))
    return Failure(name, str(error)[: FAILURE_TEXT.most])
