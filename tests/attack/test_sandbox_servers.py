"""SandboxFusion servers that lie, break off or never end, and programs that forge their own results."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rolegraph.engine.errors import SandboxError, WorldError
from rolegraph.sandbox import cpython
from rolegraph.sandbox.grading import run_tests
from rolegraph.sandbox.python import evaluate
from tests.attack.raw_server import dripping, serving

Lie = Callable[[str], Any]
"""Function from the mark in front of a script's result to the response: bytes as they are, or JSON."""


def says(stdout: object, status: object = "Finished", whole: object = "Success") -> dict[str, object]:
    return {"status": whole, "message": "", "run_result": {"status": status, "stdout": stdout}}


PROGRAM: dict[str, Lie] = {
    "no result": lambda mark: says(""),
    "text behind the mark": lambda mark: says(f"{mark}garbage"),
    "two of three values": lambda mark: says(f'{mark}["1", ""]'),
    "an error that is a number": lambda mark: says(f'{mark}["1", "", 5]'),
    "a value that is a mapping": lambda mark: says(f'{mark}[{{"a": 1}}, "", null]'),
    "an output that is a number": lambda mark: says(f'{mark}["1", 7, null]'),
    "nothing as result": lambda mark: says(f"{mark}null"),
    "a deep result": lambda mark: says(mark + "[" * 100_000),
    "a value that is no JSON": lambda mark: says(f'{mark}["nothing", "", null]'),
    "a deep value": lambda mark: says(mark + json.dumps(["[" * 10_000 + "]" * 10_000, "", None])),
    "a response of 50 MB": lambda mark: b" " * 50_000_000,
}
"""Lies that a program may tell as well, so that they are its failure."""
SERVER: dict[str, Lie] = {
    "a deep response": lambda mark: b"[" * 200_000,
    "a list": lambda mark: [1],
    "a text as result": lambda mark: {"status": "Success", "run_result": "passed"},
    "a list as status": lambda mark: says(f'{mark}["1", "", null]', whole=["Success"]),
    "a list as output": lambda mark: says([f'{mark}["1", "", null]']),
    "an unknown status": lambda mark: says(f'{mark}["1", "", null]', whole="Passed"),
    "an unknown status of the program": lambda mark: says(f'{mark}["1", "", null]', "Passed"),
    "an error of its own": lambda mark: says("", "Error", "Failed"),
    "bytes": lambda mark: b"\xff\xfe\x00",
    "a long number": lambda mark: b'{"status": ' + b"9" * 5_000 + b"}",
    "nothing": lambda mark: b"",
}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Lie], str]]:
    """Return a function that starts a server of one lie and returns its URL."""
    monkeypatch.setattr(cpython, "PAUSE", 0.0)
    servers: list[ThreadingHTTPServer] = []

    def start(lie: Lie) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                mark = re.search(r"'([0-9a-f]{32})'\)", body["code"])
                assert mark is not None
                answer = lie(mark[1])
                self.send_response(200)
                self.end_headers()
                try:
                    self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
                except OSError:
                    return  # the client does not read on

            def log_message(self, format: str, *args: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("lie", PROGRAM)
def test_a_result_that_cannot_be_read_fails_the_program(lie: str, serve: Callable[[Lie], str]) -> None:
    url = serve(PROGRAM[lie])
    with pytest.raises(SandboxError):
        evaluate("1", {}, interpreter=url)
    assert run_tests("def f(): pass", ["assert f() is None"], interpreter=url) == 0.0


@pytest.mark.parametrize("lie", SERVER)
def test_a_response_of_another_shape_is_no_result_at_all(lie: str, serve: Callable[[Lie], str]) -> None:
    url = serve(SERVER[lie])
    with pytest.raises(WorldError, match=r"sandbox|SandboxFusion"):
        evaluate("1", {}, interpreter=url)
    with pytest.raises(WorldError, match=r"sandbox|SandboxFusion"):
        run_tests("def f(): pass", ["assert f() is None"], interpreter=url)


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "body"]
)
def test_a_response_that_comes_byte_by_byte_has_an_end(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "PAUSE", 0.0)
    monkeypatch.setattr(cpython, "MARGIN", 0.5)
    with serving(dripping(start)) as url, pytest.raises(WorldError, match="gave no response within"):
        evaluate("1", {}, seconds=0.5, interpreter=url)
