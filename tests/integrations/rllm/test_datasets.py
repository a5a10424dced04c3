"""Datasets of rLLM's registry as data of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from rllm.data import DatasetRegistry

from rolegraph.engine.errors import DataError
from rolegraph.integrations.rllm.datasets import rllm

pytestmark = pytest.mark.rllm
ROWS = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(4)]


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REGISTRY_DIR", "_DATASET_DIR", "_REGISTRY_FILE"):
        if hasattr(DatasetRegistry, name):
            monkeypatch.setattr(
                DatasetRegistry, name, str(tmp_path / Path(getattr(DatasetRegistry, name)).name)
            )
    DatasetRegistry.register_dataset("sums", ROWS, split="train")
    DatasetRegistry.register_dataset("sums", ROWS[:2], split="test")


def test_its_rows_are_tasks_and_its_test_split_is_held_out() -> None:
    train, held_out = rllm("sums", hidden=["answer"]), rllm("sums", split="validation")
    rows = list(train.rows(None))
    assert [row["question"] for row in rows] == [row["question"] for row in ROWS]
    assert len({row["id"] for row in rows}) == 4
    assert train.hidden == {"answer"}
    assert len(list(held_out.rows(None))) == 2


@pytest.mark.parametrize(
    ("name", "split_name", "message"),
    [
        ("sumz", None, "has no dataset 'sumz'; did you mean 'sums'"),
        ("sums", "dev", "no split 'dev'; it has train"),
    ],
)
def test_what_is_not_there_is_named(name: str, split_name: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rllm(name, split_name=split_name)
