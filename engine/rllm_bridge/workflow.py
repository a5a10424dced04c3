"""A spec as one of rLLM's Workflow classes: its engines and trainers pool, reset and run it as their own."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, cast

import rllm.types as theirs
from rllm.engine.rollout.rollout_engine import RolloutEngine
from rllm.workflows.workflow import TerminationReason
from rllm.workflows.workflow import Workflow as TheirWorkflow

from engine.errors import UsageError
from engine.models.limit import Gate
from engine.records import Episode, FailureName
from engine.records import TerminationReason as Reason
from engine.rllm_bridge.convert import episode_to_rllm, trajectory_to_rllm
from engine.rllm_bridge.models import Open, PolicyModel
from engine.rllm_bridge.prepared import POLICY, prepared, task_of
from engine.rllm_bridge.source import Source
from engine.run.scheduler import Workflow
from engine.training.signals import apply_signals


class _Compiled(ABCMeta):
    """The type of compiled classes: each is pickled as the spec that it was compiled from."""


class SpecWorkflow(TheirWorkflow, metaclass=_Compiled):
    """The base of every compiled class; `source` says which spec.

    Roles that are trained, and roles without a model of their own, answer from rLLM's rollout engine; how
    many calls are under way is then rLLM's business (`rllm.workflow.n_parallel_tasks`). An instance keeps
    nothing of a task but what rLLM's own base class keeps, and `reset` clears that, so it can be pooled.

    `workflow_args`: `timeout`, seconds for an episode; `open_model`, an async function that opens a frozen
    role's own model or a teacher (for Ray, one that a worker can import). None opens `tinker` and `openai`.
    """

    source: ClassVar[Source]

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
            raise UsageError(f"workflow_args: no {', '.join(unknown)} here; known: timeout, open_model")
        super().__init__(rollout_engine, executor, timeout=timeout, store=store)
        self.timeout = timeout  # theirs cuts 0.5 s to 0
        self._prepared = prepared(self.source)
        self._elsewhere = self._prepared.elsewhere(rollout_engine, open_model)
        self._partial: Episode | None = None

    def reset(self, task: Mapping[str, Any] | None = None, uid: str | None = None) -> None:
        """Forget the task before. There are no agents or environments here to look for."""
        self.task, self.uid = task, uid
        self._completed_trajectories = []
        self._partial = None

    async def run(self, task: Any, uid: str, **_: object) -> theirs.Episode:
        """One episode. What is finished when it is cancelled or fails is committed first."""
        shared, engine = self._prepared, self.rollout_engine
        row, rollout = task_of(task, uid)
        policy = PolicyModel(engine, shared.sampling)
        gates = {ref: model.gate for ref, model in self._elsewhere.items()}
        gates[POLICY] = Gate(policy, POLICY.concurrency)
        workflow = Workflow(shared.plan, gates, shared.isolation)
        episode = await workflow.run_episode(row, rollout, partial(self._keep, policy))
        reason = _reason(episode, policy, shared.ending)
        if engine.is_validation:
            episode = replace(episode, metadata={**episode.metadata, "validation": True})
        elif shared.plan.signals:
            episode = await self._signalled(episode)
        made = episode_to_rllm(episode, shared.trained, policy.outputs, reason)
        if reason is TerminationReason.ERROR:
            made.metadata["error"] = _error(episode)
        return made

    def _keep(self, policy: PolicyModel, episode: Episode) -> None:
        """Commit what is finished of an interrupted episode; an answer without its reward is not."""
        shared = self._prepared
        self._partial = episode
        for own in episode.trajectories:
            if own.reward is not None or own.name not in shared.earning:
                withhold = own.masked or own.name not in shared.trained
                self.commit(trajectory=trajectory_to_rllm(own, policy.outputs, withhold=withhold))

    def postprocess_episode(self, *args: Any, **kwargs: Any) -> theirs.Episode:
        """Only an interrupted episode comes here: its figures are the spec's, of what was finished."""
        made = super().postprocess_episode(*args, **kwargs)
        if self._partial is not None:
            made.is_correct = self._partial.is_correct
            made.metrics = dict(self._partial.metrics)
            made.metadata = {**self._partial.metadata, **made.metadata}
        return made

    async def _signalled(self, episode: Episode) -> Episode:
        teachers = {ref: await self._elsewhere[ref].teacher() for ref in self._prepared.teachers}
        signalled = await apply_signals(self._prepared.plan, [episode], teachers, _no_demonstrations)
        return signalled.episodes[0]


@lru_cache(maxsize=64)
def workflow_class(source: Source) -> type[SpecWorkflow]:
    """The class of a source, the same each time."""
    plan = prepared(source).plan
    name = "".join(word.capitalize() for word in plan.name.split("_")) + "Workflow"
    described = {"source": source, "__doc__": plan.spec.description, "__module__": __name__}
    return cast("type[SpecWorkflow]", _Compiled(name, (SpecWorkflow,), described))


def _reduce(cls: type[SpecWorkflow]) -> str | tuple[Callable[..., Any], tuple[Source]]:
    return (workflow_class, (cls.source,)) if "source" in vars(cls) else cls.__qualname__


copyreg.pickle(_Compiled, _reduce)  # pyright: ignore[reportArgumentType]  # a class is reduced, not an instance


_REASONS = {
    FailureName.TIMEOUT: TerminationReason.TIMEOUT,
    FailureName.MODEL_ERROR: TerminationReason.ERROR,
    FailureName.PROMPT_ERROR: TerminationReason.ERROR,
    FailureName.REWARD_ERROR: TerminationReason.ERROR,
    FailureName.MALFORMED_OUTPUT: TerminationReason.UNKNOWN,
    FailureName.UNPARSEABLE_CHOICE: TerminationReason.UNKNOWN,
}
"""Why an episode ended that a role with `then: fail` ended. rLLM runs an episode with ERROR again from the
start, then gives up the run; an answer that cannot be read is the model's, and no reason for that."""


def _reason(episode: Episode, policy: PolicyModel, ending: Collection[str]) -> TerminationReason:
    """rLLM's reason: why a role in `ending` ended the episode, or why no call of it was answered."""
    stopped = episode.termination_reason is not Reason.ENV_DONE
    if not stopped and any(own.steps for own in episode.trajectories):
        return TerminationReason.ENV_DONE
    for own in episode.trajectories:
        if own.failure is None or (stopped and own.name not in ending):
            continue
        if (own.name, own.index) in policy.ended:
            return policy.ended[own.name, own.index]
        if own.steps and own.steps[-1].metadata.get("finish_reason") == "length":
            return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
        return _REASONS[own.failure.name]
    return TerminationReason.ENV_DONE


def _error(episode: Episode) -> dict[str, str]:
    """What rLLM's engine logs of an episode that it runs again."""
    failure = episode.metadata["failures"][-1]
    message = f"{failure['role']} {failure['index']}: {failure['name']}: {failure['message']}"
    return {"error_message": message, "error_type": str(failure["name"]), "traceback": message}


def _no_demonstrations(text: str) -> tuple[int, ...]:
    raise AssertionError("a spec with demonstrations does not compile for rLLM")
