"""Specs as rLLM's AgentFlow, through rLLM's own gateway and engines, in front of an HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

import rllm.types
import uvicorn
from click.testing import CliRunner, Result
from rllm.cli.main import cli
from rllm.data.utils import task_from_row
from rllm.engine.agentflow_engine import AgentFlowEngine
from rllm.eval.agent_loader import load_agent
from rllm.eval.evaluator_loader import load_evaluator
from rllm.eval.runner import run_dataset
from rllm.gateway.manager import EvalGatewayManager
from rllm.types import AgentConfig, Episode, Step, Trajectory
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.compile.compiler import compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.shipped import BASE_NAME
from rolegraph.integrations.rllm import agent_trainer, compile_agent_flow
from rolegraph.integrations.rllm.compose import compose
from tests.cli.conftest import ENVIRONMENT
from tests.edge import write_spec
from tests.integrations.rllm.edge import agreeable, tasks
from tests.models.edges import chat_answer

pytestmark = pytest.mark.rllm
GRPO = ("roles.judge.estimator=grpo",)
"""Override by which a run of rLLM without a map of estimators trains solver_judge as its spec says."""


class Upstream:
    """OpenAI-compatible server whose k-th answer has k as its text and only token."""

    def __init__(self, latency: Any) -> None:
        self._numbers = itertools.count(1)
        self._latency = latency
        self.refuse = 0
        self.server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])]),
                port=free_port(),
                log_level="error",
            )
        )
        self.url = f"http://127.0.0.1:{self.server.config.port}/v1"

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        number = next(self._numbers)
        await asyncio.sleep(self._latency())
        if number <= self.refuse:
            return JSONResponse({"error": {"message": "no"}}, 404)
        content = f"Call {number}. {agreeable(body['messages'][-1]['content'])}"
        logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
        return chat_answer(
            content,
            choice={"logprobs": logprobs, "token_ids": [number]},
            id=f"call-{number}",
            model=body["model"],
            prompt_token_ids=[0, number],
        )


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextlib.contextmanager
def answering(upstream: Upstream) -> Iterator[None]:
    thread = threading.Thread(target=upstream.server.run, daemon=True)
    thread.start()
    while not upstream.server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        upstream.server.should_exit = True
        thread.join()


@contextlib.contextmanager
def gateway_before(upstream: Upstream) -> Iterator[EvalGatewayManager]:
    with answering(upstream):
        gateway = EvalGatewayManager(upstream.url, "policy")
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()


def test_each_parallel_solver_has_its_own_tokens_when_they_finish_out_of_order() -> None:
    draw = random.Random(5)
    whole = [
        *GRPO,
        "roles.solver.parser=text",
        "roles.judge.parser=text",
    ]  # an action is what its instance was told
    flow, evaluator = compile_agent_flow("solver_judge", ["roles.solver.count=3", *whole])
    rows = tasks(32)
    with gateway_before(Upstream(lambda: draw.uniform(0.0, 0.2))) as gateway:
        engine = AgentFlowEngine(flow, evaluator, gateway, "policy", retry_limit=1)
        episodes = asyncio.run(engine.execute_tasks(rows, [row["id"] for row in rows]))
        engine.shutdown()
    trajectories = [t for e in episodes for t in e.trajectories]
    assert len(trajectories) == 128
    said = [int(t.steps[0].action.split()[1].rstrip(".")) for t in trajectories]
    assert [t.steps[0].response_ids for t in trajectories] == [[number] for number in said]
    assert [t.steps[0].prompt_ids for t in trajectories] == [[0, number] for number in said]
    in_spec_order = [sorted(e.trajectories[:3], key=lambda t: t.metadata["index"]) for e in episodes]
    assert any(ordered != e.trajectories[:3] for ordered, e in zip(in_spec_order, episodes, strict=True))


@pytest.mark.parametrize(
    ("unit", "names"),
    [("task", ["judge", "solver", "solver"]), ("turn", ["judge", *["solver@1", "solver@2"] * 2])],
)
def test_the_turns_of_a_loop_have_their_own_tokens_and_are_put_together_again(
    unit: str, names: list[str]
) -> None:
    draw = random.Random(6)
    whole = [*GRPO, "roles.solver.parser=text", "roles.judge.parser=text"]
    loop = ["loops={l: {roles: [solver], times: 2}}", f"roles.solver.group={unit}"]
    flow, evaluator = compile_agent_flow("solver_judge", [*whole, *loop])
    rows = tasks(8)
    with gateway_before(Upstream(lambda: draw.uniform(0.0, 0.1))) as gateway:
        engine = AgentFlowEngine(flow, evaluator, gateway, "policy", retry_limit=1)
        episodes = asyncio.run(engine.execute_tasks(rows, [row["id"] for row in rows]))
        engine.shutdown()
    for episode in episodes:
        assert sorted(t.name for t in episode.trajectories) == sorted(names)
        for trajectory in episode.trajectories:
            assert len(trajectory.steps) == (2 if trajectory.name == "solver" else 1)
            assert [s.reward for s in trajectory.steps][-1] == trajectory.reward
            said = [int(s.action.split()[1].rstrip(".")) for s in trajectory.steps]
            assert [s.response_ids for s in trajectory.steps] == [[number] for number in said]


class Overtaking(EvalGatewayManager):
    """Gateway behind a proxy that delivers the first answer of a session after the second.

    So do a loaded machine's sockets: an answer whose head and body are read at once overtakes one whose body
    comes later.
    """

    def start(self) -> None:
        super().start()
        self._first: dict[str, asyncio.Event] = {}
        routes = [Route("/{path:path}", self._pass, methods=["POST"])]
        port = free_port()
        self.before = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=port, log_level="error"))
        self._serving = threading.Thread(target=self.before.run, daemon=True)
        self._serving.start()

    def stop(self) -> None:
        self.before.should_exit = True
        self._serving.join()
        super().stop()

    def get_session_url(self, session_id: str, *, public: bool = True) -> str:
        inside = f"http://127.0.0.1:{self.before.config.port}"
        return super().get_session_url(session_id).replace(self.gateway_url, inside)

    async def _pass(self, request: Request) -> Response:
        session = request.url.path.partition("/v1")[0]
        async with httpx.AsyncClient(timeout=None) as client:
            url = f"http://127.0.0.1:{self.port}{request.url.path}"
            answer = await client.post(url, content=await request.body())
        if session not in self._first:
            overtaken = self._first[session] = asyncio.Event()
            await overtaken.wait()
        self._first[session].set()
        return Response(answer.content, answer.status_code, media_type="application/json")


def test_an_answer_that_is_overtaken_on_its_way_back_keeps_its_own_tokens() -> None:
    whole = [*GRPO, "roles.solver.parser=text", "roles.judge.parser=text"]
    flow, evaluator = compile_agent_flow("solver_judge", whole)
    rows = tasks(4)
    with answering(upstream := Upstream(lambda: 0.0)):
        gateway = Overtaking(upstream.url, "policy")
        gateway.start()
        engine = AgentFlowEngine(flow, evaluator, gateway, "policy", retry_limit=1)
        episodes = asyncio.run(engine.execute_tasks(rows, [row["id"] for row in rows]))
        engine.shutdown()
        gateway.stop()
    for trajectory in (t for episode in episodes for t in episode.trajectories):
        said = int(trajectory.steps[0].action.split()[1].rstrip("."))
        assert trajectory.steps[0].response_ids == [said]


def test_an_answer_that_is_part_of_another_s_is_not_taken_for_it() -> None:
    _, evaluator = compile_agent_flow("solver_judge")
    asked = [{"role": "user", "content": "Make 7"}]

    def step(text: str, ids: list[int]) -> Step:
        return Step(
            model_response=text,
            chat_completions=[*asked, {"role": "assistant", "content": text}],
            response_ids=ids,
            logprobs=[-1.0] * len(ids),
        )

    own = Trajectory(uid="u", name="solver", steps=[step("7", [])])
    given = Trajectory(uid="u", name="solver", steps=[step("7, or 17", [1, 7])])
    episode = Episode(trajectories=[given], artifacts={"whole": [own]})
    with pytest.raises(RuntimeError, match="no call with this step's messages and answer"):
        evaluator.evaluate(None, episode)


AGENT = """\
rolegraph: 2
name: agent
data: {train: countdown}
roles:
  agent:
    prompt: solver.j2
    tools: calculator
    max_calls: 4
    parser: text
    reward: {exact_match: {field: target}}
    estimator: grpo
