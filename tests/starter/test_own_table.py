"""Four commands from a table to a trained SmolLM2; runs where ROLEGRAPH_DOWNLOAD_TESTS is set."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.api.evaluation import Evaluation
from rolegraph.cli.main import run

pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not os.environ.get("ROLEGRAPH_DOWNLOAD_TESTS"), reason="downloads 93 MB and trains"),
]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CERTIFICATES = os.environ.get("SSL_CERT_FILE")
"""The user's certificates; the tests' own session has fewer."""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_table_is_learned_beyond_its_interval_and_the_best_constant_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if CERTIFICATES:
        monkeypatch.setenv("SSL_CERT_FILE", CERTIFICATES)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    own_tables = __import__("own_tables")
    own_tables.write(tmp_path)
    on_test = ("data.validation=test.jsonl", "--checkpoint", "mine/trained", "--out", "mine/measured")
    assert run(["fetch", "smollm2-135m"]) == 0
    assert run(["new", "mine", "--data", "topics.csv"]) == 0
    assert run(["train", "mine/mine.yaml", "--out", "mine/trained", "--seed", str(seed)]) == 0
    assert run(["eval", "mine/mine.yaml", *on_test]) == 0
    correct = Evaluation.read(tmp_path / "mine" / "measured").figures["correct"]
    labels = [json.loads(line)["topic"] for line in Path("mine/test.jsonl").read_text().splitlines()]
    assert correct.difference.low > 0
    assert correct.checkpoint.low > max(map(labels.count, labels)) / len(labels)
