"""Compiled subclasses of rLLM's Workflow, which its engines and trainers pool, reset and run."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import rllm.types as theirs
from rllm.engine.rollout.rollout_engine import RolloutEngine
from rllm.workflows.workflow import TerminationReason
from rllm.workflows.workflow import Workflow as TheirWorkflow

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.opening import Open
from rolegraph.engine.records import MAIN, Episode, EpisodeDone, Event, FailureName
from rolegraph.engine.records import TerminationReason as Reason
from rolegraph.engine.rllm_bridge.convert import episode_to_rllm, exported, trajectory_to_rllm
from rolegraph.engine.rllm_bridge.models import PolicyModel
from rolegraph.engine.rllm_bridge.prepared import prepared, task_of
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.training.recorded import annotate
from rolegraph.engine.training.signals import apply_signals


class _CompiledClass(ABCMeta):
    """Metaclass of compiled classes; a class is pickled as its plan."""


class SpecWorkflow(TheirWorkflow, metaclass=_CompiledClass):
    """Base of all compiled classes.

    rLLM's rollout engine answers for trained roles and for roles without a model of their own; rLLM limits
    the number of episodes at once (`rllm.workflow.n_parallel_tasks`). An instance keeps no more of a task
    than rLLM's base class, and `reset` clears that, so that instances can be pooled.

    `workflow_args` may have `timeout`, the seconds of an episode, and `open_model`, an async function that
    opens a frozen role's own model or a teacher (for Ray, one that a worker can import); without it, models
    of `tinker` and `openai` can be opened.
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
        """Run one episode; if it is cancelled or fails, its finished trajectories are committed."""
        shared, engine = self._prepared, self.rollout_engine
        row, rollout = task_of(task, uid)
        policy = PolicyModel(engine)
        limited = LimitedModel(policy, self.plan.spec.model.concurrency)
        table = await shared.table(limited, self._open_model)
        job, observe = EpisodeJob(row, rollout), partial(self._commit_finished, policy)
        episode = await run_episode(self.plan, job, table, isolation=shared.isolation, observe=observe)
        reason = _reason(episode, policy, shared.ending)
        if engine.is_validation:
            episode = episode._replace(metadata={**episode.metadata, "validation": True})
        elif self.plan.signals:
            episode = await self._signalled(episode)
        # Roles that run a tool have no tokens, which rLLM would look for.
        asking = [trajectory for trajectory in episode.trajectories if trajectory.name in shared.asking]
        episode = episode._replace(trajectories=asking)
        converted = episode_to_rllm(episode, shared.trained, policy.outputs, reason)
        if reason is TerminationReason.ERROR:
            converted.metadata["error"] = _error(episode)
        return converted

    def _commit_finished(self, policy: PolicyModel, event: Event) -> None:
        """Commit the finished trajectories of an interrupted episode; those that lack a reward are not."""
        if not isinstance(event, EpisodeDone) or event.finished:
            return
        shared = self._prepared
        self._partial = event.episode
        for trajectory in event.episode.trajectories:
            scored = trajectory.reward is not None or trajectory.name not in shared.rewarded
            if scored and trajectory.name in shared.asking:
                for unit in exported(event.episode, trajectory, shared.trained):
                    self.commit(trajectory=trajectory_to_rllm(unit, policy.outputs, shared.trained))

    def postprocess_episode(self, *args: Any, **kwargs: Any) -> theirs.Episode:
        """Give an interrupted episode, the only kind that rLLM passes here, its figures by the spec."""
        episode = super().postprocess_episode(*args, **kwargs)
        if self._partial is not None:
            episode.is_correct = self._partial.is_correct
            episode.metrics = dict(self._partial.metrics)
            episode.metadata = {**self._partial.metadata, **episode.metadata}
        return episode

    async def _signalled(self, episode: Episode) -> Episode:
        models = self._prepared.models(self._open_model)
        teachers = {ref: await models.model(ref) for ref in self.plan.teachers}
        signalled = await apply_signals(self.plan, [episode], teachers, {MAIN: _no_demonstrations})
        return annotate([episode], signalled.advantages, signalled.details)[0]


