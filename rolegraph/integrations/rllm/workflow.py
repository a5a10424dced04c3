"""Compiled subclasses of rLLM's Workflow, which its engines and trainers pool, reset and run."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import copyreg
import json
import time
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import rllm.types as theirs
from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
from rllm.workflows.workflow import TerminationEvent, TerminationReason
from rllm.workflows.workflow import Workflow as TheirWorkflow

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import TeacherKey
from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.openai import wire_message
from rolegraph.engine.models.opening import Open
from rolegraph.engine.prompts.call_forms import HERMES, tool_call
from rolegraph.engine.prompts.markers import escape_families
from rolegraph.engine.prompts.tools import described
from rolegraph.engine.records import Episode, EpisodeDone, Event, FailureName, NodeId, Observer
from rolegraph.engine.records import TerminationReason as Reason
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.training.advantages.ledger import Membership, add_signals
from rolegraph.engine.vocabulary import Function, ToolCall
from rolegraph.integrations.rllm.convert import Call, trajectories_to_rllm
from rolegraph.integrations.rllm.keys import refuse
from rolegraph.integrations.rllm.prepared import prepared, task_of


class PolicyModel(LimitedModel):
    """rLLM's rollout engine as the model of one episode: rLLM limits and repeats the calls, and reads token
    ids and log-probabilities from the answers.

    A TerminationEvent of the engine fails only the calling instance: with `timeout` for a timeout, else with
    `model_error`. The event's reason is kept in `ended`.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine, 1)  # the limit is unused
        self._engine = engine
        self.outputs: dict[Call, ModelOutput] = {}
        """Last answer to each call, for conversion."""
        self.ended: dict[NodeId, TerminationReason] = {}
        """Reason of the TerminationEvent of each turn that got no answer."""

    async def complete(
        self, request: Request, seconds: float | None = None, observe: Observer | None = None
    ) -> tuple[Completion, float, float]:
        """Answer a request, and return (completion, start, seconds).

        Raises:
            ModelError, TimeoutError: The engine terminates the call.
        """
        node, start = request.id.node, time.monotonic()
        # What the spec leaves out is as in rLLM's config, whose `max_tokens` is the longest of all roles.
        sampling = request.sampling
        set_options = sampling.model_fields_set & {"temperature", "top_p", "stop"}
        options: dict[str, Any] = {name: getattr(sampling, name) for name in set_options}
        options["max_tokens"] = sampling.max_tokens
        if request.seed is not None:
            options["seed"] = request.seed
        if request.tools:
            options["tools"] = escape_families(described(request.tools))
        # rLLM's engines render a chat and encode it at once, template and texts alike.
        messages = escape_families([*map(wire_message, request.messages)])
        try:
            async with asyncio.timeout(seconds):
                output = await self._engine.get_model_response(messages, **options)
        except TerminationEvent as event:
            self.ended[node] = event.reason
            if event.reason is TerminationReason.TIMEOUT:
                raise TimeoutError from event
            raise ModelError(f"rLLM's engine ended the call: {event.reason.value}") from event
        self.outputs[node, request.id.call] = output
        text, calls = _text_and_calls(output, request.tools)
        answer = Completion(
            text=text,
            thought=output.reasoning or "",
            prompt_ids=output.prompt_ids or (),
            response_ids=output.completion_ids or (),
            logprobs=output.logprobs or (),
            finish_reason=output.finish_reason or "stop",
            weight_version=output.weight_version,
            calls=calls,
        )
        return answer, start, time.monotonic() - start


def _text_and_calls(output: ModelOutput, tools: Sequence[Function]) -> tuple[str, Sequence[ToolCall]]:
    """Return an answer's text and tool calls: those in the text, else those that rLLM's parser found."""
    text = (output.text if output.content is None else output.content) or ""
    if not tools:
        return text, ()
    text, calls = HERMES.find(text)
    if output.tool_calls and not calls:
        calls = tuple(tool_call(call.name, json.dumps(call.arguments)) for call in output.tool_calls)
    return text, calls


class _CompiledClass(ABCMeta):
    """Metaclass of compiled classes, which are pickled as their plans."""