"""


class Calculating(Upstream):
    """Model that calls the calculator by OpenAI's tool calls, then answers with its result."""

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        number = next(self._numbers)
        await asyncio.sleep(self._latency())
        last = body["messages"][-1]
        choice = {"token_ids": [number]}
        logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
        options: Any = {"id": f"call-{number}", "model": body["model"], "prompt_token_ids": [0, number]}
        if last["role"] == "tool":
            return chat_answer(last["content"], choice={**choice, "logprobs": logprobs}, **options)
        name = body["tools"][0]["function"]["name"]
        call = {"id": f"c{number}", "type": "function"}
        made = {**call, "function": {"name": name, "arguments": '{"expression":"3+4"}'}}
        return chat_answer(
            None,
            finish="tool_calls",
            message={"tool_calls": [made]},
            choice={**choice, "logprobs": logprobs},
            **options,
        )


def test_a_turn_with_tools_runs_through_the_gateway_and_each_call_has_its_own_tokens(tmp_path: Path) -> None:
    draw = random.Random(7)
    flow, evaluator = compile_agent_flow(write_spec(tmp_path, AGENT))
    rows = [{**row, "id": f"{row['id']}x"} for row in tasks(8)]
    with gateway_before(Calculating(lambda: draw.uniform(0.0, 0.05))) as gateway:
        engine = AgentFlowEngine(flow, evaluator, gateway, "policy", retry_limit=1)
        episodes = asyncio.run(engine.execute_tasks(rows, [row["id"] for row in rows]))
        engine.shutdown()
    for episode in episodes:
        (trajectory,) = episode.trajectories
        assert (trajectory.reward, trajectory.steps[-1].action) == (1.0, "7")
        assert [step.reward for step in trajectory.steps] == [0.0, 1.0]
        asked, answered = trajectory.steps
        assert asked.chat_completions[-1]["tool_calls"][0]["function"]["arguments"] == '{"expression":"3+4"}'
        assert [m["role"] for m in answered.chat_completions] == ["user", "assistant", "tool", "assistant"]
        assert answered.chat_completions[1]["tool_calls"][0]["id"] == f"c{asked.response_ids[0]}"
        assert asked.response_ids < answered.response_ids


