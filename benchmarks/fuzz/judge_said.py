"""What comes of what others say while an episode runs: models, their servers, tools, MCP servers, worlds.

Whatever is said, there is an episode; it can be written, and what was written can be read.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import certifi
import honest
from judge_written import FAULT, RESULT
from odd import given, made

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Model, Request, open_model
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import CallId, Episode, NodeId, read_episodes
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode
from rolegraph.engine.spec import ModelRef, Sampling
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
from rolegraph.integrations.mcp.tool import mcp as mcp_tool
from rolegraph.local.launcher import BASE_MODEL

TASK = {"id": "t", "question": "?", "nums": [3, 4], "target": 7, "answer": "7"}
LOOP = asyncio.new_event_loop()
_ISOLATION = Isolation()


# answers


PARSERS = [
    parsers.build(ItemCall.parse(written))
    for written in (
        *("text", "number", "json", {"tag": "answer"}, {"tags": {"answer": "text"}}),
        *({"one_of": ["yes", "no", "not sure"]}, {"regex": r"(\d+)\s*$"}),
        {"json": {"type": "object", "properties": {"a": {"type": "number"}}}},
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


@cache
def _chat_format() -> ChatFormat:
    return ChatFormat(load_tokenizer(BASE_MODEL), "base")


def chat(text: str) -> str:
    """Whatever the messages of a chat hold, its special tokens are those of its template."""
    texts: list[str] = json.loads(text)
    form = _chat_format()

    def special(contents: Sequence[str]) -> list[str]:
        roles = cycle(("user", "assistant", "tool"))
        messages = [{"role": role, "content": it} for role, it in zip(roles, contents, strict=False)]
        added = form.pieces(form.prompt(messages).ids)
        return [token for token, is_added in added if is_added and token.startswith("<|")]

    assert special(texts) == special(["x" for _ in texts]), "a text forges a turn"
    return RESULT


class Server:
    """HTTP server of this process that replies what it is told to, and keeps the heads of its requests."""

    def __init__(self) -> None:
        self.reply: Callable[[Any], tuple[int, str, str]] = lambda _: (404, "", "")
        """Status, type and body of the reply to a parsed body."""
        self.heads: list[bytes] = []
        self.url = ""

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads[:] = [*self.heads[-9:], head]
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                status, kind, body = self.reply(json.loads(await reader.readexactly(length) or b"{}"))
                sent = body.encode(errors="surrogatepass")
                about = f"HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\ncontent-length: {len(sent)}\r\n"
                writer.write(f"{about}location: {self.url}/elsewhere\r\n\r\n".encode() + sent)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@cache
def server() -> Server:
    """Start the server, with one certificate: reading all takes longer than the rest of a session."""
    one = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    Path("one.pem").write_text("".join(one[:2]))
    os.environ["SSL_CERT_FILE"] = str(Path("one.pem").absolute())
    found = Server()
    LOOP.run_until_complete(found.start())
    return found


_REQUEST = Request([{"role": "user", "content": "?"}], Sampling(), 1, CallId("t", 0, NodeId("solver")))
STRANGER = "stranger.test"
"""Name of this machine to which no key belongs, unlike 127.0.0.1."""
KEYS = {"OPENAI_API_KEY": "sk-planted-openai", "TINKER_API_KEY": "tml-planted-tinker"}
"""Keys of the environment, which no server of a stranger is sent and no message shows."""


def resolve_stranger() -> None:
    """Let the stranger's name resolve to this machine, in this process and its forks."""
    found, names = socket.getaddrinfo, (STRANGER, STRANGER.encode())

    def local(host: Any, *rest: Any, **more: Any) -> Any:
        return found("127.0.0.1" if host in names else host, *rest, **more)

    socket.getaddrinfo = local


@cache
def _endpoint() -> Model:
    resolve_stranger()
    os.environ |= KEYS
    return LOOP.run_until_complete(
        open_model(
            ModelRef(
                provider="openai", name="tiny", base_url=f"{server().url}/v1".replace("127.0.0.1", STRANGER)
            )
        )
    )


