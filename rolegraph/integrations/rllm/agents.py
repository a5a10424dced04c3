"""Specs as rLLM's AgentFlow, with an Evaluator: for its gateway, `rllm eval` and `rllm train`.

Each shipped spec is an attribute of this module: `--agent rolegraph.integrations.rllm.agents:NAME`. The
entry point `rolegraph` is the spec named by the environment variable ROLEGRAPH_SPEC, a shipped one or a file;
ROLEGRAPH_ALLOW lists its permissions.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
import rllm.types as theirs
from rllm.eval.types import EvalOutput, Signal

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.keys import OPENAI
from rolegraph.engine.models.openai import OpenAIModel, closes_unopened, wire_message
from rolegraph.engine.prompts.chat import split_reasoning
from rolegraph.engine.prompts.markers import escape_families
from rolegraph.engine.records import CallDone, Episode, Event
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.run.prepared import PerEventLoop
from rolegraph.engine.shipped import SPECS
from rolegraph.integrations.rllm.convert import Call, calls, trajectories_to_rllm
from rolegraph.integrations.rllm.prepared import prepared, task_of

SPEC_VARIABLE = "ROLEGRAPH_SPEC"
ALLOW_VARIABLE = "ROLEGRAPH_ALLOW"
"""Permissions, as `--allow` takes them, separated by spaces."""

_NO_KEY = "none"
_clients = PerEventLoop(
    lambda: openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key=_NO_KEY, max_retries=0)
)
"""HTTP client of each event loop, whose connections its sessions share; each session sets its own URL."""


@dataclass(frozen=True, slots=True)
class SpecFlow:
    """AgentFlow of a plan; it returns one trajectory for each step, in the order of the answers.

    rLLM's gateway gives the k-th step the tokens of the k-th answer, whichever role called. Its order is that
    in which answers left the model; two that leave together may arrive here in the other order, so the
    Evaluator matches each step with its own call's tokens, and joins the steps of a trajectory. Trajectories
    without an answer (named in the episode's metadata) and those of a role with a model of its own are left
    out. `grouping_hook` keeps masked trajectories and roles that are not trained from the gradient.
    """

    plan: Plan

    @property
    def name(self) -> str:
        """Name of the spec."""
        return self.plan.name

    def run(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run an episode as `arun` does, for a caller without an event loop."""
        return asyncio.run(self._alone(task, config))

    async def _alone(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run an episode in a new event loop, and close the models and clients that it opened."""
        try:
            return await self.arun(task, config)
        finally:
            await prepared(self.plan).close()
            if (client := _clients.pop()) is not None:
                await client.close()

    async def arun(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run and score one episode, with `config.base_url` as the policy's endpoint."""
        shared = prepared(self.plan)
        row, rollout = task_of(task, config.session_uid)
        # The gateway passes the key on to the model behind it.
        key = OPENAI.key(config.base_url, explicit=None, trusted_url=None) or _NO_KEY
        client = _clients.get().with_options(base_url=config.base_url, api_key=key)
        model = OpenAIModel(client, config.model, key=key, tokens=False, escapes=True)
        answered: list[Call] = []

        def record(event: Event) -> None:
            if isinstance(event, CallDone) and event.answered and event.id.node.role in shared.by_policy:
                answered.append((event.id.node, event.id.call))

        table = await shared.table(model)
        job = EpisodeJob(row, rollout)
        episode = await run_episode(self.plan, job, table, isolation=shared.isolation, observe=record)
        if not answered:
            failure = next(iter(episode.failures.values()))
            raise RuntimeError(f"no call of {episode.id} was answered: {failure}")
        return _to_rllm(episode, answered, self.plan, validation=config.is_validation)


def _to_rllm(episode: Episode, answered: Sequence[Call], plan: Plan, *, validation: bool) -> theirs.Episode:
    """Convert an episode for rLLM: one trajectory for each answered step, in the order of `answered`.

    The whole trajectories are added as artifacts.
    """
    steps_by_call: dict[Call, tuple[theirs.Trajectory, theirs.Step]] = {}
    for trajectory in episode.trajectories:
        units = trajectories_to_rllm(episode, trajectory, plan.trained, {}, withhold=False)
        steps = [(unit, step) for unit in units for step in unit.steps]
        steps_by_call |= zip((call for call, _ in calls(trajectory)), steps, strict=True)
    sent = [steps_by_call[call] for call in answered if call in steps_by_call]
    names = {plan.roles[role].name for role in plan.correct}
    deciding = [t.reward or 0.0 for t in episode.trajectories if t.name in names]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        is_correct=episode.is_correct,
        trajectories=[
            unit.model_copy(update={"uid": f"{unit.uid}#{number}", "steps": [step]})
            for number, (unit, step) in enumerate(sent, 1)
        ],
        metrics=dict(episode.metrics),
        metadata={**episode.metadata, **({"validation": True} if validation else {})},
        artifacts={
            "reward": sum(deciding) / max(1, len(deciding)),
            "metrics": dict(episode.metrics),
            "whole": [*{unit.uid: unit for unit, _ in sent}.values()],
        },
    )


class SpecEvaluator:
    """Evaluator for every SpecFlow, which scores as it runs: returns the scores, and matches tokens."""

    def evaluate(self, task: Any, episode: theirs.Episode) -> EvalOutput:
        """Return an episode's figures, and give each of its steps the tokens of its own call.

        The gateway counts a refused call too, which shifts the calls after it until one is missing. Then a
        validation keeps its steps without tokens.

        Args:
            task: The task of rLLM.
            episode: Episode of a SpecFlow whose steps have the gateway's tokens, in the gateway's order.

        Raises:
            RuntimeError: In training, for a step without its call; rLLM repeats the episode.
        """
        artifacts = episode.artifacts
        given: dict[str, list[theirs.Step]] = {}
        for step in (step for trajectory in episode.trajectories for step in trajectory.steps):
            given.setdefault(_chat(step.chat_completions), []).append(step)
        whole: list[theirs.Trajectory] = artifacts.pop("whole", [])
        for trajectory in whole:
            steps: list[theirs.Step] = []
            unmasked: list[theirs.Step] = []
            for turn in trajectory.steps:
                # Calls with equal messages and answers may swap tokens: both are samples of one distribution.
                same = given.get(_chat(turn.chat_completions))
                if not same and not episode.metadata.get("validation"):
                    raise RuntimeError(
                        f"{trajectory.uid}: rLLM's gateway has no call with this step's messages and answer"
                    )
                step = same.pop(0) if same else turn
                step.action, step.reward, step.done = turn.action, turn.reward, turn.done
                steps.append(step)
                if not (turn.metadata or {}).get("masked"):
                    unmasked.append(step)
            # Masked turns are withheld, as the compiled Workflow does.
            trajectory.task, trajectory.steps = episode.task, unmasked or steps
        episode.trajectories = whole or episode.trajectories
        signals = [Signal(name, value) for name, value in artifacts.get("metrics", {}).items()]
        return EvalOutput(artifacts.get("reward", 0.0), episode.is_correct, signals)


def _chat(chat: Sequence[Mapping[str, Any]]) -> str:
    """Return a key that is equal for a chat as rLLM's server recorded it and as our episode has it.

    The server's text of an answer may contain the reasoning, which ours does not.
    """
    *messages, answer = chat
    text = answer.get("content") or ""
    text = split_reasoning(text, opened=closes_unopened(text))[1]
    called = [
        (call["function"]["name"], _value(call["function"]["arguments"]))
        for call in answer.get("tool_calls") or ()
    ]
    sent = escape_families([wire_message(message) for message in messages])
    return json.dumps([sent, text, called], sort_keys=True)


def _value(arguments: object) -> object:
    """Return a call's arguments parsed from JSON, since spacing may differ; other text is returned
    unchanged."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


evaluator = SpecEvaluator()


def flow(plan: Plan) -> SpecFlow:
    """Return the AgentFlow of a plan.

    Raises:
        UsageError: For a permission that is missing, and for signals, retries, timeouts and local models,
            which do not work through rLLM's gateway.
    """
    shared = prepared(plan)
    if plan.withheld:
        names = " ".join(permission.name for permission in plan.withheld)
        raise UsageError(f"{plan.name} needs permissions: set {ALLOW_VARIABLE}={names!r}")
    for name in plan.signals:
        raise UsageError(f"{name}: rLLM's gateway carries no advantages; use the compiled Workflow")
    shared.check_opening(None)
    for role in plan.roles:
        if role.name in shared.by_policy and (role.spec.on_failure.retry or role.spec.timeout is not None):
            raise UsageError(
                f"{role.name}: rLLM's gateway matches answers to steps by their number, which a retried or "
                "abandoned call would shift; remove `retry` and `timeout`, or use the compiled Workflow"
            )
    return SpecFlow(plan)


def __getattr__(name: str) -> SpecFlow:
    if name == "rolegraph":
        allow = os.environ.get(ALLOW_VARIABLE, "").split()
        return flow(compile_file(os.environ.get(SPEC_VARIABLE, "solver_judge"), allow=allow))
    if (SPECS / f"{name}.yaml").is_file():
        return flow(compile_file(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
