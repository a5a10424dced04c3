"""Tests that no key is printed, logged or recorded, whatever its form and wherever it stands."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.cli.conftest import Command
from tests.models.edges import chat_answer, served, serving

CORE = "CANARY0007"
"""Part of each secret that no escape changes."""
KEY = f'sk-"{CORE}"/+&key'
SPEC = """\
rolegraph: 2
name: keyed
model: MODEL
roles:
  solver: {prompt: "{{ task.question }}", parser: text, reward: exact_matchTOOLS}
data: {validation: tasks.jsonl}
"""


def spec(folder: Path, model: Mapping[str, str], tools: str = "") -> str:
    text = SPEC.replace("MODEL", json.dumps(model)).replace(
        "TOOLS", tools and f", max_calls: 2, tools: {tools}"
    )
    (folder / "keyed.yaml").write_text(text)
    (folder / "tasks.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    return "keyed.yaml"


def outputs(folder: Path, done: Any) -> Iterator[tuple[str, str]]:
    """Yield all texts that a command has left, with their names; the spec itself is the user's."""
    yield "stdout", done.stdout
    yield "stderr", done.stderr
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".py" and file.name != "keyed.yaml":
            yield str(file), file.read_text(errors="replace")


def check_clean(folder: Path, done: Any) -> None:
    texts = dict(outputs(folder, done))
    assert [name for name, text in texts.items() if CORE in text] == [], texts["stderr"]
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


async def _nothing(request: Request) -> Response:
    return Response()


def echoed(key: str) -> str:
    """Return a message with a key in the forms in which servers and libraries write it."""
    forms = (key, repr(key), ascii(key), json.dumps(key), repr(key.encode()), html.escape(key))
    encoded = (quote(key), quote(key, safe=""), quote_plus(key), quote(key, safe="").lower())
    return " | ".join((*forms, *encoded, json.dumps(json.dumps(key)), f"Bearer {key}", f"?k={key}&x=1"))


@pytest.mark.parametrize("around", ["{}", "{}\n", " {}\r\n", "\t{} "])
@pytest.mark.parametrize("status", [401, 400, 200])
def test_a_key_with_white_space_is_sent_without_it_and_is_echoed_nowhere(
    tmp_path: Path, rolegraph: Command, around: str, status: int
) -> None:
    def answer(body: dict[str, Any]) -> Response:
        return JSONResponse({"error": {"message": f"refused: {echoed(KEY)}"}}, status_code=status)

    with serving(answer) as endpoint:
        words = [spec(tmp_path, {"provider": "openai", "base_url": endpoint.base_url}), "--out", "r"]
        done = rolegraph("run", *words, OPENAI_API_KEY=around.format(KEY))
    assert {*endpoint.keys} == {f"Bearer {KEY}"}
    assert "[key]" in (tmp_path / "r" / "log.txt").read_text()
    check_clean(tmp_path, done)


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("vllm", "VLLM_API_KEY"),
        ("sglang", "SGLANG_API_KEY"),
        ("tinker", "TINKER_API_KEY"),
    ],
)
@pytest.mark.parametrize("bad", ["\n", "\x01", "é", "\udc80"])
def test_a_key_that_no_header_carries_is_named_by_its_variable(
    tmp_path: Path, forked: Command, provider: str, variable: str, bad: str
) -> None:
    with served(Starlette(routes=[Route("/{rest:path}", _nothing, methods=["GET", "POST"])])) as url:
        words = [spec(tmp_path, {"provider": provider, "base_url": url}), "--out", "r"]
        done = forked("run", *words, **{variable: f"tml-{CORE}{bad}{CORE}"})
    assert done.returncode == 2
    assert f"{variable}: " in done.stderr
    check_clean(tmp_path, done)


def test_a_short_key_changes_no_text_and_is_warned_of_once(tmp_path: Path, forked: Command) -> None:
    with serving(lambda _: chat_answer("a")) as endpoint:
        words = [spec(tmp_path, {"provider": "openai", "base_url": endpoint.base_url}), "--out", "r"]
        done = forked("run", *words, OPENAI_API_KEY="e")
    log = (tmp_path / "r" / "log.txt").read_text()
    assert done.returncode == 0, done.stderr
    assert "[key]" not in done.stderr + done.stdout + log
    assert done.stderr.count("OPENAI_API_KEY") == log.count("OPENAI_API_KEY") == 1


QUERY = f"key={CORE}key&api_key={CORE}%2Bapi&token={CORE}token&Access-Token={CORE}&x=1&si%67={CORE}"


@pytest.mark.parametrize("provider", ["openai", "vllm", "sglang", "tinker"])
@pytest.mark.parametrize("by", ["spec", "flag", "variable"])
def test_keys_in_the_query_of_an_address_are_cut(
    tmp_path: Path, rolegraph: Command, provider: str, by: str
) -> None:
    async def refuse(request: Request) -> Response:
        await request.body()
        query = str(request.url)
        echo = f"{query} {request.query_params.get('api_key')} {CORE}key"
        return JSONResponse({"error": {"message": echo}, "detail": echo}, status_code=401)

    with served(Starlette(routes=[Route("/{rest:path}", refuse, methods=["GET", "POST"])])) as url:
        address = f"{url}/v1?{QUERY}"
        model = {"provider": provider, "name": "m", **({"base_url": address} if by == "spec" else {})}
        flags = ["--base-url", address] if by == "flag" else []
        environment = {f"{provider.upper()}_BASE_URL": address} if by == "variable" else {}
        environment[f"{provider.upper()}_API_KEY"] = "tml-dummy"
        done = rolegraph("run", spec(tmp_path, model), "--out", "r", *flags, **environment)
        check_clean(tmp_path, done)
        done = rolegraph("run", spec(tmp_path, model), "--out", "d", "--debug", *flags, **environment)
        for _, text in outputs(tmp_path, done):
            assert CORE not in text
    assert done.returncode


