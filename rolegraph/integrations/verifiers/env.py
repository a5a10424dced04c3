"""Spec as an environment of verifiers (`verifiers.v1`): roles are agents, the rewards are those of the spec.

An episode runs in Rolegraph's own scheduler. Each trajectory is one rollout of its role's agent: an
interaction that stays open until the episode ends, and whose turns are the trajectory's model calls. The
calls go through verifiers' interception, which sets the run's model and sampling and records the tokens.

Uses verifiers' environment, harness and trace, but not its trainer. prime-rl, which trains on these traces,
has one baseline over all agents of a task (`algo/grpo.py`), so a role's estimator has no effect there.
"""
# verifiers is an extra, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, ClassVar, Literal

import openai
import verifiers.v1 as vf

from rolegraph.engine.compile import Plan
from rolegraph.engine.connections import client_options
from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.openai import OpenAIModel
from rolegraph.engine.records import Episode, NodeId
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.run.prepared import PreparedPlan, policy_roles

REWARD = "reward"
"""Name of a trajectory's reward on its trace."""
INFO = "rolegraph"
"""Key of `trace.info` with the episode's id, the instance's number and the failure."""
_LOOPBACK = "http://127.0.0.1"


def role() -> vf.AgentConfig:
    """Return the agent config of a role: a plain subprocess runtime, since calls are made in this process."""
    return vf.AgentConfig(runtime=vf.SubprocessConfig())


class RoleSession(vf.HarnessSession):
    """Rollout of one trajectory. Each turn answers `request`, and sets `completion` or `error`."""

    client: openai.AsyncOpenAI
    """HTTP client of the environment; each session sets its own URL and key."""
    request: Request | None = None
    completion: Completion | None = None
    error: ModelError | None = None

    async def _run(self, messages: vf.Messages | None) -> vf.ProgramResult:
        """Send `request` through verifiers' intercepting endpoint; set `completion`, or `error` if the call
        fails."""
        assert self.request is not None
        client = self.client.with_options(base_url=self.endpoint, api_key=self.secret)
        session_model = OpenAIModel(client, self.ctx.model, key=self.secret, tokens=False, escapes=True)
        try:
            self.completion, *_ = await LimitedModel(session_model, 1).complete(self.request)
        except ModelError as error:
            self.error = error
            raise
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class RoleHarness(vf.Harness[vf.HarnessConfig]):
    """Harness of every role: it sends the model calls that our scheduler requests, one for each turn."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, config: vf.HarnessConfig) -> None:
        super().__init__(config)
        self.sessions: dict[str, RoleSession] = {}
        """Open sessions by the id of their trace. verifiers makes a harness for each agent of an episode."""

    async def session(self, ctx: vf.ModelContext, trace: vf.Trace, *args: Any, **kwargs: Any) -> RoleSession:
        """Create and register the session of a rollout."""
        session = self.sessions[trace.id] = RoleSession(self, ctx, trace, *args, **kwargs)
        return session

    async def launch(self, *args: Any, **kwargs: Any) -> vf.ProgramResult:
        """Raise UsageError: only a spec's environment drives this harness."""
        raise UsageError("this harness belongs to the roles of a spec; other agents need one of their own")


class SpecData(vf.TaskData):
    """Row of the spec's data, as a task of verifiers."""

    row: dict[str, Any]


class SpecTask(vf.Task[SpecData]):
    """Task without rewards of its own, because the environment records the spec's rewards."""

    @property
    def key(self) -> str:
        """The row's id."""
        return str(self.data.row["id"])


class SpecTasksetConfig(vf.TasksetConfig):
    """Config of a SpecTaskset: the split whose rows it loads."""

    split: Literal["train", "validation"] = "train"
    """Split of the spec's data (`--env.taskset.split validation`)."""


class SpecTaskset(vf.Taskset[SpecTask, SpecTasksetConfig]):
    """Rows of a spec's data."""

    plan: ClassVar[Plan]

    def load(self) -> Iterator[SpecTask]:
        """Yield the tasks of the split.

        Raises:
            UsageError: The spec has no such split.
        """
        split = self.config.split
        if split not in self.plan.data:
            raise UsageError(f"{self.plan.name} has no {split} data, only {', '.join(self.plan.data)}")
        for number, row in enumerate(self.plan.data[split].rows(None)):
            data = SpecData(idx=number, name=str(row["id"]), row=dict(row))
            yield SpecTask(data, self.config.task)