def one_refused(*, is_validation: bool, retry_limit: int) -> Episode:
    upstream = Upstream(lambda: 0.0)
    upstream.refuse = 1
    flow, evaluator = compile_agent_flow("solver_judge", [*GRPO, "roles.solver.count=3"])
    with gateway_before(upstream) as gateway:
        engine = AgentFlowEngine(flow, evaluator, gateway, "policy", retry_limit=retry_limit)
        run = engine.execute_tasks(tasks(1), ["t0"], is_validation=is_validation)
        (episode,) = asyncio.run(run)
        engine.shutdown()
    return episode


def test_a_refused_call_gives_no_one_another_s_answer() -> None:
    episode = one_refused(is_validation=True, retry_limit=1)
    assert [t.name for t in episode.trajectories] == ["solver", "solver", "judge"]
    assert all(t.steps[0].model_response.endswith("</answer>") for t in episode.trajectories)
    first, *others = [failure["name"] for failure in episode.metadata["failures"]]
    assert first == "model_error"
    assert others in ([], ["unparseable_choice"]), "the judge may choose the solver that was refused"


def test_a_refused_call_in_training_leaves_every_step_its_own_tokens() -> None:
    episode = one_refused(is_validation=False, retry_limit=2)
    # rLLM runs the episode again; its next version leaves the refused call out of the traces.
    is_next = hasattr(rllm.types, "TrajectoryDelta")
    assert [t.name for t in episode.trajectories].count("solver") == (2 if is_next else 3)
    assert all(t.steps[0].response_ids for t in episode.trajectories)


