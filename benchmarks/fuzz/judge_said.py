"""What comes of what others say while an episode runs: models, their servers, tools, MCP servers, worlds.

Whatever is said, there is an episode; it can be written, and what was written can be read.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import certifi
import honest
import httpx
import openai
from judge_written import FAULT, RESULT
from odd import given, made

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.openai import OpenAIModel
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import CallId, NodeId, read_episodes
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode
from rolegraph.engine.spec import Sampling
from rolegraph.engine.vocabulary import (
    Environment,
    EnvironmentFailure,
    Function,
    ItemCall,
    ParseFailure,
    Parser,
    Reward,
    RewardInputs,
    Score,
    Tool,
    Transition,
    View,
    environments,
    metrics,
    parsers,
    rewards,
    role_metric,
    tools,
)
from rolegraph.roles.mcp import mcp as mcp_tool

TASK = {"id": "t", "question": "?", "nums": [3, 4], "target": 7, "answer": "7"}
_LOOP = asyncio.new_event_loop()
_ISOLATION = Isolation()


# answers


PARSERS = [
    parsers.build(ItemCall.parse(written))
    for written in (
        *("text", "number", "json", {"tag": "answer"}, {"tag": "answer", "which": "last"}),
        *({"one_of": ["yes", "no", "not sure"]}, {"regex": r"(\d+)\s*$"}),
        {"json": {"schema": {"type": "object", "properties": {"a": {"type": "number"}}}}},
    )
]
REWARDS = [
    rewards.build(ItemCall.parse(written))
    for written in (
        "countdown",
        "exact_match",
        "f1",
        {"length": {"under": 10}},
        {"close_to": {"field": "target"}},
        {"json_field": "a", "value": 1},
    )
]


def answer(text: str) -> str:
    """Every parser reads it, and every reward scores what was read."""
    came = FAULT
    for parser in PARSERS:
        try:
            action = parser.parse(text, {})
        except ParseFailure as error:
            assert str(error), "no reason"
            continue
        json.dumps(action, allow_nan=False)
        came = RESULT
        for reward in REWARDS:
            score = reward.score(TASK, action, RewardInputs(turn=View(1, action)))
            assert score is None or abs(score.reward) <= 1e9, f"it earns {score}"
    return came


_REQUEST = Request([{"role": "user", "content": "?"}], Sampling(), 1, CallId("t", 0, NodeId("solver")))
_REPLY: list[Any] = []


def _replied(request: httpx.Request) -> httpx.Response:
    status, kind, body = _REPLY
    return httpx.Response(status, headers={"content-type": kind}, content=body.encode(errors="surrogatepass"))


@cache
def _endpoint() -> OpenAIModel:
    http = httpx.AsyncClient(transport=httpx.MockTransport(_replied))
    client = openai.AsyncOpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0, http_client=http
    )
    return OpenAIModel(client, "tiny", key="k")


def reply(text: str) -> str:
    _REPLY[:] = json.loads(text)
    try:
        completion = _LOOP.run_until_complete(_endpoint().complete(_REQUEST))
    except ModelError as error:
        assert len(str(error)) > 0, "no reason"
        return FAULT
    assert isinstance(completion.text, str) and isinstance(completion.thought, str)
    json_line(completion._asdict())
    return RESULT


# episodes


class Scripted:
    """A model that says one thing after the other."""

    def __init__(self, said: Sequence[str]) -> None:
        self._said = cycle(said)

    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find(next(self._said)) if request.tools else (next(self._said), ())
        return Completion(text, calls=calls)

    async def aclose(self) -> None: ...


AGENT = """\
rolegraph: 1
name: fuzz
roles:
  agent:
    prompt: {inline: "{{ task.question }}"}
    tools: [fuzz_TOOL]
    calls: 3
    parser: {tag: answer, default: none}
    reward: countdown
    trainable: false
  runner: {needs: agent, run: {fuzz_TOOL: "{{ agent[0].action }}"}}
  pick: {needs: runner, run: majority}
  judge:
    needs: [agent, runner, pick]
    when: runner[0].action == 1 or true
    prompt: {inline: "{{ runner[0].action }} {% for x in pick %}{{ x.action | tojson }}{% endfor %}"}
    reward: countdown
    trainable: false
episode: {correct: agent, metrics: {agent_acc: {correct: agent}}}
"""
GAME = """\
rolegraph: 1
name: fuzz
roles:
  x: {prompt: {inline: "{{ self.observation }}"}, parser: {tag: answer}, reward: env, trainable: false}
  OTHER
loops: {play: {roles: ROLES, env: GAME, times: 4}}
"""
OWN = """\
rolegraph: 1
name: fuzz
roles:
  a: {prompt: {inline: "{{ task.question }}"}, parser: fuzz_parser, reward: fuzz_reward, trainable: false}
  b:
    needs: a
    when: a.action != 5
    prompt: {inline: "{{ a.action }} {% for x in a %}{{ x.action }}{% endfor %}"}
    reward: {weighted: {x: {reward: fuzz_reward}, y: {reward: {of: a}}}}
    trainable: false