def test_a_query_s_key_reaches_its_endpoint_and_is_given_again_to_resume(
    tmp_path: Path, rolegraph: Command
) -> None:
    queries: list[Mapping[str, str]] = []

    async def answer(request: Request) -> Response:
        queries.append(dict(request.query_params))
        return chat_answer("a")

    with served(Starlette(routes=[Route("/v1/{rest:path}", answer, methods=["GET", "POST"])])) as url:
        address = f"{url}/v1?key={CORE}key&version=2"
        name = spec(tmp_path, {"provider": "openai", "name": "m"})
        done = rolegraph("run", name, "--out", "r", "--base-url", address)
        assert done.returncode == 0, done.stderr
        assert queries
        assert all(query == {"key": f"{CORE}key", "version": "2"} for query in queries)
        check_clean(tmp_path, done)
        (tmp_path / "r" / "episodes.jsonl").write_bytes(b"")  # as of a command that was killed
        resumed = rolegraph("run", "--resume", "--out", "r")
        assert resumed.returncode == 2
        assert "--base-url" in resumed.stderr
        check_clean(tmp_path, resumed)
        again = rolegraph("run", "--resume", "--out", "r", "--base-url", address)
        assert again.returncode == 0, again.stderr
        check_clean(tmp_path, again)


@pytest.mark.parametrize("tool", ["http", "search", "mcp"])
def test_keys_in_headers_and_addresses_of_tools_are_cut(
    tmp_path: Path, rolegraph: Command, tool: str
) -> None:
    if tool == "mcp":
        pytest.importorskip("mcp", reason="needs the extra `mcp`")
    seen: list[Mapping[str, str]] = []

    async def refuse(request: Request) -> Response:
        seen.append(dict(request.headers))
        echo = f"{dict(request.headers)} {request.url}"
        return Response(echo, status_code=403)

    with served(Starlette(routes=[Route("/{rest:path}", refuse, methods=["GET", "POST"])])) as url:
        address = f"{url}/x?token={CORE}token"
        headers = {
            "X-Api-Key": f"{CORE}header",
            "X-Auth": f"Bearer {CORE}bearer",
            "X-Episode": "{{ episode.id }}",
        }
        options = {"headers": headers, "url": address}
        form = {"mcp": address, "headers": headers} if tool == "mcp" else {tool: None, **options}

        def answer(body: dict[str, Any]) -> Response:
            assert CORE not in json.dumps(body)
            functions = body.get("tools") or [{"function": {"name": "http"}}]
            name = functions[0]["function"]["name"]
            arguments: dict[str, Any] = {"http": {"body": {}}, "search": {"query": "q"}}
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments.get(name, {}))},
            }
            first = len(body["messages"]) == 1
            return chat_answer("" if first else "a", message={"tool_calls": [call]} if first else {})

        with serving(answer) as endpoint:
            name = spec(tmp_path, {"provider": "openai", "base_url": endpoint.base_url}, json.dumps([form]))
            done = rolegraph("run", name, "--out", "r", "--allow", address)
            assert "X-Api-Key" in (tmp_path / "r" / "spec.yaml").read_text()
            check_clean(tmp_path, done)
            shown = rolegraph("preview", name, "--allow", url)
            check_clean(tmp_path, shown)
    assert any(headers.get("x-api-key") == f"{CORE}header" for headers in seen)


def test_a_header_that_the_transport_refuses_is_not_quoted(tmp_path: Path) -> None:
    from rolegraph.engine.errors import WorldError, describe_error

    for text in (
        f"Illegal header value b'Bearer {CORE}\\n'",
        f"Invalid leading whitespace or return character(s) in header value: '{CORE}'",
        f"Invalid header value b'{CORE}'",
    ):
        assert CORE not in str(WorldError(text))
        assert CORE not in describe_error(ValueError(text))


def test_line_ends_in_the_account_s_variables_are_cut(tmp_path: Path, rolegraph: Command) -> None:
    seen: list[Mapping[str, str]] = []

    async def answer(request: Request) -> Response:
        seen.append(dict(request.headers))
        return chat_answer("a")

    with served(Starlette(routes=[Route("/v1/{rest:path}", answer, methods=["GET", "POST"])])) as url:
        name = spec(tmp_path, {"provider": "openai", "name": "m", "base_url": f"{url}/v1"})
        done = rolegraph(
            "run", name, "--out", "r", OPENAI_ORG_ID="org-a\n", OPENAI_CUSTOM_HEADERS=f"X-Key: {CORE}key \n"
        )
    assert done.returncode == 0, done.stderr
    assert {headers.get("openai-organization") for headers in seen} == {"org-a"}
    assert {headers.get("x-key") for headers in seen} == {f"{CORE}key"}
    check_clean(tmp_path, done)


def test_a_fault_in_a_line_with_a_key_shows_the_line_without_it(tmp_path: Path, rolegraph: Command) -> None:
    model = {"provider": "openai", "base_url": f"https://h.example/v1?key={CORE}key", "nmae": "x"}
    for words in (["validate"], ["validate", "--json"], ["run"]):
        done = rolegraph(*words, spec(tmp_path, model))
        assert done.returncode == 2
        check_clean(tmp_path, done)


def test_the_key_of_a_served_model_is_checked(tmp_path: Path, forked: Command) -> None:
    done = forked("serve", "--port", "0", ROLEGRAPH_SERVE_KEY=f"tml-{CORE}é")
    assert done.returncode == 2
    assert "ROLEGRAPH_SERVE_KEY: " in done.stderr
    check_clean(tmp_path, done)