_classes: dict[str, type[SpecWorkflow]] = {}


def workflow_class(plan: Plan) -> type[SpecWorkflow]:
    """Return the class of a plan; equal plans give the same class, also after unpickling."""
    if plan.hash not in _classes:
        prepared(plan)
        name = "".join(word.capitalize() for word in plan.name.split("_")) + "Workflow"
        described = {"plan": plan, "__doc__": plan.spec.description, "__module__": __name__}
        _classes[plan.hash] = cast("type[SpecWorkflow]", _CompiledClass(name, (SpecWorkflow,), described))
    return _classes[plan.hash]


def _reduce(cls: type[SpecWorkflow]) -> str | tuple[Callable[..., Any], tuple[Plan]]:
    """Pickle a compiled class as its plan, and the base class by its name, for Ray's workers."""
    return (workflow_class, (cls.plan,)) if "plan" in vars(cls) else cls.__qualname__


copyreg.pickle(_CompiledClass, _reduce)  # pyright: ignore[reportArgumentType]  # a class is reduced, not an instance


_REASONS = {
    FailureName.TIMEOUT: TerminationReason.TIMEOUT,
    FailureName.MODEL_ERROR: TerminationReason.ERROR,
    FailureName.PROMPT_ERROR: TerminationReason.ERROR,
    FailureName.REWARD_ERROR: TerminationReason.ERROR,
    FailureName.TOOL_ERROR: TerminationReason.UNKNOWN,
    FailureName.MALFORMED_OUTPUT: TerminationReason.UNKNOWN,
    FailureName.UNPARSEABLE_CHOICE: TerminationReason.UNKNOWN,
    FailureName.UNSUPPORTED_PROGRAM: TerminationReason.UNKNOWN,
    FailureName.CONTEXT_FULL: TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    FailureName.ENVIRONMENT_ERROR: TerminationReason.ERROR,
}
"""rLLM's reason for an episode ended by a role with `then: fail`. rLLM repeats an episode with ERROR, then
ends the run; an answer that cannot be parsed is the model's mistake, and no reason to repeat."""


def _reason(episode: Episode, policy: PolicyModel, ending: Collection[str]) -> TerminationReason:
    """Return rLLM's termination reason of an episode: that of a failed role in `ending`, or of a policy that
    answered no call, else the episode's own."""
    stopped = episode.termination_reason is not Reason.ENV_DONE
    if not stopped and any(trajectory.by_model for trajectory in episode.trajectories):
        return TerminationReason.ENV_DONE
    failures = episode.metadata.get("failures", ())
    rounds = {(failure["role"], failure["index"]): failure.get("round", 1) for failure in failures}
    for trajectory in episode.trajectories:
        if trajectory.failure is None:
            continue
        ends = trajectory.name in ending or trajectory.failure.name is FailureName.ENVIRONMENT_ERROR
        if stopped and not ends:
            continue
        node = trajectory.node._replace(round=rounds.get((trajectory.name, trajectory.index), 1))
        if node in policy.ended:
            return policy.ended[node]
        if trajectory.steps and trajectory.steps[-1].metadata.get("finish_reason") == "length":
            return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
        return _REASONS[trajectory.failure.name]
    return TerminationReason.ENV_DONE


def _error(episode: Episode) -> dict[str, str]:
    """Return the entry that rLLM's engine logs when it repeats an episode."""
    failure = episode.metadata["failures"][-1]
    message = f"{failure['role']} {failure['index']}: {failure['name']}: {failure['message']}"
    return {"error_message": message, "error_type": str(failure["name"]), "traceback": message}


def _no_demonstrations(text: str) -> tuple[int, ...]:
    raise AssertionError("a spec with demonstrations does not compile for rLLM")
