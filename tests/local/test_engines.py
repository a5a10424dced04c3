"""`rolegraph serve --engine`: launcher, readiness and refusals, with a stand-in for the service."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.plugins import plugin
from rolegraph.local.engines import TinkerEngine, serve_engine

SERVICE = """
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
print("stand-in for", config["checkpoint_dir"], flush=True)
dies = False
FAULT
answers = {
    "/api/v1/healthz": {"status": "ok"},
    "/api/v1/get_server_capabilities": {"supported_models": [
        {"model_name": "SERVED" or model["model_name"]} for model in config["supported_models"]
    ]},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if dies and "capabilities" in self.path:
            os.kill(os.getpid(), signal.SIGKILL)


HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder with an `nvidia-smi` first on PATH, and the cache of engines into another."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return programs


def tuft(fault: str = "", served: str = "") -> TinkerEngine:
    """Return TuFT's engine, whose environment holds the stand-in in place of its package."""
    engine: TinkerEngine = plugin("engines", "tuft")
    (engine.folder / "bin").mkdir(parents=True)
    program = engine.folder / "bin" / "tuft"
    program.write_text(f"#!{sys.executable}{SERVICE.replace('FAULT', fault).replace('SERVED', served)}")
    program.chmod(0o755)
    (engine.folder / ".installed").write_text("\n".join(engine.requirements))
    return engine


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def start(engine: TinkerEngine, port: int, folder: Path, seconds: float = 60) -> list[str]:
    """Serve until the service ends or does not start; return the lines for the user."""
    lines: list[str] = []
    serve_engine(engine, "ORG/MODEL", port=port, state_dir=folder, say=lines.append, seconds=seconds)
    return lines


@pytest.mark.parametrize(
    ("fault", "served", "message"),
    [
        (
            "print('RuntimeError: Found no NVIDIA driver'); sys.exit(3)",
            "",
            r"code 3 before it was ready: torch finds no driver[^$]*Found no NVIDIA driver",
        ),
        ("import time; time.sleep(60)", "", r"was not ready within 1 seconds\n  stand-in for "),
        ("", "other", "tuft serves other, expected ORG/MODEL"),
        (
            "dies = True",
            "",
            r"tuft was killed by SIGKILL \(too little memory\?\); its checkpoints are in \S+/state: start it "
            r"again with that --state-dir, and go on with rolegraph train --resume",
        ),
    ],
)
@pytest.mark.usefixtures("path", "kept_signals")
def test_a_service_that_does_not_start_or_that_dies_is_told_with_its_cause(
    port: int, tmp_path: Path, fault: str, served: str, message: str
) -> None:
    seconds = 1 if "sleep" in fault else 60
    with pytest.raises(WorldError, match=message):
        start(tuft(fault, served), port, tmp_path / "state", seconds)


@pytest.mark.usefixtures("kept_signals")
def test_what_is_missing_is_refused_before_anything_is_installed(
    port: int, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = plugin("engines", "tuft")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            start(engine, port, tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="tuft needs a GPU"):
        start(engine, port, tmp_path)
    missing = engine.lacks()
    assert any("GPU" in line for line in missing) and any("its package" in line for line in missing)
    assert not engine.folder.exists()


@pytest.mark.usefixtures("path", "kept_signals")
def test_a_package_that_cannot_be_installed_is_told_with_the_installer_s_words(
    port: int, tmp_path: Path
) -> None:
    engine = replace(plugin("engines", "tuft"), python="2.99")
    with pytest.raises(WorldError, match=r"tuft cannot be installed: .*uv venv[^$]*2\.99"):
        start(engine, port, tmp_path)
    assert not engine.is_installed


@pytest.mark.usefixtures("path")
def test_a_served_engine_says_how_to_train_on_it_and_ends_with_its_command(port: int, tmp_path: Path) -> None:
    tuft()
    words = [sys.executable, "-m", "rolegraph", "serve", "--engine", "tuft", "ORG/MODEL", "--port", str(port)]
    with (tmp_path / "output").open("w+") as output:
        command = subprocess.Popen([*words, "--state-dir", str(tmp_path / "state")], stdout=output)
        try:
            while "train on it" not in (said := (tmp_path / "output").read_text()):
                assert command.poll() is None, said
                time.sleep(0.1)
        finally:
            command.terminate()
            command.wait(60)
    url = f"http://127.0.0.1:{port}"
    assert f"tuft serves ORG/MODEL at {url}" in said
    assert f"rolegraph train solver_judge --base-url {url} train.lora.rank=8" in said
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