def asked(status: int, kind: str, body: str) -> Completion:
    """Ask a stranger's endpoint, which replies this; raise ModelError where it is no completion."""
    model = _endpoint()
    server().heads.clear()  # other kinds ask the same server under its own name, with keys
    server().reply = lambda _: (status, kind, body)
    try:
        return LOOP.run_until_complete(model.complete(_REQUEST))
    finally:
        sent = b"".join(server().heads)
        assert not any(key.encode() in sent for key in KEYS.values()), f"a key is sent: {sent[-400:]!r}"


def reply(text: str) -> str:
    try:
        completion = asked(*json.loads(text))
    except ModelError as error:
        assert len(str(error)) > 0, "no reason"
        return FAULT
    assert isinstance(completion.text, str) and isinstance(completion.thought, str)
    json_line(completion._asdict())
    return RESULT


def key(text: str) -> str:
    """A key is sent without the white space around it, or named by its variable, and no message shows it."""
    value, status = json.loads(text)
    bare, message = value.strip(), ""
    echo = " ".join((bare, repr(value), ascii(value), json.dumps(value), quote(bare), quote(bare, safe="")))
    server().reply = lambda _: (status, "application/json", json.dumps({"error": {"message": echo}}))
    server().heads.clear()
    os.environ["OPENAI_API_KEY"] = value
    try:
        LOOP.run_until_complete(_ask_with_key(f"{server().url}/v1"))
    except UsageError as error:
        message = str(error)
        assert "OPENAI_API_KEY" in message, "the variable is not named"
    except ModelError as error:
        message = str(error)
    finally:
        os.environ |= KEYS
    assert "planted" not in message, f"a key is shown: {message!r}"
    if bare.isascii() and bare.isprintable():
        assert any(f"Bearer {bare}".encode() in head for head in server().heads), "a key is not sent"
    return FAULT


async def _ask_with_key(url: str) -> None:
    model = await open_model(ModelRef(provider="openai", name="tiny", base_url=url))
    try:
        await model.complete(_REQUEST)
    finally:
        await model.aclose()


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
rolegraph: 2
name: fuzz
roles:
  agent:
    prompt: "{{ task.question }}"
    tools: [fuzz_TOOL]
    max_calls: 3
    parser: {tag: answer, default: none}
    reward: countdown
  runner: {needs: agent, run: {fuzz_TOOL: "{{ agent[0].action }}"}}
  pick: {needs: runner, run: majority}
  judge:
    needs: [agent, runner, pick]
    when: runner[0].action == '1' or true
    prompt: "{{ runner[0].action }} {% for x in pick %}{{ x.action | tojson }}{% endfor %}"
    reward: countdown
episode: {correct: agent.right, metrics: {agent_acc: all(agent.right)}}
"""
GAME = """\
rolegraph: 2
name: fuzz
roles:
  x: {prompt: "{{ self.observation }}", parser: {tag: answer}, reward: env}
  OTHER
loops: {play: {roles: ROLES, env: GAME, times: 4}}
"""
OWN = """\
rolegraph: 2
name: fuzz
roles:
  a: {prompt: "{{ task.question }}", parser: fuzz_parser, reward: fuzz_reward}
  b:
    needs: a
    when: a.action != 5
    prompt: "{{ a.action }} {% for x in a %}{{ x.action }}{% endfor %}"
    reward: {sum: {x: {reward: fuzz_reward}, y: {reward: {of: a}}}}
