"""Environments of OpenEnv servers: one of this file in OpenEnv's protocol, and OpenEnv's own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.tools import ENV_BYTES
from rolegraph.engine.models import Request
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import (
    Environment,
    EnvironmentFailure,
    ItemCall,
    LiveEnvironment,
    Transition,
    environments,
)
from rolegraph.outlook.preview import preview_task
from tests.edge import ScriptedModel, run_one, write_spec
from tests.models.edges import served

pytest.importorskip("websockets", reason="needs the extra `openenv`")

TASK = {"id": "t", "seed": 2**32 + 5}
SPEC = """rolegraph: 2
name: guess
roles:
  agent:
    prompt: "{{ self.observation }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: env
    estimator: grpo
loops:
  play: {roles: agent, env: ENV, times: 4}
train: {steps: 1}
"""

Reply = Callable[[Mapping[str, Any]], Any]
"""`reply(message)` is the JSON of the answer; text or bytes are sent as they are, and None not at all."""


def observation(text: str, reward: float | None = None, done: bool = False, **fields: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"text": text, "metadata": {}, **fields}
    return {"type": "observation", "data": {"observation": shown, "reward": reward, "done": done}}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


class GuessServer:
    """Server of a game, to guess its seed, with so many sessions at once; it keeps every message."""

    def __init__(self, reply: Reply | None = None, sessions: int = 8) -> None:
        self.reply, self.free = reply or self.play, sessions
        self.heard: list[Any] = []
        self.refused: list[int] = []
        self.most_open = self.open = 0
        self.seed = 0

    def play(self, message: Mapping[str, Any]) -> Any:
        match message:
            case {"type": "reset", "data": {"seed": seed}}:
                self.seed = seed
                return observation("guess")
            case {"type": "state"}:
                return {"type": "state", "data": {"seed": self.seed}}
            case {"data": {"message": str(guess)}}:
                right = guess == str(self.seed)
                return observation("right" if right else "no", float(right), right)
            case {"data": {"message": _}}:
                errors = [{"type": "string_type", "loc": ["message"], "msg": "should be text"}]
                return error("VALIDATION_ERROR", "Invalid message", errors=errors)
            case _:
                errors = [{"type": "missing", "loc": ["message"], "msg": "Field required"}]
                return error("VALIDATION_ERROR", "Invalid message", errors=errors)

    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        if self.open == self.free:
            self.refused.append(self.open)
            await socket.send_json(error("CAPACITY_REACHED", f"{self.free} of {self.free} are in use"))
            await socket.close()
            return
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            while (message := await socket.receive_json())["type"] != "close":
                self.heard.append(message)
                match self.reply(message):
                    case None:
                        pass
                    case str(text):
                        await socket.send_text(text)
                    case bytes(text):
                        await socket.send_bytes(text)
                    case found:
                        await socket.send_json(found)
        except WebSocketDisconnect:
            pass
        finally:
            self.open -= 1

    def served(self) -> AbstractContextManager[str]:
        return served(Starlette(routes=[WebSocketRoute("/ws", self.session)]))


def opened(url: str, **options: Any) -> LiveEnvironment:
    return environments.build(ItemCall.parse({"openenv": url, **options})).open()


def play(live: LiveEnvironment, *moves: object, seed: int = 5) -> list[Transition]:
    """Reset a game and make the moves; return all transitions."""

    async def run() -> list[Transition]:
        try:
            return [await live.reset(seed, 1), *[await live.step({0: move}) for move in moves]]
        finally:
            await live.close()

    return asyncio.run(run())


def plan_of(folder: Path, url: str, options: str = "", *, allow: bool = True) -> Plan:
    spec = write_spec(folder, SPEC.replace("ENV", f"{{openenv: '{url}'{options}}}"))
    return compile_file(spec, allow=[url] if allow else [])


def test_a_role_plays_until_the_server_ends_the_episode(tmp_path: Path) -> None:
    said = iter(["3", "5"])
    server = GuessServer()
    with server.served() as url:
        model = ScriptedModel(lambda _: f"<answer>{next(said)}</answer>")
        done = run_one(plan_of(tmp_path, url), model, TASK)
    asked = [request.messages[-1]["content"].split(" Answer")[0] for request in model.requests]
    assert asked == ["guess", "no"]
    (agent,) = done["agent"]
    assert [step.reward for step in agent.steps] == [0.0, 1.0]
    assert done.metadata["ended"] == {"play": "env"}
    assert done.metadata["environment"] == {
        "observation": {"text": "right", "metadata": {}},
        "state": {"seed": 5},
    }
    assert [message["type"] for message in server.heard] == ["reset", "step", "step", "state"]
    assert server.open == 0


def test_the_spec_names_the_action_s_field_the_observation_s_part_and_further_parameters() -> None:
    server = GuessServer(lambda message: observation("all", 0, board={"rows": ["a", "b"]}))
    with server.served() as url:
        named = opened(url, field="code", observation="board.rows.1", reset={"level": 2})
        start, moved = play(named, "x = 1")
    assert server.heard[:2] == [
        {"type": "reset", "data": {"level": 2, "seed": 5}},
        {"type": "step", "data": {"code": "x = 1"}},
    ]
    assert (start.observations, moved.observations) == ({0: "b"}, {0: "b"})


def test_an_observation_with_several_fields_is_shown_as_json() -> None:
    with GuessServer(lambda message: observation("é", None, code=0)).served() as url:
        (start,) = play(opened(url))
    assert start == Transition({0: '{"text": "é", "code": 0}'})


def test_an_action_that_is_a_mapping_is_sent_as_it_is_and_a_missing_one_is_empty_text() -> None:
    server = GuessServer()
    with server.served() as url:
        play(opened(url), {"message": "1", "more": [2]}, None)
    assert [message["data"] for message in server.heard[1:]] == [
        {"message": "1", "more": [2]},
        {"message": ""},
    ]


COMPOSED = """rolegraph: 2
name: composed
roles:
  agent:
    prompt: "{{ self.observation }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: move.reward
    estimator: grpo
  move:
    needs: agent
    run: {text: '{"message": {{ agent.action | tojson }}, "more": [1]}'}
    parser: json
    reward: env
