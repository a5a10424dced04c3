"""Sessions of clients that vanish, and the order of operations."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from rolegraph.engine.models.types import PROCESS  # noqa: E402
from rolegraph.local.launcher import LocalService, running  # noqa: E402
from rolegraph.local.service.batcher import FairQueue  # noqa: E402
from rolegraph.local.service.sessions import TurnOrder  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, trainer  # noqa: E402
from tests.waiting import soon  # noqa: E402

pytestmark = pytest.mark.service
HEADERS = "X-API-Key"
SILENT = 2.0
PROMPTED = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]}}
CLIENTS = """
import os, sys
import httpx
url, key, name, count = sys.argv[1:]
http = httpx.Client(base_url=url + "/api/v1", headers={"X-API-Key": key}, timeout=None)
for _ in range(int(count)):
    session = http.post("/create_session", json={"user_metadata": {"process": str(os.getpid())}}).json()
    asked = {"session_id": session["session_id"], "model_seq_id": 0, "base_model": name}
    made = http.post("/create_model", json={**asked, "lora_config": {"rank": 4}}).json()
    while http.post("/retrieve_future", json={"request_id": made["request_id"]}).status_code == 408:
        pass
    asked = {"session_id": session["session_id"], "sampling_session_seq_id": 1, "base_model": name}
    sampler = http.post("/create_sampling_session", json=asked).json()["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 80]}]}
    body = {"prompt": prompt, "sampling_params": {"max_tokens": 250, "stop": []}, "num_samples": 4}
    http.post("/asample", json={**body, "sampling_session_id": sampler})
    print(made["model_id"], flush=True)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def hasty(model_dir: Path) -> Iterator[LocalService]:
    """Run a service for which a client is gone after SILENT seconds without a request."""
    with running(model_dir, threads=1, silent=SILENT) as started:
        yield started


@pytest.fixture
def http(hasty: LocalService) -> Iterator[httpx.Client]:
    url = f"{hasty.base_url}/api/v1"
    with httpx.Client(base_url=url, headers={HEADERS: hasty.api_key}, timeout=None) as client:
        yield client


def is_there(http: httpx.Client, model_id: str) -> bool:
    return http.post("/get_info", json={"model_id": model_id}).status_code == 200


def test_what_killed_clients_held_is_freed(hasty: LocalService, http: httpx.Client) -> None:
    words = [sys.executable, "-c", CLIENTS, hasty.base_url, hasty.api_key, hasty.model_name, "2"]
    clients = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    models = list[str]()
    for client in clients:
        assert client.stdout is not None
        models += [line.strip() for line in iter(client.stdout.readline, "done\n")]
    assert len(models) == 4
    time.sleep(2 * SILENT)
    assert all(is_there(http, model) for model in models)  # since the processes of the clients live
    for client in clients:
        client.send_signal(signal.SIGKILL)
        client.wait()
        assert client.stdin and client.stdout
        client.stdin.close()
        client.stdout.close()
    assert soon(lambda: not any(is_there(http, model) for model in models))


def begin(http: httpx.Client, **metadata: str) -> str:
    return http.post("/create_session", json={"user_metadata": metadata}).json()["session_id"]


def is_over(http: httpx.Client, session: str) -> bool:
    return http.post("/session_heartbeat", json={"session_id": session}).status_code == 410


def ends(http: httpx.Client, session: str) -> bool:
    """Return True if a session ends after a while without requests."""
    for pause in (2, 5, 10, 30, 60):  # a busy service counts no silence
        time.sleep(pause * SILENT)
        if is_over(http, session):
            return True
    return False


def test_a_client_whose_process_lives_is_never_taken_for_gone(http: httpx.Client) -> None:
    silent, known = begin(http), begin(http, **{PROCESS: str(os.getpid())})
    assert ends(http, silent)
    assert not is_over(http, known)


def test_what_is_said_of_a_process_is_no_more_than_a_hint(http: httpx.Client) -> None:
    for said in ("0", "-1", "9" * 30, "x", "²", ""):
        assert begin(http, **{PROCESS: said})


def test_heartbeats_keep_a_session(http: httpx.Client) -> None:
    session = begin(http)
    for _ in range(12):
        time.sleep(SILENT / 8)
        assert not is_over(http, session)


def test_a_training_that_was_taken_for_gone_goes_on_from_its_checkpoint(
    hasty: LocalService, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    # The SDK's heartbeats come every ten seconds: too seldom for this service.
    lost = tinker.ServiceClient(base_url=hasty.base_url, api_key=hasty.api_key)
    training = trainer(lost, hasty)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    training.optim_step(ADAM).result()
    saved = training.save_state("half").result().path
    assert ends(http, training.model_id.partition(":")[0])
    assert not is_there(http, training.model_id)
    client = tinker.ServiceClient(
        base_url=hasty.base_url, api_key=hasty.api_key, user_metadata={PROCESS: str(os.getpid())}
    )
    again = client.create_training_client_from_state_with_optimizer(saved).result()
    again.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    assert again.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] > 0


def test_the_sampling_of_a_finished_session_stops(service: LocalService) -> None:
    with httpx.Client(
        base_url=f"{service.base_url}/api/v1", headers={HEADERS: service.api_key}, timeout=None
    ) as http:
        session = begin(http)
        asked = {"session_id": session, "sampling_session_seq_id": 0, "base_model": service.model_name}
        sampler = http.post("/create_sampling_session", json=asked).json()["sampling_session_id"]
        body = {**PROMPTED, "sampling_params": {"max_tokens": 240, "stop": []}, "num_samples": 1000}
        request = http.post("/asample", json={**body, "sampling_session_id": sampler}).json()["request_id"]
        assert http.post(f"/sessions/{session}/finish", json={}).status_code == 200
        assert http.post("/retrieve_future", json={"request_id": request}).status_code == 410
        assert http.post("/asample", json={**body, "sampling_session_id": sampler}).status_code == 404


def test_a_training_call_that_is_cancelled_while_it_waits_holds_up_no_other(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    training = trainer(client, service)
    with httpx.Client(
        base_url=f"{service.base_url}/api/v1", headers={HEADERS: service.api_key}, timeout=None
    ) as http:

        def step(seq_id: int) -> str:
            body = {"model_id": training.model_id, "seq_id": seq_id, "adam_params": {"learning_rate": 0.01}}
            return http.post("/optim_step", json=body).json()["request_id"]

        waiting = step(2)  # for step 1, which was not sent yet
        http.post("/cancel_future", json={"request_id": waiting})
        for seq_id in (1, 3):
            found = http.post("/retrieve_future", json={"request_id": step(seq_id)})
            assert "metrics" in found.json()


def test_what_is_cancelled_is_not_waited_for() -> None:
    async def run() -> list[int]:
        turns, done = TurnOrder(), list[int]()

        async def work(number: int) -> None:
            done.append(number)

        tasks = {n: asyncio.create_task(turns.run(n, lambda n=n: work(n))) for n in (2, 3, 4)}
        await asyncio.sleep(0)
        tasks[2].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0.01)
        await turns.run(1, lambda: work(1))
        await asyncio.wait_for(tasks[4], 1.0)
        return done

    assert asyncio.run(run()) == [1, 4]


def test_owners_take_turns_and_each_keeps_its_order() -> None:
    queue = FairQueue[str]()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(item[0], item)
    queue.filter(lambda item: item != "c1")
    assert [queue.pop() for _ in range(len(queue))] == ["a1", "b1", "a2", "b2", "a3"]
    assert not queue