class SpecWorkflow(TheirWorkflow, metaclass=_CompiledClass):
    """Base of all compiled classes.

    rLLM's rollout engine answers for trained roles and for roles without a model of their own; rLLM limits
    the number of concurrent episodes (`rllm.workflow.n_parallel_tasks`). An instance keeps no more of a task
    than rLLM's base class does, and `reset` clears that, so that instances can be pooled.

    `workflow_args` may have `timeout`, the seconds of an episode, and `open_model`, an async function that
    opens a frozen role's own model or a teacher (for Ray, a function that a worker can import). Without
    `open_model`, only models of `tinker` and `openai` can be opened.
    """

    plan: ClassVar[Plan]
    """Plan that the class runs."""

    def __init__(
        self,
        rollout_engine: RolloutEngine,
        executor: Any,
        timeout: float = 1e6,
        store: Any = None,
        open_model: Open | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise UsageError(f"workflow_args: unknown {', '.join(unknown)}; expected timeout, open_model")
        super().__init__(rollout_engine, executor, timeout=timeout, store=store)
        self.timeout = timeout  # rLLM's base class truncates 0.5 s to 0
        self._prepared = prepared(self.plan)
        self._prepared.check_opening(open_model)
        self._open_model = open_model
        self._partial: Episode | None = None

    def reset(self, task: Mapping[str, Any] | None = None, uid: str | None = None) -> None:
        """Clear the previous task; there are no agents or environments to reset."""
        self.task, self.uid = task, uid
        self._completed_trajectories = []
        self._partial = None

    async def run(self, task: Any, uid: str, **_: object) -> theirs.Episode:
        """Run one episode; if the episode is cancelled or fails, its finished trajectories are committed."""
        prepared_plan, engine = self._prepared, self.rollout_engine
        row, rollout = task_of(task, uid)
        policy = PolicyModel(engine)
        table = await prepared_plan.table(policy, self._open_model)
        job, observe = EpisodeJob(row, rollout), partial(self._commit_finished, policy)
        episode = await run_episode(self.plan, job, table, isolation=prepared_plan.isolation, observe=observe)
        reason = _reason(episode, policy, prepared_plan.ending)
        if engine.is_validation:
            episode = episode._replace(metadata={**episode.metadata, "validation": True})
        elif self.plan.signals:
            episode = await self._signalled(episode)
        source = episode.task.get("data_source") or self.plan.name
        error = {"error": _error(episode)} if reason is TerminationReason.ERROR else {}
        return theirs.Episode(
            id=episode.id,
            task=episode.task,
            termination_reason=reason,
            is_correct=episode.is_correct,
            trajectories=[*self._converted(policy, episode)],
            metrics=dict(episode.metrics),
            metadata={**episode.metadata, "data_source": source, **error},
        )

    def _converted(
        self, policy: PolicyModel, episode: Episode, *, unscored: bool = True
    ) -> Iterator[theirs.Trajectory]:
        """Yield an episode's trajectories converted to rLLM's.

        Roles that run a tool are left out, because rLLM would look for their tokens.

        Args:
            policy: Model of the episode.
            episode: The episode.
            unscored: False to leave out trajectories without a reward.
        """
        setup = self._prepared
        for trajectory in episode.trajectories:
            is_included = unscored or trajectory.reward is not None or trajectory.name not in setup.rewarded
            if is_included and trajectory.name in setup.asking:
                yield from trajectories_to_rllm(episode, trajectory, setup.trained, policy.outputs)

    def _commit_finished(self, policy: PolicyModel, event: Event) -> None:
        """Commit an interrupted episode's scored trajectories to rLLM, and keep the episode for its
        metrics."""
        if not isinstance(event, EpisodeDone) or event.finished:
            return
        self._partial = event.episode
        for trajectory in self._converted(policy, event.episode, unscored=False):
            self.commit(trajectory=trajectory)

    def postprocess_episode(self, *args: Any, **kwargs: Any) -> theirs.Episode:
        """Set the spec's correctness and metrics on an interrupted episode, the only kind that rLLM passes
        here."""
        episode = super().postprocess_episode(*args, **kwargs)
        if self._partial is not None:
            episode.is_correct = self._partial.is_correct
            episode.metrics = dict(self._partial.metrics)
            episode.metadata = {**self._partial.metadata, **episode.metadata}
        return episode

    async def _signalled(self, episode: Episode) -> Episode:
        models = self._prepared.models(self._open_model)
        teachers: dict[TeacherKey, LimitedModel] = {}
        for ref in self.plan.teachers:
            teachers[ref] = await models.model(ref)
        plan = self.plan
        ledger = Membership(plan.trained, plan.policy_of).add([episode]).ledger()
        signals = (await add_signals(ledger, plan, teachers, {})).signals
        return episode._replace(trajectories=tuple(map(signals.alone, episode.trajectories)))


_classes: dict[str, type[SpecWorkflow]] = {}


def workflow_class(plan: Plan) -> type[SpecWorkflow]:
    """Return the class of a plan; equal plans give the same class, also after unpickling.

    Raises:
        UsageError: No backend of rLLM trains the plan as the spec says.
    """
    if plan.hash not in _classes:
        refuse(plan)
        prepared(plan)
        name = "".join(word.capitalize() for word in plan.name.split("_")) + "Workflow"
        attributes = {"plan": plan, "__doc__": plan.spec.description, "__module__": __name__}
        _classes[plan.hash] = cast("type[SpecWorkflow]", _CompiledClass(name, (SpecWorkflow,), attributes))
    return _classes[plan.hash]


def _reduce(cls: type[SpecWorkflow]) -> str | tuple[Callable[..., Any], tuple[Plan]]:
    """Pickle a compiled class as its plan, and the base class by name; Ray would otherwise copy the class."""
    return (workflow_class, (cls.plan,)) if "plan" in vars(cls) else cls.__qualname__


copyreg.pickle(_CompiledClass, _reduce)  # pyright: ignore[reportArgumentType]  # a class is reduced, not an instance


_REASONS = {
    FailureName.TIMEOUT: TerminationReason.TIMEOUT,
    FailureName.CONTEXT_FULL: TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    **dict.fromkeys(("model_error", "prompt_error"), TerminationReason.ERROR),
    **dict.fromkeys(("reward_error", "environment_error"), TerminationReason.ERROR),
}
"""rLLM's reason for an episode that ended by the failure of a role with `then: fail`.

rLLM repeats an episode with ERROR, then ends the run. Other failures, such as an answer that cannot be
parsed, get UNKNOWN, because they are no reason to repeat.
"""


def _reason(episode: Episode, policy: PolicyModel, ending: Collection[str]) -> TerminationReason:
    """Return rLLM's TerminationReason for an episode.

    The reason follows from the failure of a role in `ending`, or from a failure if the policy answered no
    call; otherwise from the end of the episode.
    """
    is_stopped = episode.termination_reason is not Reason.ENV_DONE
    if not is_stopped and any(trajectory.by_model for trajectory in episode.trajectories):
        return TerminationReason.ENV_DONE
    last_rounds = {node[:2]: node.round for node in episode.failures}
    for trajectory in episode.trajectories:
        if trajectory.failure is None:
            continue
        ends_episode = trajectory.name in ending or trajectory.failure.name is FailureName.ENVIRONMENT_ERROR
        if is_stopped and not ends_episode:
            continue
        node = trajectory.node._replace(round=last_rounds.get(trajectory.node[:2], 1))
        if node in policy.ended:
            return policy.ended[node]
        if trajectory.steps and trajectory.steps[-1].metadata.get("finish_reason") == "length":
            return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
        return _REASONS.get(trajectory.failure.name, TerminationReason.UNKNOWN)
    return TerminationReason.ENV_DONE


def _error(episode: Episode) -> dict[str, str]:
    """Return the last failure of an episode as the entry `error`, which rLLM logs when it repeats the
    episode."""
    *_, failure = episode.failures.values()
    message = f"{failure['role']} {failure['index']}: {failure['name']}: {failure['message']}"
    return {"error_message": message, "error_type": failure["name"], "traceback": message}
