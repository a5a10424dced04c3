"""Tests of the command with servers of other projects: llama-cpp-python, transformers, LiteLLM's proxy, vLLM.

Each server runs in the interpreter that its variable names, or in this one where its package is importable.
The model is the shipped one, as a folder or as a GGUF file that the test writes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.local.launcher import BASE_MODEL, LocalService
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.model_hub import write_gguf
from tests.models.edges import free_port

SPEC = """
rolegraph: 2
name: ask
data: {train: rows.jsonl}
model: {provider: openai, escape_markers: false}
roles:
  solver:
    prompt: "Make {{ task.n }} from 3 and 4."
    parser: text
    reward: {matches: answer}
    sampling: {max_tokens: 8, stop: ["</answer>"]}
    estimator: grpo
"""


@dataclass
class RealServer:
    """Server of another project on a port of this machine, which can be killed and started again."""

    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict[str, str])
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start the server and wait until it lists its models."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **self.environment}
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command, env=env, stdout=silent, stderr=silent, start_new_session=True
        )
        request = urllib.request.Request(f"{self.url}/models", headers={"Authorization": "Bearer sk-proxy"})
        for _ in range(2400):
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.command} ended with {self.process.returncode}")
            try:
                with urllib.request.urlopen(request, timeout=10):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self.command} does not answer")

    def kill(self) -> None:
        """Kill the server and its children at once."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def interpreter(module: str, variable: str) -> str:
    """Return the interpreter of a server's package; skip the test where there is none."""
    if named := os.environ.get(variable):
        return named
    if not module or importlib.util.find_spec(module) is None:
        name = module or "transformers[serving]"
        pytest.skip(f"needs {name}: install it into a virtual environment, and set {variable}")
    return sys.executable


def llama_cpp(folder: Path, service: LocalService) -> RealServer:
    python = interpreter("llama_cpp", "LLAMA_CPP_PYTHON")
    file, port = write_gguf(BASE_MODEL, folder / "tiny.gguf"), free_port()
    options = ["--model_alias", "tiny", "--n_ctx", "2048", "--n_threads", "1", "--port", str(port)]
    return RealServer([python, "-m", "llama_cpp.server", "--model", str(file), *options], port)


def transformers_serve(folder: Path, service: LocalService) -> RealServer:
    python = interpreter("", "TRANSFORMERS_PYTHON")  # `make test` has its packages, and no time for it
    port, model = free_port(), folder / "tiny"
    model.mkdir()
    for file in BASE_MODEL.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    settings = json.loads((model / "generation_config.json").read_text("utf-8"))
    (model / "generation_config.json").write_text(json.dumps({**settings, "do_sample": True}))
    start = "from transformers.cli.transformers import main; main()"
    options = ["--port", str(port), "--device", "cpu"]
    return RealServer([python, "-c", start, "serve", str(model), *options], port)


def vllm(folder: Path, service: LocalService) -> RealServer:
    python, port = interpreter("vllm", "VLLM_PYTHON"), free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--enforce-eager"]
    # Its CPU build ends at a prompt with a seed that it splits into chunks.
    options += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--dtype", "float32"]
    start = "from vllm.entrypoints.cli.main import main; main()"
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # ninja and the like
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "PATH": path}
    settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return RealServer([python, "-c", start, "serve", str(BASE_MODEL), *options], port, settings)


def litellm(folder: Path, service: LocalService) -> RealServer:
    python = interpreter("litellm", "LITELLM_PYTHON")
    behind = {
        "model": f"openai/{service.model_name}",
        "api_base": f"{service.base_url}/v1",
        "api_key": service.api_key,
    }
    config = {
        "model_list": [{"model_name": "tiny", "litellm_params": behind}],
        "general_settings": {"master_key": "sk-proxy"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    port, start = free_port(), "from litellm import run_server; run_server()"
    options = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return RealServer([python, "-c", start, *options], port, settings)


Factory = Callable[[Path, LocalService], RealServer]
SERVERS = [
    pytest.param(llama_cpp, (0, 0, 1), marks=pytest.mark.llama_cpp, id="llama-cpp-python"),
    pytest.param(transformers_serve, (0, 0, 0), marks=pytest.mark.transformers_serve, id="transformers"),
    pytest.param(litellm, (1, 1, 1), marks=pytest.mark.litellm, id="litellm"),
    pytest.param(vllm, (1, 1, 1), marks=pytest.mark.vllm, id="vllm"),
]
"""Servers, each with the parts of an answer that it gives: prompt ids, response ids, log-probabilities."""


@contextmanager
def killed_after(server: RealServer, file: Path, episodes: int) -> Generator[None]:
    """Kill a server during the block, once a file has so many episodes."""

    def watch() -> None:
        while not over.wait(0.01):
            if file.exists() and file.read_bytes().count(b"\n") >= episodes:
                return server.kill()

    over = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def texts(episodes: list[Episode]) -> dict[str, str]:
    """Return the answers by the ids of their episodes, without those that are missing."""
    return {episode.id: step.model_response for episode in episodes for step in episode["solver"][0].steps}


@pytest.mark.service
@pytest.mark.parametrize(("make", "given"), SERVERS)
def test_a_run_has_what_the_server_gives_and_goes_on_after_the_server_is_killed(
    make: Factory,
    given: tuple[int, int, int],
    service: LocalService,
    rolegraph: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proxy")
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.01)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(12)))
    (tmp_path / "ask.yaml").write_text(SPEC)
    server = make(tmp_path, service)
    words = ("run", "ask.yaml", "--rollouts", "2", "--model", "openai")
    words += ("--base-url", server.url, "--concurrency", "1", "--seed", "5")
    server.start()
    try:
        whole = rolegraph(*words, "--out", "whole")
        assert whole.returncode == 0, whole.stderr
        assert whole.stderr.count("`logprobs`") == (not given[2])
        with killed_after(server, tmp_path / "out" / "episodes.jsonl", 4):
            broken = rolegraph(*words, "--out", "out")
        assert "model_error" in broken.stdout
        finished = texts([*read_episodes(tmp_path / "out" / "episodes.jsonl")])
        assert 4 <= len(finished) < 24
        server.start()
        resumed = rolegraph("run", "--resume", "--retry-failed", "--out", "out")
        assert resumed.returncode == 0, resumed.stderr
    finally:
        server.kill()
    episodes = [*read_episodes(tmp_path / "whole" / "episodes.jsonl")]
    for episode in episodes:
        (step,) = episode["solver"][0].steps
        parts = (step.prompt_ids, step.response_ids, step.logprobs)
        assert tuple(int(bool(part)) for part in parts) == given
    answers = texts([*read_episodes(tmp_path / "out" / "episodes.jsonl")])
    assert finished.items() <= answers.items()
    if make is not transformers_serve:  # its seed is that of the whole process
        assert answers == texts(episodes), "the same seeds give the same answers"
    assert len(set(answers.values())) > 1
