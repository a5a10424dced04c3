"""Tests of full CPython: in containers of an engine that is here, of a stub of one, and at a server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import SandboxError, UsageError, WorldError
from rolegraph.engine.vocabulary import is_allowed, python_interpreter
from rolegraph.sandbox import PythonSandbox, cpython, evaluate, run_tests
from tests.sandbox.generated import generated
from tests.sandbox.snippets import SNIPPETS
from tests.sandbox.stub_engine import add_stub_engine

CONTAINER = os.environ.get("ROLEGRAPH_TEST_CONTAINER", "")
"""A CPython in a real container, such as podman:local/python:3.11."""
needs_container = pytest.mark.skipif(not CONTAINER, reason="needs ROLEGRAPH_TEST_CONTAINER=podman:IMAGE")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an interpreter whose engine, a stub of docker, runs the container's command on this machine."""
    add_stub_engine(tmp_path, monkeypatch)
    return f"docker:{tmp_path.name}"


@pytest.fixture(params=["stub", pytest.param("container", marks=needs_container)])
def interpreter(request: pytest.FixtureRequest) -> str:
    """Return the interpreter of a stub, and of a real container."""
    return CONTAINER if request.param == "container" else request.getfixturevalue("stub")


def test_programs_have_their_value_their_output_and_their_error(interpreter: str) -> None:
    ran = evaluate("print('a')\nsum(n for n in inputs)", {"inputs": [1, 2]}, interpreter=interpreter)
    assert (ran.value, ran.output) == (3, "a\n")
    with pytest.raises(SandboxError, match="ZeroDivisionError") as raised:
        evaluate("print('before')\n1 / 0", {}, interpreter=interpreter)
    assert raised.value.output == "before\n"
    for code in ("raise SystemExit", "def f(:", "import sys; sys.exit(3)"):
        with pytest.raises(SandboxError):
            evaluate(code, {}, interpreter=interpreter)
    assert len(str(evaluate("'x' * 10 ** 6", {}, interpreter=interpreter).value)) < 20_000


@needs_container
def test_snippets_and_generated_programs_agree_with_python() -> None:
    failed = [s.name for s in SNIPPETS if run_tests(s.program, [s.test], interpreter=CONTAINER) != 1]
    assert not failed
    for snippet, is_right in generated(200):
        assert run_tests(snippet.program, [snippet.test], interpreter=CONTAINER) == float(is_right)


def test_some_snippets_in_the_stub(stub: str) -> None:
    names = {"heapq", "yield", "super", "property", "input", "maketrans", "del"}
    parts = [s for s in SNIPPETS if s.name in names]
    assert len(parts) == len(names)
    assert all(run_tests(s.program, [s.test], interpreter=stub) == 1.0 for s in parts)
    assert run_tests("def f(x): return x", ["assert f(1) == 2", "assert f(1) == 1"], interpreter=stub) == 0.5


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "x = [0] * 10 ** 10",
        "import os; os._exit(0)",
        "import time; time.sleep(60)",
        "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)",
    ],
)
def test_a_program_that_does_not_end_well_is_an_error_and_the_next_one_runs(
    interpreter: str, code: str
) -> None:
    with pytest.raises(SandboxError):
        evaluate(code, {}, seconds=2, interpreter=interpreter)
    assert evaluate("1 + 1", {}, interpreter=interpreter).value == 2


@needs_container
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True:\n    os.fork()",
        "import os\nos.kill(1, 9)",
        "import os\nos.kill(os.getppid(), 9)\nraise ValueError",
        "while True: print('x' * 10 ** 6)",
        "open('/proc/1/environ').read()",
        "import socket\nsocket.create_connection(('1.1.1.1', 80), 2)",
        "open('/usr/x', 'w')",
        "open('/tmp/x', 'wb').write(b'0' * (40 << 20))",
    ],
)
def test_a_hostile_program_gets_nowhere(code: str) -> None:
    with pytest.raises(SandboxError):
        evaluate(code, {}, seconds=2, interpreter=CONTAINER)
    left = "import os\n[os.listdir('/tmp'), [p for p in os.listdir('/proc') if p.isdigit() and p != '1']]"
    files, processes = evaluate(left, {}, interpreter=CONTAINER).value
    assert files == [] and len(processes) == 1  # the program itself


def test_a_container_that_died_is_replaced(interpreter: str) -> None:
    assert evaluate("1 + 1", {}, interpreter=interpreter).value == 2
    container = cpython._pool(interpreter).get()
    container._process.kill()
    container._process.wait()
    cpython._pool(interpreter).put(container)
    assert evaluate("1 + 2", {}, interpreter=interpreter).value == 3


