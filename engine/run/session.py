"""One node while it runs: asks its model until there is an answer that can be read, or no retry is left.

In: what the node is asked and what it sees. Out: a `NodeResult`, whatever failed on the way. Owns the node's
retries, timeouts and seeds; knows nothing of other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.compile.plan import Node
from rolegraph.engine.errors import ContextFull, ModelError, RolegraphError
from rolegraph.engine.limits.answers import ANSWER_TEXT
from rolegraph.engine.models import Clock, Completion, LimitedModel, Request
from rolegraph.engine.prompts import ChatPrefix
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
from rolegraph.engine.run.calls import CallResult, Functions, offered, results_of
from rolegraph.engine.run.tools import OpenTools
from rolegraph.engine.vocabulary import Function, ParseFailure, Score, ToolError, Upstream, View
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, plain_json


def _plain(action: object) -> Any:
    """An action as a record holds it; raises ParseFailure, as one of a package's parser may be anything."""
    try:
        return plain_json(action, ANSWER_TEXT)
    except ValueError as error:
        message = f"the parser gave neither text nor a JSON value: {error}"
        raise ParseFailure(FailureName.MALFORMED_OUTPUT, message) from None


def failing_earns(role: RolePlan) -> Score:
    """What a failed turn of a role earns."""
    return Score(role.spec.on_failure.reward or 0.0, False)


class EpisodeJob(NamedTuple):
    """An episode to run. With a seed, the same model gives the same episode."""

    task: Task
    rollout: int = 0
    seed: int | None = None

    def seeded(self, seed: int) -> int:
        """The episode's seed, from which those of its calls follow."""
        return derive_seed(seed, self.task["id"], self.rollout)


@dataclass(slots=True, eq=False)
class ModelCall:
    """One call of a model, and what it said."""

    messages: Sequence[Message]
    """What was asked."""
    completion: Completion
    started: float
    """Seconds after the episode began."""
    seconds: float
    attempt: int
    """Which it is, from 0."""
    number: int
    """Which of the turn's calls it is, from 1."""
    results: Sequence[CallResult] = ()
    """What the tools gave that it asked for."""

    @property
    def chat(self) -> tuple[Message, ...]:
        """What was asked, and the answer."""
        said = self.completion
        return (*self.messages, answer_message(said.text, said.thought, said.calls))

    @property
    def continued(self) -> ChatPrefix | None:
        """The same as the tokens that it is, where the model gives them."""
        said = self.completion
        if not said.response_ids:
            return None
        return ChatPrefix((*said.prompt_ids, *said.response_ids), len(self.messages) + 1)


class ToolRun(NamedTuple):
    """One run of a tool in place of a model."""

    tool: str
    started: float
    """Seconds after the episode began."""
    seconds: float
    attempt: int
    """Which it is, from 0."""


@dataclass(slots=True, eq=False)
class NodeResult:
    """What a node came to; its score is set when its reward is computed."""

    view: View
    calls: Sequence[ModelCall] = ()
    """Every call of the turn that was answered, each a Step."""
    failure: Failure | None = None
    score: Score | None = None
    ran: ToolRun | None = None
    """The run of a tool where no model was asked."""

    @property
    def is_remembered(self) -> bool:
        """Whether a conversation goes on from it; what its reward came to has no part in that."""
        failed = self.failure is not None and self.failure.name is not FailureName.REWARD_ERROR
        return bool(self.calls) and not failed


async def take_turn(
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
    continues: ChatPrefix | None = None,
) -> NodeResult:
    """A node's turn, which has failed where there are no messages to send.

    `episode_seed` is None where the run has no seed; `began` is when the episode did, by the clock; `tools`
    are the episode's, where the role has some; the messages may go on from what another turn left. Only
    cancellation and faults of this program raise.
    """
    if isinstance(messages, Failure):
        return _failed(role, node, messages)
    _, index, number = node.id
    sampling = role.samplings[index - 1]
    if sampling.seed is not None:
        episode_seed = job.seeded(sampling.seed)
    functions: Functions | None = None
    told: Sequence[Function] = ()
    earlier: list[ModelCall] = []  # the calls that asked for tools
    call, attempt = 1, 0
    while True:
        answered: ModelCall | None = None
        # By position: with keywords here too, they would cost more than 1 % of an episode.
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, call, attempt)
        id = CallId(job.task["id"], job.rollout, node.id, call, attempt)
        try:
            if tools is not None and functions is None:
                functions = await offered(role.tools, tools)
                told = tuple(functions.values())
            request = Request(messages, sampling, seed, id, told, continues)
            completion, start, seconds = await model.complete(request, role.spec.timeout, observe, clock)
            text, calls = completion.text, completion.calls
            answered = ModelCall(messages, completion, start - began, seconds, attempt, call)
            if calls:
                chat = answered.chat  # fails here, where a client's own calls cannot be written
                if functions and call < role.spec.calls:
                    answered.results = await results_of(functions, calls, role.spec.timeout)
                    messages = (*chat, *(result.message for result in answered.results))
                    continues = answered.continued
                    earlier.append(answered)
                    call, attempt = call + 1, 0
                    continue
            if len(text) > ANSWER_TEXT.most:
                raise ParseFailure(FailureName.MALFORMED_OUTPUT, ANSWER_TEXT.exceeded("the answer has"))
            action = role.parser.parse(text, upstream)
            if type(action) is not str:
                action = _plain(action)
        except TimeoutError:
            within = "in time" if role.spec.timeout is None else f"within {role.spec.timeout:g} s"
            failure = Failure(FailureName.TIMEOUT, f"no answer {within}")
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
        except FOREIGN_ERRORS as error:  # a client or parser from elsewhere: its fault ends this node only
            name = FailureName.MODEL_ERROR if answered is None else FailureName.MALFORMED_OUTPUT
            failure = Failure(name, describe_error(error))
        else:
            view = View(index, action, text, completion.thought, number, node.lineage, True, False, role.name)
            return NodeResult(view, (*earlier, answered))
        if attempt == role.spec.on_failure.retry:
            return _failed(role, node, failure, earlier, answered)
        attempt += 1


def _failed(
    role: RolePlan,
    node: Node,
    failure: Failure,
    earlier: Sequence[ModelCall] = (),
    answered: ModelCall | None = None,
) -> NodeResult:
    """The result of a failed node: later roles see the parser's default as its action."""
    said = answered.completion if answered else Completion("")
    (name, index, number), lineage = node.id, node.lineage
    view = View(index, role.parser.default, said.text, said.thought, number, lineage, failed=True, role=name)
    calls = (*earlier, answered) if answered else tuple(earlier)
    return NodeResult(view, calls, failure, failing_earns(role) if role.reward else None)