class SpecEnv(vf.Env[vf.EnvConfig]):
    """Environment of a spec; a subclass names its `plan` and, in its config, an agent for each role."""

    plan: ClassVar[Plan]

    async def start(self) -> None:
        """Open the HTTP client, the processes for rewards and tools, and the opener of roles' own models."""
        self._shared = AsyncExitStack()
        http = openai.DefaultAsyncHttpxClient(**client_options(_LOOPBACK))
        client = openai.AsyncOpenAI(base_url=_LOOPBACK, api_key="none", max_retries=0, http_client=http)
        self._client = await self._shared.enter_async_context(client)
        self._prepared = PreparedPlan(self.plan)
        await self._shared.enter_async_context(self._prepared.isolation)
        self._shared.push_async_callback(self._prepared.close)
        # verifiers does not number the rollouts of a task.
        self._rollouts: defaultdict[str, Iterator[int]] = defaultdict(count)

    async def stop(self) -> None:
        """Close the HTTP client, the processes and the models that `start` opened."""
        if hasattr(self, "_shared"):  # `stop` runs where `start` failed, too
            await self._shared.aclose()

    async def setup(self, agents: vf.Agents) -> None:
        """Set on each agent whether its role is trained."""
        for role_plan in policy_roles(self.plan):
            getattr(agents, role_plan.name).trainable = role_plan.spec.is_trained

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Run one episode of the spec, and record its rewards on the traces."""
        row = task.data.row
        async with AsyncExitStack() as rollouts:
            policy = _Agents(agents, task, rollouts, self._client)
            limited_policy = LimitedModel(policy, self.plan.spec.model.concurrency)
            model_table = await self._prepared.table(limited_policy)
            job = EpisodeJob(row, next(self._rollouts[row["id"]]))
            episode = await run_episode(self.plan, job, model_table, isolation=self._prepared.isolation)
        self._record(episode, policy.traces)

    def _record(self, episode: Episode, traces: dict[NodeId, vf.Trace]) -> None:
        """Record rewards, metrics and masks of each trajectory on its verifiers trace."""
        for trajectory in episode.trajectories:
            trace = traces.get(trajectory.node._replace(round=1))
            if trace is None:
                continue
            if trajectory.reward is not None:
                trace.record_reward(REWARD, float(trajectory.reward))
            trace.record_metrics({name: float(value) for name, value in trajectory.terms.items()})
            if trajectory.name in self.plan.deciding:
                trace.record_metrics({**episode.figures})
            if trajectory.masked:
                trace.agent.trainable = False
            info: dict[str, Any] = {"episode": episode.id, "index": trajectory.index}
            info["masked"] = trajectory.masked
            if trajectory.failure is not None:
                info["failure"] = trajectory.failure.to_dict()
            trace.info[INFO] = info


class _Agents:
    """Model of one episode; it sends each request through the verifiers agent of the asking role."""

    def __init__(
        self, agents: vf.Agents, task: vf.Task, rollouts: AsyncExitStack, client: openai.AsyncOpenAI
    ) -> None:
        self._agents, self._task, self._rollouts, self._client = agents, task, rollouts, client
        self._open: dict[NodeId, tuple[vf.Interaction, RoleSession]] = {}
        self.traces: dict[NodeId, vf.Trace] = {}
        """Traces by trajectory; the key is the trajectory's node in the first round."""

    async def complete(self, request: Request) -> Completion:
        """Answer a request.

        Raises:
            ModelError: The rollout has ended.
        """
        interaction, session = await self._rollout(request.id.node._replace(round=1))
        session.request, session.completion = request, None
        try:
            # verifiers wants a message of the user; the session sends the whole conversation.
            await interaction.turn(str(request.messages[-1].get("content") or "."))
        except RuntimeError as error:  # an earlier call has ended the rollout
            raise ModelError(f"the rollout of {request.id.node} is over: {error}") from error
        if session.completion is None:
            reason = session.error or interaction.trace.stop_condition or interaction.trace.last_error
            raise ModelError(f"verifiers ended the rollout of {request.id.node}: {reason}")
        return session.completion

    async def aclose(self) -> None:
        """Do nothing: verifiers owns the client."""

    async def _rollout(self, node: NodeId) -> tuple[vf.Interaction, RoleSession]:
        """Return (interaction, session) of a trajectory in verifiers, opened at its first call."""
        if node not in self._open:
            agent = getattr(self._agents, node.role)
            if not isinstance(agent.harness, RoleHarness):
                raise UsageError(f"the agent {node.role} needs the environment's own harness: leave it unset")
            interaction = await self._rollouts.enter_async_context(agent.interaction(self._task))
            self.traces[node] = interaction.trace
            session = agent.harness.sessions[interaction.trace.id]
            session.client = self._client
            self._open[node] = interaction, session
        return self._open[node]
