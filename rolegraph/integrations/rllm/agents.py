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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import click
import openai
import rllm.types as theirs
from omegaconf import OmegaConf
from rllm.cli._sampling import resolve_train_sampling
from rllm.eval.types import EvalOutput, Signal
from rllm.workflows.workflow import TerminationReason

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.connections import client_options
from rolegraph.engine.errors import RolegraphError, UsageError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.keys import OPENAI
from rolegraph.engine.models.openai import OpenAIModel, closes_unopened, wire_message
from rolegraph.engine.prompts.chat import split_reasoning
from rolegraph.engine.prompts.markers import escape_families
from rolegraph.engine.records import CallDone, Episode, Event
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.run.prepared import PerEventLoop
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec import Finding
from rolegraph.integrations.rllm.backends import TRAITS
from rolegraph.integrations.rllm.checks import (
    PLAIN_RUN,
    CheckTarget,
    FlowRun,
    repeated_calls,
    rewards,
    signals,
    stages,
)
from rolegraph.integrations.rllm.convert import Call, calls, trajectories_to_rllm
from rolegraph.integrations.rllm.keys import check_faults, elsewhere, flow_findings
from rolegraph.integrations.rllm.prepared import prepared, task_of

SPEC_VARIABLE = "ROLEGRAPH_SPEC"
ALLOW_VARIABLE = "ROLEGRAPH_ALLOW"
"""Environment variable with the permissions, in the syntax of `--allow`, separated by spaces."""

_NO_KEY = "none"
_clients: PerEventLoop[dict[str, openai.AsyncOpenAI]] = PerEventLoop(dict)
"""HTTP clients of each event loop by host and port; sessions share a client, and each sets its own URL."""


def _client(url: str) -> openai.AsyncOpenAI:
    """Return the running event loop's client for a URL.

    Raises:
        UsageError: A proxy of the environment is invalid.
    """
    clients, address = _clients.get(), urlsplit(url).netloc
    if address not in clients:
        http = openai.DefaultAsyncHttpxClient(**client_options(url))
        clients[address] = openai.AsyncOpenAI(base_url=url, api_key=_NO_KEY, max_retries=0, http_client=http)
    return clients[address]