loops:
  play: {roles: [agent, move], players: [move], env: {openenv: "URL"}, times: 4}
train: {steps: 1}
"""


def test_a_role_without_a_model_composes_an_action_of_several_fields(tmp_path: Path) -> None:
    said = iter(['"3"', "5"])
    server = GuessServer()
    with server.served() as url:
        plan = compile_file(write_spec(tmp_path, COMPOSED.replace("URL", url)), allow=[url])
        done = run_one(plan, ScriptedModel(lambda _: f"<answer>{next(said)}</answer>"), TASK)
    sent = [each["data"] for each in server.heard if each["type"] == "step"]
    assert sent == [{"message": '"3"', "more": [1]}, {"message": "5", "more": [1]}]
    assert [trajectory.reward for trajectory in done["agent"]] == [1.0]


def test_an_action_of_zero_is_no_missing_one() -> None:
    server = GuessServer(lambda message: observation("x"))
    with server.served() as url:
        play(opened(url), 0, False)
    assert [each["data"] for each in server.heard[1:]] == [{"message": 0}, {"message": False}]


@pytest.mark.parametrize("move", [{"code": 1}, {}, 3])
def test_the_player_is_told_of_an_action_that_the_server_cannot_read(move: object) -> None:
    with GuessServer().served() as url:
        _, told, after = play(opened(url), move, "5")
    assert told.observations[0].startswith("guess\n\nthe action is refused: message: ")
    assert told.rewards == {}
    assert after.done


def test_a_wrong_field_is_a_fault_that_names_the_option() -> None:
    with GuessServer().served() as url, pytest.raises(EnvironmentFailure) as failure:
        play(opened(url, field="code"), "x")
    said = f"{url}: the action is refused: message: Field required; `field` names the field of its action"
    assert str(failure.value) == said


def test_a_part_that_an_observation_lacks_is_named_with_the_fields_that_it_has() -> None:
    with GuessServer().served() as url, pytest.raises(EnvironmentFailure, match="it has text, metadata"):
        play(opened(url, observation="prompt"))


def test_episodes_wait_for_a_free_session() -> None:
    server = GuessServer(sessions=1)
    order: list[int] = []

    async def one(made: Environment, number: int) -> None:
        live = made.open()
        try:
            await live.reset(number, 1)
            order.append(number)
            await live.step({0: "no"})
        finally:
            await live.close()

    async def together(url: str) -> None:
        made = environments.build(ItemCall.parse({"openenv": url}))
        first = made.open()
        await first.reset(0, 1)
        waiting = [asyncio.create_task(one(made, number)) for number in range(1, 6)]
        while len(server.refused) < 5:  # noqa: ASYNC110  # the server runs in another thread
            await asyncio.sleep(0.01)
        waiting[3].cancel()  # one that gives up keeps its place from nobody
        await first.close()
        await asyncio.gather(*waiting, return_exceptions=True)

    with server.served() as url:
        asyncio.run(together(url))
    assert sorted(order) == [1, 2, 3, 5]
    assert server.most_open == 1


def test_an_episode_does_not_wait_longer_than_the_spec_says() -> None:
    with GuessServer(sessions=0).served() as url, pytest.raises(EnvironmentFailure) as failure:
        play(opened(url, wait=0))
    said = "answers CAPACITY_REACHED: 0 of 0 are in use; none became free in 0 s"
    assert str(failure.value) == f"{url} {said}"


DEEP = '{"type": "observation", "data": ' + "[" * 5000
HOSTILE: Mapping[str, tuple[Any, str]] = {
    "silent": (None, "does not answer within 0.5 s"),
    "large": ("x" * (ENV_BYTES.most + 1), "closed the session"),
    "many": ("[" * 900_000, r"rejected message from .*limit: completion_parts"),
    "no JSON": ("}{", "rejected message from"),
    "not UTF-8": (b"\xff\xfe", "rejected message from"),
    "deep": (DEEP, "rejected message from"),
    "no message": ([1], "no message of OpenEnv's protocol"),
    "no data": ({"type": "observation"}, "no message of OpenEnv's protocol"),
    "no observation": ({"type": "observation", "data": {"done": True}}, "no observation of OpenEnv's"),
    "done by a word": (
        {"type": "observation", "data": {"observation": {}, "done": "no"}},
        "no observation of OpenEnv's",
    ),
    "error": (error("EXECUTION_ERROR", "x" * 10_000), "answers EXECUTION_ERROR: x{200}$"),
    "odd error": (error("VALIDATION_ERROR", "no", errors=7), "answers VALIDATION_ERROR: no"),
}


@pytest.mark.parametrize("answer", HOSTILE)
def test_whatever_a_server_sends_ends_its_own_episode_with_a_name(answer: str) -> None:
    reply, said = HOSTILE[answer]
    with GuessServer(lambda message: reply).served() as url, pytest.raises(EnvironmentFailure, match=said):
        play(opened(url, timeout=0.5 if reply is None else 60))


def test_a_message_of_frames_without_end_is_rejected() -> None:
    from websockets.asyncio.server import ServerConnection, serve

    async def frames() -> AsyncGenerator[str]:
        while True:
            yield ""
            await asyncio.sleep(0)  # the server shares its loop with the client

    async def session(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(frames())

    async def run() -> None:
        async with serve(session, "127.0.0.1", 0) as server:
            port: int = next(iter(server.sockets)).getsockname()[1]
            live = opened(f"http://127.0.0.1:{port}")
            try:
                await live.reset(5, 1)
            finally:
                await live.close()

    with pytest.raises(EnvironmentFailure, match=r"rejected message from .*limit: env_bytes"):
        asyncio.run(run())


@pytest.mark.parametrize("reward", ["much", [1], 1e999])
def test_a_reward_that_is_no_number_is_the_environment_s_failure(reward: object, tmp_path: Path) -> None:
    def reply(message: Mapping[str, Any]) -> Any:
        return json.dumps(observation("x", 0)).replace('"reward": 0', f'"reward": {json.dumps(reward)}')

    with GuessServer(reply).served() as url:
        done = run_one(plan_of(tmp_path, url), ScriptedModel(lambda _: "<answer>1</answer>"), TASK)
    assert [failure["name"] for failure in done.metadata["failures"]] == [FailureName.ENVIRONMENT_ERROR]


def test_a_state_too_large_to_be_recorded_is_left_out() -> None:
    def reply(message: Mapping[str, Any]) -> Any:
        if message["type"] == "state":
            return {"type": "state", "data": {"all": "x" * 500_000}}
        return observation("over", 1, message["type"] == "step")

    with GuessServer(reply).served() as url:
        assert play(opened(url), "x")[-1] == Transition({}, {0: 1}, done=True)


def test_no_redirect_is_followed() -> None:
    server = GuessServer()

    async def elsewhere(socket: WebSocket) -> None:
        await socket.send_denial_response(RedirectResponse(f"{url}/ws"))

    redirecting = Starlette(routes=[WebSocketRoute("/ws", elsewhere)])
    told = pytest.raises(EnvironmentFailure, match=r"cannot connect to .*HTTP 307")
    with server.served() as url, served(redirecting) as other, told:
        play(opened(other))
    assert server.heard == []


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(EnvironmentFailure, match=r"cannot connect to .*Connect call failed"):
        play(opened("http://127.0.0.1:1"))


def test_no_server_is_asked_without_permission(tmp_path: Path) -> None:
    server = GuessServer()
    with server.served() as url:
        plan = plan_of(tmp_path, url, allow=False)
        (found,) = [
            each for each in check_file(tmp_path / "spec.yaml").diagnostics if "permission" in str(each)
        ]
        assert found.severity == "warning" and f"--allow {url}" in str(found)
        (agent,) = asyncio.run(preview_task(plan, TASK)).roles
        with pytest.raises(UsageError, match="runs only where this is allowed"):
            run_one(plan, ScriptedModel(lambda _: ""), TASK)
    assert "[what player 1 sees]" in agent.asked[0].messages[-1]["content"]
    assert server.heard == []


def test_a_recording_is_previewed_without_the_server(tmp_path: Path) -> None:
    server = GuessServer()
    with server.served() as url:
        plan = plan_of(tmp_path, url)
        episode = run_one(plan, ScriptedModel(lambda _: "<answer>5</answer>"), TASK)
        server.heard.clear()
        asyncio.run(preview_task(plan, TASK, episode))
    assert server.heard == []


def test_an_environment_is_pickled_as_its_call_and_imports_nothing_until_it_is_opened() -> None:
    script = (
        "import sys, pickle\n"
        "from rolegraph.engine.vocabulary import ItemCall, environments\n"
        "environments.build(ItemCall.parse({'openenv': 'http://127.0.0.1:9'}))\n"
        "assert 'websockets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    made = environments.build(ItemCall.parse({"openenv": "https://127.0.0.1:9/env/"}))
    assert pickle.loads(pickle.dumps(made)).permissions == ("https://127.0.0.1:9/env/",)


# OpenEnv itself


@contextmanager
def openenv_server() -> Generator[str]:
    """Run OpenEnv's own server, in the interpreter that OPENENV_PYTHON names or this one."""
    python = os.environ.get("OPENENV_PYTHON", "")
    if not python and importlib.util.find_spec("openenv") is None:
        pytest.skip("needs openenv: pip install it into a virtual environment, and set OPENENV_PYTHON")
    script = Path(__file__).with_name("openenv_server.py")
    command = [python or sys.executable, "-P", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": ""}) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.mark.openenv
def test_openenv_s_own_server_is_played(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        return f"<answer>{'a' * len(request.messages[-1]['content'].split()[0])}</answer>"

    async def waiting(url: str) -> list[Transition]:
        async def one(seed: int) -> Transition:
            live = opened(url)
            try:
                start = await live.reset(seed, 1)
                for _ in range(3):
                    await live.step({0: "abc"})
                return start
            finally:
                await live.close()

        return await asyncio.gather(*(one(seed) for seed in range(6)))

    with openenv_server() as url:
        done = run_one(plan_of(tmp_path, url, ", reset: {greeting: hello}"), ScriptedModel(answer), TASK)
        starts = asyncio.run(waiting(url))  # three times as many as there are sessions
        _, told, *_ = play(opened(url), {"code": "x"}, "abc")
        with pytest.raises(EnvironmentFailure, match="answers EXECUTION_ERROR: the echo has failed"):
            play(opened(url), "fail")
        with pytest.raises(EnvironmentFailure, match="`field` names the field"):
            play(opened(url, field="code"), "abc")
    (agent,) = done["agent"]
    assert [step.reward for step in agent.steps] == [0.5, 0.5, 0.5]
    info = done.metadata["environment"]
    assert (info["observation"]["echoed"], info["state"]["step_count"]) == ("aaaaa", 3)
    assert [start.observations for start in starts] == [{0: f"seed {seed}"} for seed in range(6)]
    assert told.observations[0].startswith("seed 5\n\nthe action is refused: message: Field required")
