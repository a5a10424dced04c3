"""Clients of the local service: small requests that stand for gigabytes, headers without end, and races."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")
pytest.importorskip("tinker")

from tinker.proto import tinker_public_pb2 as public

from rolegraph.local.launcher import LocalService
from rolegraph.local.service.checkpoints import CheckpointStore
from tests.local.conftest import model_dir as model_dir
from tests.local.conftest import service as service
from tests.local.conftest import state_dir as state_dir

pytestmark = pytest.mark.service
MOST = 2**28
"""Bytes by which one request may raise the service's peak memory."""


@contextmanager
def small_peak(service: LocalService) -> Iterator[None]:
    """Assert that the service's peak of memory grows by less than `MOST`."""

    def peak() -> int:
        status = Path(f"/proc/{service.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    if not Path("/proc").exists():
        pytest.skip("reads /proc")
    before = peak()
    yield
    assert peak() - before < MOST


def sparse(count: int, columns: int) -> bytes:
    """Serialize a forward_backward whose sparse tensors have one row each, and no values."""
    asked = public.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    for _ in range(count):
        one = asked.data.add()
        one.model_input.add().encoded_text.tokens = np.asarray([5], np.int32).tobytes()
        tensor = one.loss_fn_inputs["weights"]
        tensor.dtype = public.DTYPE_FLOAT32
        tensor.shape.extend([1, columns])
        tensor.sparse_csr.crow_indices = np.zeros(2, np.int64).tobytes()
    return asked.SerializeToString()


@pytest.mark.parametrize(("count", "columns"), [(10, 2**24 - 1), (600, 2**20), (1, 2**40)])
def test_a_kilobyte_of_sparse_tensors_takes_no_gigabytes(
    service: LocalService, count: int, columns: int
) -> None:
    headers = {"X-API-Key": service.api_key, "Content-Type": "application/x-protobuf"}
    url = f"{service.base_url}/api/v1/forward_backward"
    with small_peak(service):
        answer = httpx.post(url, content=sparse(count, columns), headers=headers, timeout=300)
    assert (answer.status_code, "service_targets" in answer.text) == (400, True), answer.text


HOST = b"HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /api/v1/asample " + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET /", b"x"),
        (b"GET / " + HOST + b"X: ", b"x"),
        (CHUNKED + b"0\r\nX: ", b"x"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: yyyyyyyyyyy\r\n"),
    ],
    ids=["path", "header", "trailer", "trailers"],
)
def test_headers_without_end_are_refused_before_the_key_is_asked_for(
    service: LocalService, begun: bytes, more: bytes
) -> None:
    host, port = service.base_url.removeprefix("http://").split(":")
    with small_peak(service), closing(socket.create_connection((host, int(port)))) as raw:
        with suppress(OSError):
            raw.sendall(begun)
            for _ in range(512):
                raw.sendall(more * (2**20 // len(more)))
            raise AssertionError("the service took 512 MB")
        with suppress(OSError):
            assert raw.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"")


def test_lists_of_checkpoints_do_not_fail_while_others_are_deleted(tmp_path: Path) -> None:
    store, over = CheckpointStore(tmp_path, "m", tmp_path), threading.Event()

    def come_and_go(name: str) -> None:
        while not over.is_set():
            with suppress(OSError):  # of what the deletion before left behind
                (tmp_path / name / "weights" / "a").mkdir(parents=True)
            shutil.rmtree(tmp_path / name, ignore_errors=True)

    others = [threading.Thread(target=come_and_go, args=(f"run-{number}",)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for other in others:
            other.start()
        for _ in range(2_000):
            assert store.entries() == []
    finally:
        over.set()
        sys.setswitchinterval(interval)
        for other in others:
            other.join()
