"""One node while it runs: asks its model until there is an answer that can be read, or no retry is left.

In: what the node is asked and what it sees. Out: a `NodeResult`, whatever failed on the way. Owns the node's
retries, timeouts and seeds; knows nothing of other nodes.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.compile import RolePlan
from engine.compile.plan import Node
from engine.errors import ModelError, RolegraphError
from engine.models import Completion, LimitedModel, Request
from engine.records import CallId, Failure, FailureName, Message, Observer, Task, call_seed
from engine.vocabulary import ParseFailure, Score, Upstream, View

NO_SCORE = Score(0.0, False)


class Job(NamedTuple):
    """An episode to run. With a seed, the same model gives the same episode."""

    task: Task
    rollout: int = 0
    seed: int | None = None


@dataclass(slots=True)
class NodeResult:
    """What a node came to; its score is set when its reward is computed."""

    view: View
    messages: Sequence[Message] = ()
    completion: Completion | None = None
    seconds: float = 0.0
    """What the answer took."""
    failure: Failure | None = None
    attempts: int = 1
    score: Score | None = None
    tool: str = ""
    """What was run, where no model was asked."""


class Session:
    """One running node. `episode_seed` is None where the run has no seed."""

    __slots__ = ("_attempt", "_episode_seed", "_job", "_model", "_node", "_observe", "_role")

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

    async def turn(self, messages: Sequence[Message] | Failure, upstream: Upstream) -> NodeResult:
        """The node's turn, which has failed where there are no messages to send.

        Only cancellation and faults of this program raise.
        """
        if isinstance(messages, Failure):
            return self.failed(messages)
        role = self._role
        while True:
            completion: Completion | None = None
            seconds = 0.0
            try:
                completion, seconds = await self.generate(messages)
                action = role.parser.parse(completion.text, upstream)
            except TimeoutError:
                within = "in time" if role.timeout is None else f"within {role.timeout:g} s"
                failure = Failure(FailureName.TIMEOUT, f"no answer {within}")
            except ModelError as error:
                failure = Failure(FailureName.MODEL_ERROR, str(error))
            except ParseFailure as error:
                failure = Failure(error.name, str(error))
            except RolegraphError:
                raise
            except Exception as error:  # a client or parser from elsewhere: its fault ends this node only
                name = FailureName.MODEL_ERROR if completion is None else FailureName.MALFORMED_OUTPUT
                failure = Failure(name, f"{type(error).__name__}: {error}")
            else:
                (_, index, number), lineage = self._node.id, self._node.lineage
                view = View(index, action, completion.text, completion.thought, number, lineage)
                return NodeResult(view, messages, completion, seconds, attempts=self._attempt + 1)
            if self._attempt == role.on_failure.retry:
                return self.failed(failure, messages, completion, seconds)
            self._attempt += 1

    def generate(self, messages: Sequence[Message]) -> Coroutine[None, None, tuple[Completion, float]]:
        """One call of the model, and the seconds that it took; raises ModelError or TimeoutError."""
        node, episode_seed = self._node, self._episode_seed
        seed = None if episode_seed is None else call_seed(episode_seed, node.salt, 1, self._attempt)
        # By position: with keywords here too, they would cost more than 1 % of an episode.
        id = CallId(self._job.task["id"], self._job.rollout, node.id, 1, self._attempt)
        request = Request(messages, self._role.sampling, seed, id)
        return self._model.complete(request, self._role.timeout, self._observe)

    def failed(
        self,
        failure: Failure,
        messages: Sequence[Message] = (),
        completion: Completion | None = None,
        seconds: float = 0.0,
    ) -> NodeResult:
        """The result of a failed node: later roles see the parser's default as its action."""
        response, thought = (completion.text, completion.thought) if completion else ("", "")
        (_, index, number), lineage = self._node.id, self._node.lineage
        view = View(index, self._role.parser.default, response, thought, number, lineage, failed=True)
        score = NO_SCORE if self._role.reward else None
        return NodeResult(
            view,
            messages,
            completion,
            seconds,
            failure=failure,
            attempts=self._attempt + 1,
            score=score,
        )
