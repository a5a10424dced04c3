"""A spec as one of rLLM's Workflow classes: its engines and trainers pool, reset and run it as their own."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import rllm.types as theirs
from rllm.engine.rollout.rollout_engine import RolloutEngine
from rllm.workflows.workflow import TerminationReason
from rllm.workflows.workflow import Workflow as TheirWorkflow

from engine.episode import Episode, FailureName, Task
from engine.episode import TerminationReason as Reason
from engine.errors import UsageError
from engine.isolation import Isolation
from engine.models import open_model
from engine.models.gate import Gate
from engine.plan import Plan
from engine.rllm_bridge.convert import episode_to_rllm, trajectory_to_rllm
from engine.rllm_bridge.models import Elsewhere, Open, PolicyModel, sampling_of
from engine.rllm_bridge.source import Source
from engine.scheduler import Workflow
from engine.signals import apply_signals
from engine.spec.models import ModelRef

POLICY = ModelRef(provider="tinker", name="rLLM's rollout engine")
"""Stands for rLLM's rollout engine in a plan whose roles answer from it."""


class _Shared:
    """What all instances of a class need of its plan."""

    def __init__(self, plan: Plan) -> None:
        self.trained = frozenset(role.name for role in plan.roles if role.trainable)
        self.earning = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.signalled = {role.name: role.signal for role in plan.roles if role.trainable and role.signal}
        for name, signal in self.signalled.items():
            if signal.demonstration is not None:
                raise UsageError(
                    f"{name} imitates demonstrations, which rLLM cannot train on: it has no cross-entropy "
                    "loss for a turn that was not sampled; use Rolegraph's own trainer"
                )
        self.teachers = list(dict.fromkeys(s.teacher for s in self.signalled.values() if s.teacher))
        roles = tuple(
            replace(role, model=POLICY) if role.trainable or role.model == plan.spec.model else role
            for role in plan.roles
        )
        self.plan = replace(plan, roles=roles)
        self.sampling = sampling_of(plan)
        self.isolation = Isolation()
        self._opened: WeakKeyDictionary[Any, dict[ModelRef, Elsewhere]] = WeakKeyDictionary()

    def elsewhere(self, engine: RolloutEngine, open_: Open) -> dict[ModelRef, Elsewhere]:
        """The models that are not the policy, shared by the instances of one rollout engine."""
        if engine not in self._opened:
            own = [role.model for role in self.plan.roles if role.model != POLICY]
            refs = dict.fromkeys([*own, *self.teachers])
            self._opened[engine] = {ref: Elsewhere(ref, open_) for ref in refs}
        return self._opened[engine]


@lru_cache(maxsize=64)
def _shared(source: Source) -> _Shared:
    return _Shared(source.plan)


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
        self._shared = _shared(self.source)
        self._elsewhere = self._shared.elsewhere(rollout_engine, open_model or _open)
        self._partial: Episode | None = None

    def reset(self, task: Mapping[str, Any] | None = None, uid: str | None = None) -> None:
        """Forget the task before. There are no agents or environments here to look for."""
        self.task, self.uid = task, uid
        self._completed_trajectories = []
        self._partial = None

    async def run(self, task: Any, uid: str, **_: object) -> theirs.Episode:
        """One episode. What is finished when it is cancelled or fails is committed first."""
        shared, engine = self._shared, self.rollout_engine
        row, rollout = _row(task, uid)
        policy = PolicyModel(engine, shared.sampling)
        gates = {ref: model.gate for ref, model in self._elsewhere.items()}
        gates[POLICY] = Gate(policy, POLICY.concurrency)
        workflow = Workflow(shared.plan, gates, shared.isolation)
        episode = await workflow.run_episode(row, rollout, partial(self._keep, policy))
        reason = _reason(episode, policy)
        if engine.is_validation:
            episode = replace(episode, metadata={**episode.metadata, "validation": True})
        elif shared.signalled:
            episode = await self._signalled(episode)
        made = episode_to_rllm(episode, shared.trained, policy.outputs, reason)
        if reason is TerminationReason.ERROR:
            made.metadata["error"] = _error(episode)
        return made

    def _keep(self, policy: PolicyModel, episode: Episode) -> None:
        """Commit what is finished of an interrupted episode; an answer without its reward is not."""
        shared = self._shared
        self._partial = episode
        for own in episode.trajectories:
            if own.reward is not None or own.name not in shared.earning:
                self.commit(trajectory=trajectory_to_rllm(own, shared.trained, policy.outputs))

    def postprocess_episode(self, *args: Any, **kwargs: Any) -> theirs.Episode:
        """Only an interrupted episode comes here: its figures are the spec's, of what was finished."""
        made = super().postprocess_episode(*args, **kwargs)
        if self._partial is not None:
            made.is_correct = self._partial.is_correct
            made.metrics = dict(self._partial.metrics)
            made.metadata = {**self._partial.metadata, **made.metadata}
        return made

    async def _signalled(self, episode: Episode) -> Episode:
        teachers = {ref: await self._elsewhere[ref].teacher() for ref in self._shared.teachers}
        signalled = await apply_signals(self._shared.plan, [episode], teachers, _no_demonstrations)
        return signalled.episodes[0]


