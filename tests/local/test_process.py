"""The service as a process: its key, its end with the parent, and failures to start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tinker

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.local.launcher import LocalService, ServiceOptions, running
from rolegraph.local.service.serving import serve
from tests.cli.conftest import ENVIRONMENT
from tests.local.client import PROMPT, prompt, trainer
from tests.waiting import soon

pytestmark = pytest.mark.service

PARENT = """
import json, sys, time
from pathlib import Path
from rolegraph.local.launcher import running
with running(Path(sys.argv[1]), threads=1) as service:
    print(json.dumps([service.base_url, service.pid]), flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print("winding down", flush=True)
        time.sleep(600)
"""


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def parent(model_dir: Path, scratch: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a process that starts the service and waits, in a process group of its own, as in a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(model_dir)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        url, _ = json.loads(process.stdout.readline())
        assert soon(lambda: answers(url))
        yield process, url
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_ctrl_c_is_the_run_s_to_hear_and_killing_the_run_leaves_no_service_and_no_folder_behind(
    model_dir: Path, tmp_path: Path
) -> None:
    """Leave the end of the service after a regular run to the tests of the command."""
    with parent(model_dir, tmp_path) as (process, url):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        assert process.stdout is not None
        assert process.stdout.readline() == "winding down\n"
        assert answers(url)
        process.send_signal(signal.SIGKILL)
        assert soon(lambda: not answers(url))
        assert soon(lambda: not list(tmp_path.iterdir()))


def test_the_key_of_a_service_is_shown_to_nobody(service: LocalService) -> None:
    assert service.base_url.startswith("http://127.0.0.1:")
    assert service.api_key not in repr(service)
    command = Path(f"/proc/{service.pid}/cmdline")
    if command.exists():
        assert service.api_key.encode() not in command.read_bytes()


def test_only_the_health_check_answers_without_the_key(service: LocalService) -> None:
    url = f"{service.base_url}/api/v1"
    assert httpx.get(f"{url}/healthz").status_code == 200
    for path in ("get_server_capabilities", "samplers/x/healthz", "no_such_call"):
        assert httpx.get(f"{url}/{path}").status_code == 401
        assert httpx.get(f"{url}/{path}", headers={"X-API-Key": "tml-wrong"}).status_code == 401


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Yield the URL of `rolegraph serve` with the shipped model."""
    words = [sys.executable, "-m", "rolegraph", "serve", "--port", "0", *options]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
        finally:
            process.terminate()


def test_with_any_key_openai_s_api_takes_any_and_tinker_s_takes_none() -> None:
    headers = {"Authorization": "Bearer EMPTY"}
    body = {"model": "rolegraph-base", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    with serving("--any-key") as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert http.get("/api/v1/get_server_capabilities").status_code == 401
        assert http.post("/api/v1/create_session", json={}).status_code == 401
        pages = (
            {"Origin": "http://evil.example"},
            {"Host": "evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        )
        for page in pages:
            assert http.post("/v1/chat/completions", json=body, headers=page).status_code == 403


def test_without_that_option_a_wrong_key_is_refused_at_openai_s_api(service: LocalService) -> None:
    headers = {"Authorization": "Bearer EMPTY"}
    assert httpx.get(f"{service.base_url}/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "a.machine"])
def test_any_key_is_taken_at_no_address_of_other_machines(model_dir: Path, host: str) -> None:
    with pytest.raises(UsageError, match="no loopback address"):
        serve(ServiceOptions(str(model_dir), host=host, any_key=True))


def test_a_folder_that_holds_no_model_is_the_user_s_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"), running(tmp_path):
        pass
    with pytest.raises(UsageError, match="there is no model folder"), running(tmp_path / "nowhere"):
        pass


def test_a_model_that_cannot_be_read_is_said_with_the_reason(model_dir: Path, tmp_path: Path) -> None:
    from rolegraph.local.service.local_model import LocalModel

    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(UsageError, match="cannot load a causal language model"):
        LocalModel(broken)


def test_what_a_service_says_is_the_user_s_mistake_is_said_where_it_was_asked_for(
    model_dir: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    with (
        pytest.raises(UsageError, match=f"cannot keep checkpoints in {taken}: File exists"),
        running(model_dir, state_dir=taken),
    ):
        pass


def test_a_service_that_does_not_come_up_in_time_is_the_world_s_failure(model_dir: Path) -> None:
    with pytest.raises(WorldError, match="did not start"), running(model_dir, timeout=0.0):
        pass


SERVE = """
import sys
from rolegraph.local.launcher import ServiceOptions
from rolegraph.local.service.serving import serve
try:
    serve(ServiceOptions(sys.argv[1]))
finally:
    print(*sorted({"peft", "tinker", "torch"} & set(sys.modules)))
"""


def sample_and_chat(url: str, key: str, name: str) -> None:
    with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=None) as client:

        def post(path: str, **body: object) -> httpx.Response:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer

        session = post("/api/v1/create_session").json()["session_id"]
        names = {"session_id": session, "sampling_session_seq_id": 1, "base_model": name}
        sampler = post("/api/v1/create_sampling_session", **names).json()["sampling_session_id"]
        prompt = {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]}
        drawn = {"prompt": prompt, "sampling_params": {"max_tokens": 3}, "sampling_session_id": sampler}
        asked = post("/api/v1/asample", **drawn, prompt_logprobs=True).json()["request_id"]
        sampled = post("/api/v1/retrieve_future", request_id=asked)
        assert sampled.headers["content-type"] == "application/x-protobuf", sampled.text
        messages = [{"role": "user", "content": "1 + 1"}]
        post("/v1/chat/completions", model=name, messages=messages, max_tokens=3)


def test_serve_says_where_it_listens_and_its_key_and_ends_at_sigterm(model_dir: Path, tmp_path: Path) -> None:
    """Check that without training neither the SDK nor peft is imported, since each import takes seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline()
        url = said.split(" at ")[1].split()[0]
        key = process.stdout.readline().removeprefix("its key is ").partition(":")[0]
        assert soon(lambda: answers(url))
        models = f"{url}/v1/models"
        assert httpx.get(models).status_code == 401
        bearer = {"Authorization": f"Bearer {key}"}
        (model,) = httpx.get(models, headers=bearer).json()["data"]
        sample_and_chat(url, key, model["id"])
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert process.stdout.read().split() == ["torch"]
    assert not answers(url)
    assert not list(tmp_path.iterdir())


def test_a_service_that_ends_keeps_no_unnamed_checkpoints(model_dir: Path, tmp_path: Path) -> None:
    """A client that was killed leaves them; each is as large as its adapter."""
    with running(model_dir, state_dir=tmp_path / "states", threads=1) as service:
        client = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
        training = trainer(client, service)
        training.save_weights_for_sampler("named").result()
        unnamed = training.save_weights_and_get_sampling_client()
        unnamed.sample(prompt(), 1, tinker.SamplingParams(max_tokens=1)).result()
        kept = {path.parent.name for path in (tmp_path / "states").rglob("adapter_model.safetensors")}
        assert len(kept) == 2
    kept = {path.parent.name for path in (tmp_path / "states").rglob("adapter_model.safetensors")}
    assert kept == {"named"}


def test_a_conversion_ends_with_its_parent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tiny.gguf")  # nothing is written, so it takes for ever
    words = ("-P", "-m", "rolegraph.local.service.gguf_model", tmp_path / "tiny.gguf", tmp_path, "tiny")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, env=environment)
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