def test_containers_end_with_the_process_that_was_killed(interpreter: str) -> None:
    code = (
        "import os, sys, time\n"
        "from rolegraph.sandbox import cpython, evaluate\n"
        f"evaluate('1', {{}}, interpreter={interpreter!r})\n"
        f"print(cpython._pool({interpreter!r}).get()._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(600):
        if not Path(f"/proc/{engine}").exists() or "Z" in Path(f"/proc/{engine}/stat").read_text().split():
            return
        time.sleep(0.1)
    pytest.fail("the engine's process still runs")


def test_a_run_that_is_cancelled_ends_at_its_limit(interpreter: str) -> None:
    async def cancelled() -> None:
        running = asyncio.create_task(
            PythonSandbox(seconds=2, interpreter=interpreter).run("while True: pass")
        )
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await PythonSandbox(interpreter=interpreter).run("40 + 2")).value == 42

    asyncio.run(cancelled())


def test_an_engine_that_is_missing_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="podman is not installed"):
        evaluate("1", {}, interpreter="podman:x")
    script = "import sys\nif sys.argv[1] != 'image' or sys.argv[-1] == 'y': sys.exit('it is broken')\n"
    (tmp_path / "podman").write_text(f"#!{sys.executable}\n{script}")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setattr(cpython, "PAUSE", 0)
    with pytest.raises(WorldError, match="it is broken"):
        evaluate("1", {}, interpreter="podman:x2")
    with pytest.raises(UsageError, match=r"broken.*podman pull y"):
        evaluate("1", {}, interpreter="podman:y")


# SandboxFusion

Answer = Callable[[dict[str, Any]], Any]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Return a function that serves answers to POST /run_code and returns the server's URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, reply = (200, answer(body)) if self.path == "/run_code" else (404, {})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(reply).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def runs(body: dict[str, Any]) -> dict[str, Any]:
    """Answer as SandboxFusion does, by running the code here."""
    assert body["language"] == "python"
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-"],
            input=body["code"],
            capture_output=True,
            text=True,
            timeout=body["run_timeout"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
        return {"status": "Failed", "message": "", "compile_result": None, "run_result": late}
    result = {"status": "Finished", "return_code": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}
    status = "Success" if ran.returncode == 0 else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": result}


def test_a_server_runs_programs(serve: Callable[[Answer], str]) -> None:
    url = serve(runs)
    assert evaluate("import heapq\nprint('x')\n40 + 2", {}, interpreter=url) == (42, "x\n")
    assert run_tests("def f(x): return x", ["assert f(1) == 1"], interpreter=url + "/") == 1.0
    with pytest.raises(SandboxError, match="ValueError: no"):
        evaluate("raise ValueError('no')", {}, interpreter=url)
    with pytest.raises(SandboxError, match="its process ended"):
        evaluate("import os; os._exit(3)", {}, interpreter=url)
    with pytest.raises(SandboxError, match="took longer than 1 s"):
        evaluate("while True: pass", {}, seconds=1, interpreter=url)


def test_an_output_without_end_is_the_program_s_error(serve: Callable[[Answer], str]) -> None:
    flood = "import os\nfor _ in range(400): os.write(1, b'a' * 50_000)"
    with pytest.raises(SandboxError, match="limit: program_reply"):
        evaluate(flood, {}, interpreter=serve(runs))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"status": "SandboxError", "message": "no disk", "run_result": None}, "no disk"),
        ({"status": "Success", "run_result": {"stdout": "hi"}}, "does not answer as SandboxFusion"),
        ({"ok": True}, "does not answer as SandboxFusion"),
        ([], "does not answer as SandboxFusion"),
    ],
)
def test_a_server_that_fails_fails_no_program(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch, reply: Any, said: str
) -> None:
    monkeypatch.setattr(cpython, "PAUSE", 0)
    asked: list[int] = []
    url = serve(lambda body: asked.append(1) or reply)
    with pytest.raises(WorldError, match=said):
        evaluate("1", {}, interpreter=url)
    assert len(asked) == 2


def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "PAUSE", 0)
    with pytest.raises(WorldError, match=r"cannot reach the sandbox at http://127.0.0.1:9"):
        run_tests("x = 1", ["assert x == 1"], interpreter="http://127.0.0.1:9")


# The permission


def test_the_permission_names_the_interpreter() -> None:
    for name in ("docker:python:3.12-slim", "podman:local/python", "http://localhost:8080", "https://a.b/x"):
        assert is_allowed("python", [f"python={name}"])
        assert python_interpreter(["python", "http://a.b", f"python={name}"]) == name
    assert python_interpreter(["python"]) == python_interpreter([]) == "monty"
    assert not is_allowed("http://a.b/x", ["http://a.b/x=1", "python=http://a.b/x"])


@pytest.mark.parametrize(
    "name", ["", "docker:", "docker", "bash:x", "docker:--privileged x", "ftp://a.b", "docker:-v"]
)
def test_a_malformed_one_is_refused_with_the_fix(name: str) -> None:
    with pytest.raises(UsageError, match="expected docker:IMAGE, podman:IMAGE"):
        python_interpreter([f"python={name}"])
