"""Tests of data that changes before `train --trainer rllm --resume`, without rLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph import api
from rolegraph.engine.records import RunFolder, Source
from rolegraph.engine.records.data import write_data
from rolegraph.integrations.rllm.launch import prepare
from tests.api.test_resumed_data import ROWS, SPEC, changed, write
from tests.cli.conftest import Command

WORDS = ("train", "s.yaml", "model=tinker:Qwen/Qwen3-8B", "--trainer", "rllm", "--out", "run")


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """Write a spec with its rows, and what the launch of a training leaves of them."""
    (tmp_path / "s.yaml").write_text(SPEC)
    for file in ("t.jsonl", "v.jsonl"):
        write(tmp_path / file, ROWS)
    (tmp_path / "run").mkdir()
    job = prepare(Source.of(str(tmp_path / "s.yaml"), "model=tinker:Qwen/Qwen3-8B"), folder=tmp_path / "run")
    write_data(RunFolder(tmp_path / "run").data_file, job.data)
    return tmp_path


@pytest.mark.parametrize("file", ["t.jsonl", "v.jsonl"])
def test_changed_rows_are_refused_as_by_the_own_trainer(started: Path, rolegraph: Command, file: str) -> None:
    same = rolegraph(*WORDS, "--resume", "--print-config")
    assert same.returncode == 0, same.stderr
    write(started / file, changed(ROWS, 1, answer="another"))
    refused = rolegraph(*WORDS, "--resume", "--print-config")
    assert refused.returncode == 2
    assert "row 2 (q1)" in refused.stderr and "answer" in refused.stderr
    assert rolegraph(*WORDS, "--print-config").returncode == 0, "a new training takes the rows as they are"


def test_both_trainers_record_the_same_rows(started: Path) -> None:
    flow = api.open_source(Source.of(str(started / "s.yaml"), "model=tinker:Qwen/Qwen3-8B"))
    own = api.TrainingJob.create(flow, out=started / "own")
    kept = RunFolder(started / "run").data_file.read_text("utf-8")
    write_data(RunFolder(started / "run").data_file, own.data)
    assert RunFolder(started / "run").data_file.read_text("utf-8") == kept
    again = prepare(flow.source, folder=started / "run", resume=True)
    assert [rows.record() for rows in again.data] == [rows.record() for rows in own.data]