episode: {correct: a, metrics: {m: {fuzz_metric: a}, n: {mean_reward: b}}}
"""
_OTHER = (
    "o: {prompt: {inline: '{{ self.observation }}'}, parser: {tag: answer}, reward: env, trainable: false}"
)


@cache
def _plan(text: str) -> Plan:
    Path("fuzz.yaml").write_text(text)
    return compile_file("fuzz.yaml")


def _episode(plan: Plan, said: Sequence[str], task: Mapping[str, Any] = TASK) -> str:
    models = [LimitedModel(Scripted(said), 9)] * len(plan.endpoints)
    job = EpisodeJob({**TASK, **task}, 0, 0)
    try:
        episode = _LOOP.run_until_complete(run_episode(plan, job, models, isolation=_ISOLATION))
    except EnvironmentFailure:  # an error of the engine's own ends a run, whoever raises it
        return FAULT
    path = Path("made.jsonl")
    path.write_bytes(json_line(episode.to_dict()))
    (read,) = read_episodes(path)
    assert read.id == episode.id
    return FAULT if "failures" in episode.metadata else RESULT


_TOOL: dict[str, Any] = {}


@asynccontextmanager
async def _opened() -> AsyncGenerator[Sequence[Function], None]:
    about = _TOOL["function"]

    async def call(arguments: Mapping[str, Any]) -> Any:
        return given(_TOOL["result"])

    yield [
        Function(
            about.get("name", "f"), about.get("description", ""), given(about.get("parameters", {})), call
        )
    ]


def tool(text: str) -> str:
    _TOOL.update(made(text))
    return _episode(_plan(AGENT.replace("TOOL", "tool")), _TOOL["said"])


class Server:
    """An MCP server that replies what it is told to, by the method that it is asked for."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}
        self.url = ""

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                asked = json.loads(await reader.readexactly(length) or b"{}")
                status, kind, body = self.replies.get(asked.get("method"), (202, "application/json", ""))
                if not isinstance(body, str):
                    body = json.dumps({**body, "id": asked.get("id")})
                sent = body.encode(errors="surrogatepass")
                about = f"HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\ncontent-length: {len(sent)}\r\n\r\n"
                writer.write(about.encode() + sent)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


_SERVER = Server()


def mcp(text: str) -> str:
    if not _SERVER.url:
        # The SDK reads all certificates anew for every session, which takes longer than the rest of it.
        one = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
        Path("one.pem").write_text("".join(one[:2]))
        os.environ["SSL_CERT_FILE"] = str(Path("one.pem").absolute())
        _LOOP.run_until_complete(_SERVER.start())
    about = json.loads(text)
    _SERVER.replies = about["replies"]
    return _episode(_plan(AGENT.replace("TOOL", "mcp")), about["said"])


_OWN: dict[str, Any] = {}


def vocabulary(text: str) -> str:
    """A parser, a reward and a metric of somebody's own."""
    _OWN.update(made(text))
    return _episode(_plan(OWN), ["<answer>1</answer>"])


def _score(task: Any, action: Any, seen: RewardInputs) -> Any:
    earned = given(_OWN["earned"])
    return Score(**earned) if isinstance(earned, dict) and "reward" in earned else earned


_TRANSITIONS: list[Any] = []


class World:
    """An environment that shows one thing after the other."""

    def __init__(self) -> None:
        self._shown = cycle(_TRANSITIONS or [honest.TRANSITION])

    async def reset(self, seed: int, players: int) -> Transition:
        return self._next()

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        return self._next()

    def _next(self) -> Transition:
        about = given(next(self._shown))
        if not isinstance(about, dict):
            return about
        parts = {
            key: _numbered(about[key]) if key in ("observations", "rewards") else given(about[key])
            for key in Transition._fields
            if key in about
        }
        return Transition(**parts)

    async def close(self) -> None: ...


def _numbered(value: Any) -> Any:
    """JSON has no players that are numbers."""
    if not isinstance(value, dict):
        return given(value)
    return {int(key) if str(key).isdecimal() else key: given(part) for key, part in value.items()}


def observation(text: str) -> str:
    about = made(text)
    _TRANSITIONS[:] = about["transitions"]
    game = "fuzz_world" if about["game"] == "hostile" else about["game"]
    two = about["game"] != "grid"
    written = (
        GAME.replace("GAME", game)
        .replace("OTHER", _OTHER if two else "")
        .replace("ROLES", "[x, o]" if two else "x")
    )
    return _episode(_plan(written), about["said"], {"seed": about["seed"]})


def register() -> None:
    """Make the tools and the world known."""
    tools.register("fuzz_tool")(lambda value=None, /: Tool(open=_opened, source=value))
    tools.register("fuzz_mcp")(
        lambda value=None, /: Tool(open=mcp_tool(_SERVER.url, timeout=0.1).open, source=value)
    )
    parsers.register("fuzz_parser")(lambda: Parser(lambda text, upstream: given(_OWN["parsed"])))
    rewards.register("fuzz_reward")(lambda: Reward(_score))
    metrics.register("fuzz_metric")(
        lambda role, /: role_metric(lambda trajectories: given(_OWN["measured"]), role)
    )
    environments.register("fuzz_world")(lambda: Environment(World, 1, 9))
