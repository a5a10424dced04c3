"""The probes of checkpoints, on clients of the SDK's form without a service."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

tinker = pytest.importorskip("tinker")

from rolegraph.doctor.fields import CHECKPOINTS  # noqa: E402
from rolegraph.doctor.meter import RANK, ServiceMeter  # noqa: E402

PROBES = {row.name: row.find for row in CHECKPOINTS}
PATH = "tinker://run/weights/state"


class Clients:
    """Clients of training and of checkpoints; a second save of a name that is not asked for fails."""

    def __init__(self, error: Exception) -> None:
        self.error, self.saves, self.entries = error, 0, list[Any]()

    def save_state(self, name: str, *, overwrite: bool = False, **options: Any) -> Future[Any]:
        self.saves += 1
        saved: Future[Any] = Future()
        if self.entries and not overwrite:
            saved.set_exception(self.error)
            return saved
        expires = datetime.now(UTC) + timedelta(seconds=options["ttl_seconds"])
        metadata = options["user_metadata"]
        self.entries = [SimpleNamespace(tinker_path=PATH, expires_at=expires, user_metadata=metadata)]
        saved.set_result(SimpleNamespace(path=PATH))
        return saved

    def list_checkpoints(self, run: str) -> Any:
        return SimpleNamespace(checkpoints=self.entries)

    def get_weights_info_by_tinker_path(self, path: str) -> Any:
        return SimpleNamespace(lora_rank=RANK, base_model="tiny")

    def get_info(self) -> Any:
        return SimpleNamespace(lora_rank=RANK)

    def delete_checkpoint_from_tinker_path(self, path: str) -> None:
        self.entries = []


def meter_of(clients: Clients) -> ServiceMeter:
    meter = ServiceMeter(cast("Any", None), "tiny")
    vars(meter).update(trainer=clients, rest=clients)
    return meter


def refusal() -> Exception:
    request = httpx.Request("POST", "http://127.0.0.1")
    return tinker.ConflictError("exists", response=httpx.Response(409, request=request), body=None)


def test_a_refused_name_is_as_expected_and_a_broken_client_is_replaced() -> None:
    meter = meter_of(Clients(refusal()))
    assert PROBES["overwrite"](meter).ok
    assert "trainer" not in vars(meter)  # it has no log-probabilities to give


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError()])
def test_a_service_that_does_not_answer_refuses_no_name(error: Exception) -> None:
    with pytest.raises(type(error)):
        PROBES["overwrite"](meter_of(Clients(error)))


def test_the_probes_share_one_saved_state() -> None:
    clients = Clients(refusal())
    meter = meter_of(clients)
    assert all(find(meter).ok for name, find in PROBES.items() if name != "overwrite")
    assert clients.saves == 1
