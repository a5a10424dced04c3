"""What clients leave that are killed in the middle: the service's memory, and the time to create a client.

    python benchmarks/killed_clients.py --clients 200

Each client has a training run of its own and is drawing answers when it is killed. They come from a few
processes, each the clients' own as far as the service can see. A first crowd shows what the service keeps
for good (what was imported and allocated once), the second what one client more costs. Times are medians.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import httpx

from rolegraph.engine.models.types import PROCESS
from rolegraph.local.launcher import BASE_MODEL, LocalService, running

SILENT_SECONDS = 2.0
PROCESSES = 4
TRIES = 9
MIB = 2**20


class Client:
    """A session with a training run."""

    def __init__(self, service: LocalService) -> None:
        self._http = httpx.Client(
            base_url=f"{service.base_url}/api/v1", headers={"X-API-Key": service.api_key}, timeout=600
        )
        self.session = self._post("create_session", user_metadata={PROCESS: str(os.getpid())})["session_id"]
        self._model = {"session_id": self.session, "base_model": service.model_name}
        made = self._post("create_model", **self._model, model_seq_id=0, lora_config={"rank": 8})
        while self._http.post("/retrieve_future", json={"request_id": made["request_id"]}).status_code == 408:
            pass

    def draw(self) -> None:
        """Ask for answers and wait for none."""
        made = self._post("create_sampling_session", **self._model, sampling_session_seq_id=1)
        self._post(
            "asample",
            prompt={"chunks": [{"type": "encoded_text", "tokens": [5, 80]}]},
            sampling_params={"max_tokens": 500, "stop": []},
            num_samples=4,
            sampling_session_id=made["sampling_session_id"],
        )

    def sessions(self) -> int:
        """How many the service has."""
        return len(self._http.get("/sessions", params={"limit": 1000}).json()["sessions"])

    def finish(self) -> None:
        """End the session in good order."""
        self._post(f"sessions/{self.session}/finish")

    def _post(self, path: str, **body: Any) -> Any:
        return self._http.post(path, json=body).raise_for_status().json()


def crowd(service: LocalService, count: int) -> None:
    """Be `count` clients until killed."""
    for _ in range(count):
        Client(service).draw()
    print("ready", flush=True)
    time.sleep(3600)


def killed(service: LocalService, count: int) -> None:
    """Start so many clients, and kill them all when the last is there."""
    words = [sys.executable, __file__, "--clients", str(count // PROCESSES), "--of"]
    words += [service.base_url, service.model_name, service.api_key]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    show(service, f"with {count} clients more")
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()


def show(service: LocalService, when: str) -> None:
    """Print what the service takes now."""
    times = list[float]()
    for _ in range(TRIES):
        start = time.perf_counter()
        client = Client(service)
        times.append(time.perf_counter() - start)
        client.finish()
    pages = int(Path(f"/proc/{service.pid}/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") / MIB
    click.echo(f"{when:28} {memory:6.0f} MiB {median(times) * 1000:7.0f} ms to create a client")


def wait_until_alone(service: LocalService) -> None:
    """Wait until the service has seen that the others are gone."""
    client = Client(service)
    while client.sessions() > 1:
        time.sleep(0.5)
    client.finish()


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--clients", default=200, show_default=True)
@click.option("--of", nargs=3, hidden=True, help="URL, model and key of the service to be clients of.")
def main(clients: int, of: tuple[str, str, str] | None) -> None:
    """Kill clients, and print what they leave."""
    if of is not None:
        return crowd(LocalService(*of, 0), clients)
    with running(BASE_MODEL, threads=1, silent=SILENT_SECONDS) as service:
        show(service, "before")
        for number in ("first", "second"):
            killed(service, clients)
            wait_until_alone(service)
            show(service, f"after the {number} {clients} killed")


if __name__ == "__main__":
    main()