@lru_cache(maxsize=64)
def workflow_class(source: Source) -> type[SpecWorkflow]:
    """The class of a source, the same each time."""
    plan = _shared(source).plan
    name = "".join(word.capitalize() for word in plan.name.split("_")) + "Workflow"
    described = {"source": source, "__doc__": plan.spec.description, "__module__": __name__}
    return cast("type[SpecWorkflow]", _Compiled(name, (SpecWorkflow,), described))


def _reduce(cls: type[SpecWorkflow]) -> str | tuple[Callable[..., Any], tuple[Source]]:
    return (workflow_class, (cls.source,)) if "source" in vars(cls) else cls.__qualname__


copyreg.pickle(_Compiled, _reduce)  # pyright: ignore[reportArgumentType]  # a class is reduced, not an instance


def _row(task: Any, uid: str) -> tuple[Task, int]:
    """The task with its id, and the rollout's number, from rLLM's `task_id:rollout`."""
    row: Mapping[str, Any] = task if isinstance(task, Mapping) else task.metadata
    task_id, _, rollout = uid.rpartition(":")
    if not task_id or not rollout.isdigit():
        task_id, rollout = uid, "0"
    if ":" in task_id:
        raise UsageError(
            f"the task id {task_id!r} holds a colon, at which rLLM cuts it, so that tasks would share "
            "a group; give the dataset's rows an `id` without one"
        )
    return (row if row.get("id") == task_id else {**row, "id": task_id}), int(rollout)


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


def _reason(episode: Episode, policy: PolicyModel) -> TerminationReason:
    """rLLM's reason: why the episode was ended, or why no call of it was answered."""
    stopped = episode.termination_reason is not Reason.ENV_DONE
    if not stopped and any(own.steps for own in episode.trajectories):
        return TerminationReason.ENV_DONE
    failures = [(own, own.failure) for own in episode.trajectories if own.failure is not None]
    if not failures:
        return TerminationReason.ENV_DONE
    own, failure = failures[-1 if stopped else 0]
    if (own.name, own.index) in policy.ended:
        return policy.ended[own.name, own.index]
    if own.steps and own.steps[-1].metadata.get("finish_reason") == "length":
        return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    return _REASONS[failure.name]


def _error(episode: Episode) -> dict[str, str]:
    """What rLLM's engine logs of an episode that it runs again."""
    failure = episode.metadata["failures"][-1]
    message = f"{failure['role']} {failure['index']}: {failure['name']}: {failure['message']}"
    return {"error_message": message, "error_type": str(failure["name"]), "traceback": message}


async def _open(ref: ModelRef) -> Any:
    return await open_model(ref)


def _no_demonstrations(text: str) -> tuple[int, ...]:
    raise AssertionError("a spec with demonstrations does not compile for rLLM")