@dataclass(frozen=True, slots=True)
class SpecFlow:
    """AgentFlow of a plan; it returns one trajectory for each step, in the order of the answers.

    rLLM's gateway gives the k-th step the tokens of the k-th answer, whichever role called. The gateway
    counts answers as they leave the model; two that leave together may arrive here in the other order. So the
    Evaluator gives each step the tokens of its own call, and joins the steps of a trajectory. Two kinds of
    trajectories are left out: those without an answer (named in the episode's metadata), and those of a role
    with a model of its own. `grouping_hook` keeps masked trajectories and untrained roles out of the
    gradient.

    rLLM does not pass the run's estimators to a flow. So an episode of a training (not of a validation) is
    refused if the run might train a role otherwise than the spec says; `agent_trainer` passes the estimators.
    """

    plan: Plan
    flow_run: FlowRun = PLAIN_RUN
    """Estimators of the run; the sampling settings come with each episode."""
    _checked: set[str] = field(default_factory=set[str], compare=False)
    """Sampling settings of the gateway, as text, for which the plan has been checked."""

    @property
    def name(self) -> str:
        """Name of the spec."""
        return self.plan.name

    def run(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run an episode as `arun` does, for a caller that has no event loop."""
        return asyncio.run(self._alone(task, config))

    async def _alone(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run an episode in a new event loop, and close the models and clients that the episode opened."""
        try:
            return await self.arun(task, config)
        finally:
            await prepared(self.plan).close()
            for client in (_clients.pop() or {}).values():
                await client.close()

    async def arun(self, task: Any, config: theirs.AgentConfig) -> theirs.Episode:
        """Run and score one episode, with `config.base_url` as the policy's endpoint.

        Raises:
            UsageError: The run is a training, and its estimators may differ from the spec's.
        """
        if not config.is_validation:
            self._check(config.sampling_params)
        plan_ = prepared(self.plan)
        row, rollout = task_of(task, config.session_uid)
        # The gateway passes the key on to the model behind it.
        key = OPENAI.key(config.base_url, explicit=None, trusted_url=None) or _NO_KEY
        client = _client(config.base_url).with_options(base_url=config.base_url, api_key=key)
        model = OpenAIModel(client, config.model, key=key, tokens=False, escapes=True)
        answered_calls: list[Call] = []

        def record(event: Event) -> None:
            if isinstance(event, CallDone) and event.answered and event.id.node.role in plan_.by_policy:
                answered_calls.append((event.id.node, event.id.call))

        model_table = await plan_.table(LimitedModel(model, self.plan.spec.model.concurrency))
        job = EpisodeJob(row, rollout)
        episode = await run_episode(self.plan, job, model_table, isolation=plan_.isolation, observe=record)
        if not answered_calls:
            failure = next(iter(episode.failures.values()))
            raise RuntimeError(f"no call of {episode.id} was answered: {failure}")
        return _to_rllm(episode, answered_calls, self.plan, validation=config.is_validation)

    def _check(self, sampling: Mapping[str, object]) -> None:
        """Check the plan for a run with these sampling settings, once for each different value.

        Raises:
            UsageError: The run would not carry the plan.
        """
        if repr(sampling) not in self._checked:
            check_faults(self.plan, flow_findings(self.plan, replace(self.flow_run, sampling=sampling)))
            self._checked.add(repr(sampling))


def _to_rllm(episode: Episode, answered: Sequence[Call], plan: Plan, *, validation: bool) -> theirs.Episode:
    """Convert an episode for rLLM: one trajectory for each answered step, in the order of `answered`.

    The whole trajectories are added as artifacts.
    """
    steps_by_call: dict[Call, tuple[theirs.Trajectory, theirs.Step]] = {}
    for trajectory in episode.trajectories:
        units = trajectories_to_rllm(episode, trajectory, plan.trained, {}, withhold=False)
        steps = [(unit, step) for unit in units for step in unit.steps]
        steps_by_call |= zip((call for call, _ in calls(trajectory)), steps, strict=True)
    sent_steps = [steps_by_call[call] for call in answered if call in steps_by_call]
    deciding = [t.reward or 0.0 for t in episode.trajectories if t.name in plan.deciding]
    return theirs.Episode(
        id=episode.id,
        task=episode.task,
        termination_reason=TerminationReason(episode.termination_reason.value),
        is_correct=episode.is_correct,
        trajectories=[
            unit.model_copy(update={"uid": f"{unit.uid}#{number}", "steps": [step]})
            for number, (unit, step) in enumerate(sent_steps, 1)
        ],
        metrics=dict(episode.metrics),
        metadata={**episode.metadata, **({"validation": True} if validation else {})},
        artifacts={
            "reward": sum(deciding) / max(1, len(deciding)),
            "metrics": dict(episode.metrics),
            "whole": [*{unit.uid: unit for unit, _ in sent_steps}.values()],
        },
    )


class SpecEvaluator:
    """Evaluator for every SpecFlow, whose episodes are scored during the run: returns the scores, and gives
    each step its tokens."""

    def evaluate(self, task: Any, episode: theirs.Episode) -> EvalOutput:
        """Return an episode's scores, and give each of its steps the tokens of its own call.

        The gateway also counts refused calls, which shifts the later calls and leaves the last step without
        tokens. A validation accepts steps without tokens.

        Args:
            task: The task of rLLM.
            episode: Episode of a SpecFlow whose steps have the gateway's tokens, in the gateway's order.

        Raises:
            RuntimeError: In a training, a step's call is missing; rLLM repeats the episode.
        """
        artifacts = episode.artifacts
        steps_by_chat: dict[str, list[theirs.Step]] = {}
        for step in (step for trajectory in episode.trajectories for step in trajectory.steps):
            steps_by_chat.setdefault(_chat(step.chat_completions), []).append(step)
        whole_trajectories: list[theirs.Trajectory] = artifacts.pop("whole", [])
        for trajectory in whole_trajectories:
            steps: list[theirs.Step] = []
            unmasked: list[theirs.Step] = []
            for our_step in trajectory.steps:
                # Calls with equal messages and answers may swap tokens: both are samples of one distribution.
                steps_of_chat = steps_by_chat.get(_chat(our_step.chat_completions))
                if not steps_of_chat and not episode.metadata.get("validation"):
                    raise RuntimeError(
                        f"{trajectory.uid}: rLLM's gateway has no call with this step's messages and answer"
                    )
                step = steps_of_chat.pop(0) if steps_of_chat else our_step
                step.action, step.reward, step.done = our_step.action, our_step.reward, our_step.done
                steps.append(step)
                if not (our_step.metadata or {}).get("masked"):
                    unmasked.append(step)
            # Masked turns are withheld, as the compiled Workflow does.
            trajectory.task, trajectory.steps = episode.task, unmasked or steps
        episode.trajectories = whole_trajectories or episode.trajectories
        signals = [Signal(name, value) for name, value in artifacts.get("metrics", {}).items()]
        return EvalOutput(artifacts.get("reward", 0.0), episode.is_correct, signals)


def _chat(chat: Sequence[Mapping[str, Any]]) -> str:
    """Return a comparison key of a chat, equal for the gateway's record and our episode of the same chat.

    The gateway's text of an answer may contain the reasoning, which our episode leaves out.
    """
    *messages, answer = chat
    text = answer.get("content") or ""
    text = split_reasoning(text, opened=closes_unopened(text))[1]
    call_keys = [
        (call["function"]["name"], _value(call["function"]["arguments"]))
        for call in answer.get("tool_calls") or ()
    ]
    sent_messages = escape_families([wire_message(message) for message in messages])
    return json.dumps([sent_messages, text, call_keys], sort_keys=True)


def _value(arguments: object) -> object:
    """Return a call's arguments parsed from JSON, since spacing may differ; text that is not JSON is returned
    unchanged."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


evaluator = SpecEvaluator()


_STORE_VARIABLE = "RLLM_GATEWAY_STORE"


def _flat_traces() -> None:
    """Make the gateways of this process keep whole traces instead of rLLM's default, the store `compact`.

    From compact traces an Evaluator gets copies of the steps (`_finish_episode` in engine/agentflow_engine.py
    of rLLM's branch terminal-rl), so it could neither match tokens nor join the turns of a trajectory.

    Raises:
        UsageError: The environment asks for the compact store.
    """
    if hasattr(theirs, "TrajectoryDelta") and os.environ.setdefault(_STORE_VARIABLE, "memory") == "compact":
        raise UsageError(
            f"rLLM's compact traces reach no Evaluator, which matches tokens and turns here: set "
            f"{_STORE_VARIABLE}=memory"
        )


def flow(plan: Plan, run: FlowRun = PLAIN_RUN) -> SpecFlow:
    """Return the AgentFlow of a plan.

    Args:
        plan: The plan.
        run: Settings of the training, if they differ from rLLM's defaults.

    Raises:
        UsageError: A permission is missing, or the plan has signals, imitation, retries, timeouts or other
            parts that do not work through rLLM's gateway.
    """
    _flat_traces()
    if plan.withheld:
        names = " ".join(permission.name for permission in plan.withheld)
        raise UsageError(f"{plan.name} needs permissions: set {ALLOW_VARIABLE}={names!r}")
    target = CheckTarget(plan, TRAITS["tinker"], flow=run)
    checks = (rewards, signals, stages, repeated_calls)  # without them not even an evaluation is right
    check_faults(plan, (finding for check in checks for finding in check(target)))
    prepared(plan).check_opening(None)
    return SpecFlow(plan, run)


def _train_options() -> Mapping[str, Any] | None:
    """Return the options of the `rllm train` that runs in this process; None if there is no such command."""
    context = click.get_current_context(silent=True)
    is_train = context is not None and context.info_name == "train" and "config_file" in context.params
    return context.params if context is not None and is_train else None


def _train_run(options: Mapping[str, Any]) -> list[FlowRun]:
    """Return the settings of an `rllm train`: one FlowRun with the sampling of its training, and one for its
    validation."""
    # rllm/cli/train.py merges these files, and passes a trainer no map of estimators: its section
    # `rllm.algorithm` holds for every role.
    base_config = OmegaConf.load(str(files("rllm.trainer.config").joinpath("rllm", "base.yaml")))
    user_config = OmegaConf.load(options["config_file"]) if options["config_file"] else {}
    config: Any = OmegaConf.merge({"rllm": base_config}, user_config)
    section: Any = OmegaConf.to_container(config.rllm, resolve=True)
    sampling_options = ("sampling_params", "temperature", "top_p", "max_tokens")
    rollout = section["rollout"]
    sampling_pair = resolve_train_sampling(
        *(options[name] for name in sampling_options), base_train=rollout["train"], base_val=rollout["val"]
    )
    return [FlowRun(section["algorithm"], sampling.as_dict()) for sampling in sampling_pair]


def _named(spec: str, allow: Sequence[str] = ()) -> SpecFlow:
    """Return the flow of a spec that is named on rLLM's command line.

    Args:
        spec: Name or path of the spec.
        allow: Permissions granted to the spec.

    Raises:
        ImportError: The spec has faults, or `rllm train` would not train the roles as the spec says. rLLM
            prints only the message of an ImportError.
    """
    try:
        options = _train_options()
        if options is None:
            return flow(compile_file(spec, allow=allow))
        runs = _train_run(options)
        plan = check_file(spec, further=partial(_findings, runs=runs), allow=allow).valid()
        if replaced_keys := elsewhere(plan, "flow"):
            key_names = ", ".join(".".join(map(str, finding.path)) for finding in replaced_keys)
            click.echo(f"rllm train takes these from its own options, not from {spec}: {key_names}", err=True)
        return flow(plan, runs[0])
    except RolegraphError as error:
        raise ImportError(str(error)) from error


def _findings(plan: Plan, runs: Sequence[FlowRun]) -> Iterator[Finding]:
    """Yield a finding for each part of a plan that an `rllm train` does not carry in its training or its
    validation."""
    yield from dict.fromkeys(finding for run in runs for finding in flow_findings(plan, run))


def __getattr__(name: str) -> SpecFlow:
    if name == "rolegraph":
        allow = os.environ.get(ALLOW_VARIABLE, "").split()
        return _named(os.environ.get(SPEC_VARIABLE, "solver_judge"), allow)
    if (SPECS / f"{name}.yaml").is_file():
        return _named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