episode: {correct: a.right, metrics: {m: {fuzz_metric: a}, n: mean(b.reward)}}
"""
_OTHER = "o: {prompt: '{{ self.observation }}', parser: {tag: answer}, reward: env}"


@cache
def _plan(text: str) -> Plan:
    Path("fuzz.yaml").write_text(text)
    return compile_file("fuzz.yaml")


def run(text: str, said: Sequence[str], **task: Any) -> Episode:
    """Run an episode of a spec."""
    plan = _plan(text)
    models = [LimitedModel(Scripted(said), 9)] * len(plan.endpoints)
    job = EpisodeJob({**TASK, **task}, 0, 0)
    return LOOP.run_until_complete(run_episode(plan, job, models, isolation=_ISOLATION))


def played(text: str, said: Sequence[str], **task: Any) -> dict[str, Any]:
    """Play an episode of a spec; return what is read of it after it was written."""
    try:
        episode = run(text, said, **task)
    except EnvironmentFailure as error:  # an error of the engine's own ends a run, whoever raises it
        return {"info": {"failures": [str(error)]}}
    path = Path("made.jsonl")
    path.write_bytes(json_line(episode.to_dict()))
    (read,) = read_episodes(path)
    assert read.id == episode.id
    return read.to_dict()


def came_of(episode: Mapping[str, Any]) -> str:
    return FAULT if episode["info"].get("failures") else RESULT


TOOL: dict[str, Any] = {}


@asynccontextmanager
async def _opened() -> AsyncGenerator[Sequence[Function], None]:
    about = TOOL["function"]

    async def call(arguments: Mapping[str, Any]) -> Any:
        return given(TOOL["result"])

    yield [
        Function(
            about.get("name", "f"), about.get("description", ""), given(about.get("parameters", {})), call
        )
    ]


def tool(text: str) -> str:
    TOOL.update(made(text))
    return came_of(played(AGENT.replace("TOOL", "tool"), TOOL["said"]))


def mcp_served(replies: Mapping[str, Any], said: Sequence[str]) -> dict[str, Any]:
    """Play an episode with the tools of an MCP server that replies this, or what this returns, by method."""

    def reply(body: Any) -> tuple[int, str, str]:
        answer = replies.get(body.get("method"), (202, "application/json", ""))
        status, kind, found = answer() if callable(answer) else answer
        return status, kind, found if isinstance(found, str) else json.dumps({**found, "id": body.get("id")})

    server().reply = reply
    return played(AGENT.replace("TOOL", "mcp"), said)


def mcp(text: str) -> str:
    about = json.loads(text)
    return came_of(mcp_served(about["replies"], about["said"]))


_OWN: dict[str, Any] = {}


def vocabulary(text: str) -> str:
    """A parser, a reward and a metric of somebody's own."""
    _OWN.update(made(text))
    return came_of(played(OWN, ["<answer>1</answer>"]))


def _score(task: Any, action: Any, seen: RewardInputs) -> Any:
    earned = given(_OWN["earned"])
    return Score(**earned) if isinstance(earned, dict) and "reward" in earned else earned


TRANSITIONS: list[Any] = []


class World:
    """An environment that shows one thing after the other."""

    def __init__(self) -> None:
        self._shown = cycle(TRANSITIONS or [honest.TRANSITION])

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
    TRANSITIONS[:] = about["transitions"]
    game = "fuzz_world" if about["game"] == "hostile" else about["game"]
    return came_of(played(game_of(game), about["said"], seed=about["seed"]))


def game_of(name: str) -> str:
    """Return the spec of a game, for one player or two."""
    two = name != "grid"
    return (
        GAME.replace("GAME", name)
        .replace("OTHER", _OTHER if two else "")
        .replace("ROLES", "[x, o]" if two else "x")
    )


def register() -> None:
    """Make the tools and the world known."""
    tools.register("fuzz_tool")(lambda value=None, /: Tool(open=_opened, source=value))
    tools.register("fuzz_mcp")(
        lambda value=None, /: Tool(open=mcp_tool(f"{server().url}/mcp", timeout=1.0).open, source=value)
    )
    parsers.register("fuzz_parser")(lambda: Parser(lambda text, upstream: given(_OWN["parsed"])))
    rewards.register("fuzz_reward")(lambda: Reward(_score))
    metrics.register("fuzz_metric")(
        lambda role, /: role_metric(lambda trajectories: given(_OWN["measured"]), role)
    )
    environments.register("fuzz_world")(lambda: Environment(World, 1, 9))
