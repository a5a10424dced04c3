"""A spec as rLLM's AgentFlow, and the Evaluator beside it: for its gateway, `rllm eval` and `rllm train`.

Each shipped spec is an attribute of this module: `--agent rolegraph.engine.rllm_bridge.agents:NAME`. The
entry point `rolegraph` is the spec that the environment variable ROLEGRAPH_SPEC names, a shipped one or a
file; ROLEGRAPH_ALLOW names what it may use.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
import rllm.types as theirs
from rllm.eval.types import EvalOutput, Signal

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.keys import OPENAI
from rolegraph.engine.models.openai import OpenAIModel, closes_unopened, wire_message
from rolegraph.engine.prompts.chat import split_reasoning
from rolegraph.engine.records import CallDone, Episode, Event
from rolegraph.engine.rllm_bridge.convert import calls, unit_to_rllm, units
from rolegraph.engine.rllm_bridge.models import Call
from rolegraph.engine.rllm_bridge.prepared import PerEventLoop, prepared, task_of
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.shipped import SPECS

SPEC_VARIABLE = "ROLEGRAPH_SPEC"
ALLOW_VARIABLE = "ROLEGRAPH_ALLOW"
"""What `--allow` names elsewhere, between spaces."""

_NO_KEY = "none"
_clients = PerEventLoop(
    lambda: openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key=_NO_KEY, max_retries=0)
)
"""Whose connections all sessions of an event loop share; each session has its own URL."""


@dataclass(frozen=True, slots=True)
class SpecFlow:
    """An AgentFlow. Its trajectories are steps, in the order in which their calls were answered.

    rLLM's gateway gives the k-th step the k-th answer's tokens, whoever asked for it. Its order is that in
    which the answers left the model; two that leave together may arrive here in the other order, so the
    Evaluator gives each step the tokens of its own call, and puts steps together that belong together. A
    trajectory without an answer is left out (it is named in the episode's metadata), as is that of a role
    with a model of its own. Masked trajectories and roles that are not trained are kept from the gradient by
    `grouping_hook`.
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
        job = EpisodeJob(row, rollout)
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
    """An Evaluator for every SpecFlow. A flow scores as it runs; this passes that on, tokens matched."""

    def evaluate(self, task: Any, episode: theirs.Episode) -> EvalOutput:
        """The episode's figures, whose steps have been given the gateway's tokens by now.

        The gateway counts a refused call too, which shifts those after it until one is missing. Then a
        validation gets its own steps back, without tokens; in training this raises RuntimeError, and rLLM
        runs the episode again.
        """
        artifacts = episode.artifacts
        whole: Mapping[str, list[theirs.Trajectory]] = artifacts.pop("whole", {})
        given = {trajectory.uid: trajectory for trajectory in episode.trajectories}
        answers = _Answers(step for trajectory in episode.trajectories for step in trajectory.steps)
        for uid, ours in whole.items():
            first, mine = given[ours[0].uid], [step for alone in ours for step in alone.steps]
            for alone in ours:
                del given[alone.uid]
            steps: list[theirs.Step] = []
            for own in mine:
                step = answers.to(own)
                if step is None and not episode.metadata.get("validation"):
                    raise RuntimeError(f"{uid}: rLLM's gateway has no call with its messages and its answer")
                steps.append(own if step is None else step)
            # As the compiled Workflow does, a trajectory leaves its masked turns behind.
            taught = [s for own, s in zip(mine, steps, strict=True) if not (own.metadata or {}).get("masked")]
            first.uid, first.steps = uid, taught or steps
            given[uid] = first
        episode.trajectories = [it for it in episode.trajectories if it.uid in given]
        for trajectory in episode.trajectories:
            trajectory.signals = dict((trajectory.metadata or {}).get("signals", {}))
        signals = [Signal(name, value) for name, value in artifacts.get("metrics", {}).items()]
        return EvalOutput(artifacts.get("reward", 0.0), episode.is_correct, signals)


class _Answers:
    """The gateway's steps, to be taken by what was asked and what was answered, each once.

    Where two calls were asked the same and answered the same, either's tokens are a fair sample of both.
    """

    def __init__(self, steps: Iterable[theirs.Step]) -> None:
        self._steps: dict[str, list[theirs.Step]] = {}
        for step in steps:
            self._steps.setdefault(_chat(step.chat_completions), []).append(step)

    def to(self, own: theirs.Step) -> theirs.Step | None:
        """The gateway's step of the same call, with what only the flow knows of it; None if it has none."""
        found = self._steps.get(_chat(own.chat_completions))
        if not found:
            return None
        step = found.pop(0)
        step.action, step.reward, step.done = own.action, own.reward, own.done
        return step


def _chat(chat: Sequence[Mapping[str, Any]]) -> str:
    """What was asked as it goes over the wire, and the answer as far as both sides write it down alike.

    The server's text of an answer may have its reasoning in it, which ours has not.
    """
    *asked, answer = chat
    text = answer.get("content") or ""
    text = split_reasoning(text, opened=closes_unopened(text))[1]
    called = [
        (call["function"]["name"], _value(call["function"]["arguments"]))
        for call in answer.get("tool_calls") or ()
    ]
    return json.dumps([[wire_message(message) for message in asked], text, called], sort_keys=True)


def _value(arguments: object) -> object:
    """A call's arguments, however they are spaced."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


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
        if role.name in shared.answered_by_rllm and (
            role.spec.on_failure.retry or role.spec.timeout is not None
        ):
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
