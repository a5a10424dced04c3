"""A spec as rLLM's AgentFlow, and the Evaluator beside it: for its gateway, `rllm eval` and `rllm train`.

Each shipped spec is an attribute of this module (`--agent engine.rllm_bridge.agents:solver_judge`); the entry
point `rolegraph` is the spec that the environment variable ROLEGRAPH_SPEC names, a shipped one or a file.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import openai
import rllm.types as theirs
from rllm.eval.types import EvalOutput, Signal

from engine.compile.plan import Plan
from engine.errors import UsageError
from engine.models.limit import Gate
from engine.models.openai import OpenAIModel
from engine.models.types import Completion, Model, Request
from engine.records import Episode
from engine.rllm_bridge.convert import trajectory_to_rllm
from engine.rllm_bridge.prepared import POLICY, prepared, task_of
from engine.rllm_bridge.source import Source, source_of
from engine.run.scheduler import Workflow
from engine.shipped import SPECS

SPEC_VARIABLE = "ROLEGRAPH_SPEC"


class _Ordered:
    """A model that notes in which order its answers came."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.finished: list[tuple[str, int]] = []

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError."""
        completion = await self._model.complete(request)
        self.finished.append((request.role, request.index))
        return completion

    async def aclose(self) -> None:
        """The connections are the event loop's."""


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = WeakKeyDictionary()


def _client(base_url: str) -> openai.AsyncOpenAI:
    """A client of one session; all sessions of an event loop share their connections."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    return _clients[loop].with_options(base_url=base_url)


@dataclass(frozen=True, slots=True)
class SpecFlow:
    """An AgentFlow. Its trajectories are in the order in which their calls were answered.

    rLLM's gateway gives the k-th step the k-th answer's tokens, whoever asked for it; with this order each
    instance has its own. So a trajectory without an answer is left out (it is named in the episode's
    metadata), as is that of a role with a model of its own. Masked trajectories and roles that are not
    trained are kept from the gradient by `grouping_hook`.
    """

    source: Source

    @property
    def name(self) -> str:
        """The spec's name."""
        return self.source.plan.name

    def run(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """As `arun`, for a caller without an event loop."""
        return asyncio.run(self.arun(task, config))

    async def arun(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """One episode against `config.base_url`, scored already."""
        shared = prepared(self.source)
        row, rollout = task_of(task, config.session_uid)
        policy = _Ordered(OpenAIModel(_client(config.base_url), config.model, tokens=False))
        elsewhere = shared.elsewhere(asyncio.get_running_loop(), None)
        gates = {ref: model.gate for ref, model in elsewhere.items()}
        gates[POLICY] = Gate(policy, POLICY.concurrency)
        episode = await Workflow(shared.plan, gates, shared.isolation).run_episode(row, rollout)
        if not policy.finished:
            raise RuntimeError(f"no call of {episode.id} was answered: {episode.metadata['failures'][0]}")
        return _to_rllm(episode, policy, shared.plan, validation=config.is_validation)


def _to_rllm(episode: Episode, policy: _Ordered, plan: Plan, *, validation: bool) -> theirs.Episode:
    place = {key: number for number, key in enumerate(policy.finished)}
    answered = [own for own in episode.trajectories if (own.name, own.index) in place]
    answered.sort(key=lambda own: place[own.name, own.index])
    trajectories = [trajectory_to_rllm(own, {}, withhold=False) for own in answered]
    deciding = [t.reward or 0.0 for t in episode.trajectories if t.name == plan.roles[plan.correct].name]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        is_correct=episode.is_correct,
        trajectories=trajectories,
        metrics=dict(episode.metrics),
        metadata={**episode.metadata, **({"validation": True} if validation else {})},
        artifacts={
            "reward": sum(deciding) / max(1, len(deciding)),
            "metrics": dict(episode.metrics),
            "steps": {made.uid: made.steps for made in trajectories},
        },
    )


class SpecEvaluator:
    """An Evaluator for every SpecFlow. A flow scores as it runs; this passes it on, and checks the tokens."""

    def evaluate(self, task: Any, episode: theirs.Episode) -> EvalOutput:
        """The episode's figures, whose steps have been given the gateway's tokens by now.

        The gateway counts a refused call too, which shifts those after it. Then a validation gets its own
        steps back, without tokens; in training this raises RuntimeError, and rLLM runs the episode again.
        """
        artifacts = episode.artifacts
        seen: Mapping[str, list[theirs.Step]] = artifacts.pop("steps", {})
        for own in episode.trajectories:
            ours = seen.get(own.uid, own.steps)
            if any(
                mine.model_response not in step.model_response
                for mine, step in zip(ours, own.steps, strict=True)
            ):
                if not episode.metadata.get("validation"):
                    raise RuntimeError(f"{own.uid} was given the answer of another call")
                own.steps = ours
            own.signals = dict((own.metadata or {}).get("signals", {}))
        signals = [Signal(name, value) for name, value in artifacts.get("metrics", {}).items()]
        return EvalOutput(artifacts.get("reward", 0.0), episode.is_correct, signals)


evaluator = SpecEvaluator()


@lru_cache(maxsize=64)
def flow(source: Source) -> SpecFlow:
    """The flow of a source; raises UsageError for what the gateway's way of matching tokens cannot carry."""
    shared = prepared(source)
    for name in shared.plan.signals:
        raise UsageError(f"{name}: rLLM's gateway carries no advantages; use the compiled Workflow")
    for role in shared.plan.roles:
        if role.model == POLICY and (role.on_failure.retry or role.timeout is not None):
            raise UsageError(
                f"{role.name}: rLLM's gateway matches answers to steps by their number, which an answer that "
                "is asked for again, or given up, would shift; take `retry` and `timeout` out, or use the "
                "compiled Workflow"
            )
    return SpecFlow(source)


def __getattr__(name: str) -> SpecFlow:
    if name == "rolegraph":
        return flow(source_of(os.environ.get(SPEC_VARIABLE, "solver_judge")))
    if (SPECS / f"{name}.yaml").is_file():
        return flow(source_of(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
