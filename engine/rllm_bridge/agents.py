"""A spec as rLLM's AgentFlow, and the Evaluator beside it: for its gateway, `rllm eval` and `rllm train`.

Each shipped spec is an attribute of this module (`--agent engine.rllm_bridge.agents:solver_judge`); the entry
point `rolegraph` is the spec that the environment variable ROLEGRAPH_SPEC names, a shipped one or a file;
ROLEGRAPH_ALLOW names what it may use.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
import rllm.types as theirs
from rllm.eval.types import EvalOutput, Signal

from engine.compile import Plan, compile_file
from engine.errors import UsageError
from engine.models import LimitedModel
from engine.models.keys import OPENAI
from engine.models.openai import OpenAIModel
from engine.records import CallDone, Episode, Event
from engine.rllm_bridge.convert import calls, unit_to_rllm, units
from engine.rllm_bridge.models import Call
from engine.rllm_bridge.prepared import OfLoop, prepared, task_of
from engine.run import Job, run_episode
from engine.shipped import SPECS

SPEC_VARIABLE = "ROLEGRAPH_SPEC"
ALLOW_VARIABLE = "ROLEGRAPH_ALLOW"
"""What `--allow` names elsewhere, between spaces."""

_NO_KEY = "none"
_clients = OfLoop(lambda: openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key=_NO_KEY, max_retries=0))
"""Whose connections all sessions of an event loop share; each session has its own URL."""


@dataclass(frozen=True, slots=True)
class SpecFlow:
    """An AgentFlow. Its trajectories are steps, in the order in which their calls were answered.

    rLLM's gateway gives the k-th step the k-th answer's tokens, whoever asked for it; with this order each
    has its own, and the Evaluator puts steps together that belong together. So a trajectory without an answer
    is left out (it is named in the episode's metadata), as is that of a role with a model of its own. Masked
    trajectories and roles that are not trained are kept from the gradient by `grouping_hook`.
    """

    plan: Plan

    @property
    def name(self) -> str:
        """The spec's name."""
        return self.plan.name

    def run(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """As `arun`, for a caller without an event loop."""
        return asyncio.run(self._alone(task, config))

    async def _alone(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """One episode in an event loop of its own, with which everything that it opened has to end."""
        try:
            return await self.arun(task, config)
        finally:
            await prepared(self.plan).close()
            if (client := _clients.pop()) is not None:
                await client.close()

    async def arun(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """One episode against `config.base_url`, scored already."""
        shared = prepared(self.plan)
        row, rollout = task_of(task, config.session_uid)
        # The gateway passes the key on to whoever answers behind it.
        key = OPENAI.key(config.base_url, explicit=None, trusted_url=None) or _NO_KEY
        client = _clients.get().with_options(base_url=config.base_url, api_key=key)
        model = OpenAIModel(client, config.model, key=key, tokens=False)
        policy = LimitedModel(model, self.plan.spec.model.concurrency)
        answered: list[Call] = []

        def note(event: Event) -> None:
            if isinstance(event, CallDone) and event.answered:
                node = event.id.node
                if node.role in shared.answered_by_rllm:
                    answered.append((node, event.id.call))

        table = await shared.table(policy, None)
        job = Job(row, rollout)
        episode = await run_episode(self.plan, job, table, isolation=shared.isolation, observe=note)
        if not answered:
            raise RuntimeError(f"no call of {episode.id} was answered: {episode.metadata['failures'][0]}")
        return _to_rllm(episode, answered, self.plan, validation=config.is_validation)


def _to_rllm(episode: Episode, answered: Sequence[Call], plan: Plan, *, validation: bool) -> theirs.Episode:
    place = {call: number for number, call in enumerate(answered)}
    whole: dict[str, list[theirs.Trajectory]] = {}
    at: dict[str, int] = {}
    for trajectory in episode.trajectories:
        for unit in units(episode, trajectory, plan.trained):
            places = [place[call] for call, _ in calls(unit.trajectory) if call in place]
            if places:
                made = unit_to_rllm(unit, {}, None)
                whole[made.uid] = _by_step(made)
                at |= zip((alone.uid for alone in whole[made.uid]), places, strict=True)
    loose = {alone.uid: alone for steps in whole.values() for alone in steps}
    deciding = [t.reward or 0.0 for t in episode.trajectories if t.name == plan.roles[plan.correct].name]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        is_correct=episode.is_correct,
        trajectories=[loose[uid] for uid in sorted(loose, key=at.__getitem__)],
        metrics=dict(episode.metrics),
        metadata={**episode.metadata, **({"validation": True} if validation else {})},
        artifacts={
            "reward": sum(deciding) / max(1, len(deciding)),
            "metrics": dict(episode.metrics),
            "whole": whole,
        },
    )


def _by_step(trajectory: theirs.Trajectory) -> list[theirs.Trajectory]:
    """A trajectory for each step."""
    if len(trajectory.steps) == 1:
        return [trajectory]
    return [
        trajectory.model_copy(update={"uid": f"{trajectory.uid}#{number}", "steps": [step]})
        for number, step in enumerate(trajectory.steps, 1)
    ]


class SpecEvaluator:
    """An Evaluator for every SpecFlow. A flow scores as it runs; this passes it on, and checks the tokens."""

    def evaluate(self, task: Any, episode: theirs.Episode) -> EvalOutput:
        """The episode's figures, whose steps have been given the gateway's tokens by now.

        The gateway counts a refused call too, which shifts those after it. Then a validation gets its own
        steps back, without tokens; in training this raises RuntimeError, and rLLM runs the episode again.
        """
        artifacts = episode.artifacts
        whole: Mapping[str, list[theirs.Trajectory]] = artifacts.pop("whole", {})
        given = {trajectory.uid: trajectory for trajectory in episode.trajectories}
        for uid, ours in whole.items():
            first, mine = given[ours[0].uid], [step for alone in ours for step in alone.steps]
            steps = [step for alone in ours for step in given.pop(alone.uid).steps]
            if any(
                own.model_response not in step.model_response for own, step in zip(mine, steps, strict=True)
            ):
                if not episode.metadata.get("validation"):
                    raise RuntimeError(f"{uid} was given the answer of another call")
                steps = mine
            # As the compiled Workflow does, a trajectory leaves its masked turns behind.
            taught = [s for own, s in zip(mine, steps, strict=True) if not (own.metadata or {}).get("masked")]
            first.uid, first.steps = uid, taught or steps
            given[uid] = first
        episode.trajectories = [it for it in episode.trajectories if it.uid in given]
        for trajectory in episode.trajectories:
            trajectory.signals = dict((trajectory.metadata or {}).get("signals", {}))
        signals = [Signal(name, value) for name, value in artifacts.get("metrics", {}).items()]
        return EvalOutput(artifacts.get("reward", 0.0), episode.is_correct, signals)


evaluator = SpecEvaluator()


def flow(plan: Plan) -> SpecFlow:
    """The flow of a plan; raises UsageError for what the gateway's way of matching tokens cannot carry."""
    shared = prepared(plan)
    if plan.withheld:
        names = " ".join(permission.name for permission in plan.withheld)
        raise UsageError(f"{plan.name} uses what has to be allowed: set {ALLOW_VARIABLE}={names!r}")
    for name in plan.signals:
        raise UsageError(f"{name}: rLLM's gateway carries no advantages; use the compiled Workflow")
    shared.check_opening(None)
    for role in plan.roles:
        if role.name in shared.answered_by_rllm and (role.on_failure.retry or role.timeout is not None):
            raise UsageError(
                f"{role.name}: rLLM's gateway matches answers to steps by their number, which an answer that "
                "is asked for again, or given up, would shift; take `retry` and `timeout` out, or use the "
                "compiled Workflow"
            )
    return SpecFlow(plan)


def __getattr__(name: str) -> SpecFlow:
    if name == "rolegraph":
        allow = os.environ.get(ALLOW_VARIABLE, "").split()
        return flow(compile_file(os.environ.get(SPEC_VARIABLE, "solver_judge"), allow=allow))
    if (SPECS / f"{name}.yaml").is_file():
        return flow(compile_file(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