def test_it_runs_under_rllm_s_eval_engine_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLEGRAPH_SPEC", "solver_judge_validator")
    flow, evaluator = load_agent("rolegraph"), load_evaluator("rolegraph")
    assert flow.name == "solver_judge_validator"
    rows = [task_from_row(row, row["id"]) for row in tasks(16)]
    with gateway_before(Upstream(lambda: 0.0)) as gateway:
        result, episodes = asyncio.run(
            run_dataset(rows, flow, "", "policy", evaluator=evaluator, gateway=gateway)
        )
    assert (result.total, result.correct, result.errors) == (16, 16, 0)
    for episode in episodes:
        assert sorted((t.name, t.reward) for t in episode.trajectories) == [
            *[("judge", 1.0), ("solver", 1.0), ("solver", 1.0)],
            ("validator", episode.metrics["validator_acc"]),
        ]
        assert (episode.metrics["solver_acc"], episode.metrics["judge_acc"]) == (1.0, 1.0)


def test_episodes_without_an_event_loop_leave_nothing_open() -> None:
    def loops() -> int:
        gc.collect()
        return sum(issubclass(type(it), asyncio.BaseEventLoop) for it in gc.get_objects())

    upstream = Upstream(lambda: 0.0)
    own = f"roles.judge.model={{provider: openai, name: frozen, base_url: '{upstream.url}'}}"
    flow, _ = compile_agent_flow("solver_judge", [own, "roles.judge.estimator=null"])
    with answering(upstream):
        before = loops()
        for number in range(3):
            row = tasks(1, number)[0]
            config = AgentConfig(upstream.url, "policy", f"{row['id']}:0", is_validation=True)
            episode = flow.run(task_from_row(row, row["id"]), config)
            assert episode.is_correct
        assert loops() == before


def test_a_shipped_spec_is_an_import_path() -> None:
    assert load_agent("rolegraph.integrations.rllm.agents:solver_only").name == "solver_only"


@pytest.mark.skipif(not hasattr(rllm.types, "TrajectoryDelta"), reason="this rLLM has no compact traces")
def test_compact_traces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_GATEWAY_STORE", "compact")
    with pytest.raises(UsageError, match="RLLM_GATEWAY_STORE=memory"):
        compile_agent_flow("solver_judge")


@pytest.mark.parametrize(
    ("spec", "override"),
    [
        ("solver_judge", "roles.solver.on_failure.retry=1"),
        ("solver_judge", "roles.judge.timeout=3.0"),
        ("solver_judge_distill", "train.rollouts=4"),
    ],
)
def test_what_the_gateway_cannot_carry_is_refused(spec: str, override: str) -> None:
    with pytest.raises(UsageError, match="rLLM's gateway"):
        compile_agent_flow(compile_file(spec, [override]))


def rllm_train(*words: str) -> Result:
    return CliRunner().invoke(cli, ["train", "countdown", "--evaluator", "rolegraph", "--model", "m", *words])


