"""One node while it runs: asks its model until there is an answer that can be read, or no retry is left.

In: what the node is asked and what it sees. Out: a `NodeResult`, whatever failed on the way. Owns the node's
retries, timeouts and seeds; knows nothing of other nodes.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.compile import RolePlan
from engine.compile.plan import Node
from engine.errors import ContextFull, ModelError, RolegraphError
from engine.limits import ANSWER_TEXT
from engine.models import Completion, LimitedModel, Request
from engine.prompts import Continued
from engine.prompts.tools import answer_message
from engine.records import CallId, Failure, FailureName, Message, Observer, Task, call_seed
from engine.run.calls import Functions, offered, results_of
from engine.run.tools import OpenTools
from engine.vocabulary import Function, ParseFailure, Score, ToolError, Upstream, View
from engine.vocabulary.foreign import described, plain


def failing_earns(role: RolePlan) -> Score:
    """What a failed turn of a role earns."""
    return Score(role.on_failure.reward or 0.0, False)


class Job(NamedTuple):
    """An episode to run. With a seed, the same model gives the same episode."""

    task: Task
    rollout: int = 0
    seed: int | None = None


class Answered(NamedTuple):
    """One call of a model, and what it said."""

    messages: Sequence[Message]
    completion: Completion
    seconds: float
    attempts: int
    used: Sequence[Mapping[str, str]] = ()
    """What was done of what it asked of tools, each with its `name`, and the `error` where there is one."""

    @property
    def chat(self) -> Sequence[Message]:
        """What was asked, and the answer."""
        said = self.completion
        return (*self.messages, answer_message(said.text, said.thought, said.calls))

    @property
    def continued(self) -> Continued | None:
        """The same as the tokens that it is, where the model gives them."""
        said = self.completion
        if not said.response_ids:
            return None
        return Continued((*said.prompt_ids, *said.response_ids), len(self.messages) + 1)


class Ran(NamedTuple):
    """What was run where no model was asked."""

    tool: str
    seconds: float
    attempts: int


@dataclass(slots=True, eq=False)
class NodeResult:
    """What a node came to; its score is set when its reward is computed."""

    view: View
    calls: Sequence[Answered] = ()
    """Every call of the turn that was answered, each a Step."""
    failure: Failure | None = None
    score: Score | None = None
    ran: Ran | None = None

    @property
    def is_remembered(self) -> bool:
        """Whether a conversation goes on from it; what its reward came to has no part in that."""
        failed = self.failure is not None and self.failure.name is not FailureName.REWARD_ERROR
        return bool(self.calls) and not failed


class Session:
    """One running node. `episode_seed` is None where the run has no seed."""

    __slots__ = (
        "_attempt",
        "_calls",
        "_continues",
        "_episode_seed",
        "_functions",
        "_job",
        "_model",
        "_node",
        "_observe",
        "_offered",
        "_role",
    )

    def __init__(
        self,
        role: RolePlan,
        node: Node,
        model: LimitedModel,
        job: Job,
        episode_seed: int | None,
        observe: Observer | None,
    ) -> None:
        self._role, self._node, self._model, self._job = role, node, model, job
        self._episode_seed, self._observe = episode_seed, observe
        self._attempt = 0
        self._calls: tuple[Answered, ...] = ()
        """Those that asked for tools."""
        self._functions: Functions | None = None
        self._offered: Sequence[Function] = ()
        self._continues: Continued | None = None

    def goes_on_from(self, before: Answered) -> None:
        """Let the turn begin with the conversation that another one left."""
        self._continues = before.continued

    async def turn(
        self, messages: Sequence[Message] | Failure, upstream: Upstream, tools: OpenTools | None = None
    ) -> NodeResult:
        """The node's turn, which has failed where there are no messages to send.

        `tools` are the episode's, where the role has some. Only cancellation and faults of this program
        raise.
        """
        if isinstance(messages, Failure):
            return self.failed(messages)
        role = self._role
        while True:
            answered: Answered | None = None
            try:
                if tools is not None and self._functions is None:
                    self._functions = await offered(role.tools, tools)
                    self._offered = tuple(self._functions.values())
                completion, seconds = await self.generate(messages)
                answered = Answered(messages, completion, seconds, self._attempt + 1)
                if completion.calls and self._functions and len(self._calls) + 1 < role.calls:
                    messages = await self.use_tools(answered, self._functions)
                    continue
                if len(completion.text) > ANSWER_TEXT.most:
                    raise ParseFailure(FailureName.MALFORMED_OUTPUT, ANSWER_TEXT.past("the answer has"))
                action = plain(role.parser.parse(completion.text, upstream), ANSWER_TEXT)
            except TimeoutError:
                within = "in time" if role.timeout is None else f"within {role.timeout:g} s"
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
            except Exception as error:  # a client or parser from elsewhere: its fault ends this node only
                name = FailureName.MODEL_ERROR if answered is None else FailureName.MALFORMED_OUTPUT
                failure = Failure(name, described(error))
            else:
                (_, index, number), lineage = self._node.id, self._node.lineage
                view = View(index, action, completion.text, completion.thought, number, lineage)
                return NodeResult(view, (*self._calls, answered))
            if self._attempt == role.on_failure.retry:
                return self.failed(failure, answered)
            self._attempt += 1

    def generate(self, messages: Sequence[Message]) -> Coroutine[None, None, tuple[Completion, float]]:
        """One call of the model, and the seconds that it took; raises ModelError or TimeoutError."""
        node, episode_seed = self._node, self._episode_seed
        call = len(self._calls) + 1
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, call, self._attempt)
        # By position: with keywords here too, they would cost more than 1 % of an episode.
        id = CallId(self._job.task["id"], self._job.rollout, node.id, call, self._attempt)
        request = Request(
            messages, self._role.samplings[node.id.index - 1], seed, id, self._offered, self._continues
        )
        return self._model.complete(request, self._role.timeout, self._observe)

    async def use_tools(self, call: Answered, functions: Functions) -> Sequence[Message]:
        """Do what an answer asks of tools; the messages of the next call, which goes on from this one."""
        results = await results_of(functions, call.completion.calls, self._role.timeout)
        call = call._replace(used=[result.noted for result in results])
        self._calls, self._attempt, self._continues = (*self._calls, call), 0, call.continued
        return (*call.chat, *(result.message for result in results))

    def failed(self, failure: Failure, answered: Answered | None = None) -> NodeResult:
        """The result of a failed node: later roles see the parser's default as its action."""
        said = answered.completion if answered else Completion("")
        (_, index, number), lineage = self._node.id, self._node.lineage
        view = View(index, self._role.parser.default, said.text, said.thought, number, lineage, failed=True)
        calls = (*self._calls, answered) if answered else self._calls
        return NodeResult(view, calls, failure, failing_earns(self._role) if self._role.reward else None)