def test_rllm_train_refuses_a_spec_whose_roles_it_would_train_by_another_estimator() -> None:
    done = rllm_train("--agent", "rolegraph")
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "judge has the estimator reinforce" in said
    assert "rolegraph train SPEC --trainer rllm" in said


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_rllm_train_takes_a_spec_whose_roles_have_the_estimator_of_its_run(
    estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = f"roles: {{solver: {{estimator: {estimator}}}, judge: {{estimator: {estimator}}}}}"
    spec = write_spec(tmp_path, f"extends: solver_judge.yaml\n{roles}\n")
    monkeypatch.setenv("ROLEGRAPH_SPEC", str(spec))
    (tmp_path / "run.yaml").write_text("rllm: {algorithm: {adv_estimator: rloo}}")
    plain = rllm_train("--agent", "rolegraph")
    configured = rllm_train("--agent", "rolegraph", "--config", str(tmp_path / "run.yaml"))
    taken = (configured, plain) if estimator == "rloo" else (plain, configured)
    assert ["has the estimator" in done.output for done in taken] == [False, True]


def test_rllm_train_refuses_an_estimator_that_rllm_would_miss_after_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = "roles: {solver: {estimator: opo}, judge: {estimator: opo}}"
    monkeypatch.setenv("ROLEGRAPH_SPEC", str(write_spec(tmp_path, f"extends: solver_judge.yaml\n{roles}\n")))
    (tmp_path / "run.yaml").write_text("rllm: {algorithm: {adv_estimator: opo}}")
    done = rllm_train("--agent", "rolegraph", "--config", str(tmp_path / "run.yaml"))
    assert "rLLM has no estimator opo" in " ".join(done.output.split())


SAMPLED = """\
extends: solver_judge.yaml
roles: {judge: {estimator: grpo, sampling: {max_tokens: 64}}}
"""


@pytest.mark.parametrize(
    ("words", "config", "is_replaced"),
    [
        ((), "{}", True),
        (("--max-tokens", "32"), "{}", True),
        (("--max-tokens", "64"), "{}", False),
        ((), "{rllm: {rollout: {train: {max_tokens: null}}}}", True),
        ((), "{rllm: {rollout: {train: {max_tokens: null}, val: {max_tokens: null}}}}", False),
    ],
)
def test_rllm_train_refuses_sampling_that_its_gateway_replaces(
    words: tuple[str, ...],
    config: str,
    is_replaced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLEGRAPH_SPEC", str(write_spec(tmp_path, SAMPLED)))
    (tmp_path / "run.yaml").write_text(config)
    done = rllm_train("--agent", "rolegraph", "--config", str(tmp_path / "run.yaml"), *words)
    assert ("gateway replaces judge's max_tokens" in " ".join(done.output.split())) == is_replaced


def test_the_sampling_of_each_role_passes_the_gateway_of_our_trainer() -> None:
    words = ["roles.judge.on_failure.then=mask", "roles.judge.sampling.max_tokens=64"]
    flow, evaluator = compile_agent_flow("solver_judge", words)
    config = compose(["rllm/backend=tinker", "training.group_size=2", "validation.group_size=1"], "tinker")
    trainer = agent_trainer(backend="tinker", config=config, agent_flow=flow, evaluator=evaluator)
    assert config.rllm.rollout.train.max_tokens == 30_720
    assert {*trainer.config.rllm.rollout.train} | {*trainer.config.rllm.rollout.val} == set()


def test_a_first_episode_is_refused_for_sampling_that_the_gateway_replaces() -> None:
    flow, _ = compile_agent_flow("solver_judge", [*GRPO, "roles.judge.sampling.max_tokens=64"])
    row = tasks(1)[0]
    run = AgentConfig("http://127.0.0.1:9/v1", "policy", "t0:0", sampling_params={"max_tokens": 128})
    with pytest.raises(UsageError, match="replaces judge's max_tokens, 64, by 128"):
        flow.run(task_from_row(row, row["id"]), run)


def test_rllm_train_says_a_fault_of_a_spec_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLEGRAPH_SPEC", str(tmp_path / "missing.yaml"))
    done = rllm_train("--agent", "rolegraph")
    assert isinstance(done.exception, SystemExit)
    assert "missing.yaml" in "".join(done.output.split())


def test_an_episode_of_a_training_that_may_have_other_estimators_is_refused() -> None:
    flow, _ = compile_agent_flow("solver_judge")
    (row,) = tasks(1)
    with pytest.raises(UsageError, match="judge has the estimator reinforce"):
        flow.run(task_from_row(row, row["id"]), AgentConfig("http://127.0.0.1:9/v1", "policy", "t0:0"))


KEY = "tml-of-the-test"


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Yield the URL and key of `rolegraph serve` with the shipped model."""
    words = [sys.executable, "-m", "rolegraph", "serve", "--port", "0"]
    with subprocess.Popen(
        words, env=ENVIRONMENT | {"ROLEGRAPH_SERVE_KEY": KEY}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
        finally:
            process.terminate()


@pytest.mark.service
def test_it_runs_under_rllm_s_eval_engine_on_the_local_service_behind_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    flow, evaluator = compile_agent_flow("solver_judge")
    rows = [task_from_row(row, row["id"]) for row in flow.plan.data["validation"].rows(16)]
    with serving() as url:
        gateway = EvalGatewayManager(f"{url}/v1", BASE_NAME)
        gateway.start()
        try:
            result, episodes = asyncio.run(
                run_dataset(rows, flow, "", BASE_NAME, evaluator=evaluator, gateway=gateway)
            )
        finally:
            gateway.stop()
    assert (result.total, result.errors) == (16, 0)
    trajectories = [t for episode in episodes for t in episode.trajectories]
    assert sorted(t.name for t in trajectories) == ["judge"] * 16 + ["solver"] * 32
    assert 0 < sum(t.reward for t in trajectories) < len(trajectories)
