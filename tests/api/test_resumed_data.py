"""Tests of data that changes before `--resume`: a run goes on with the same rows or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.cli.main import run
from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.limits.records import DIGESTED_ROWS
from rolegraph.engine.records.data import UsedRows, check_data, write_data
from tests.models.edges import chat_answer, serving

Row = Mapping[str, object]
SECRET = "4711-the-label"
ROWS: Sequence[Row] = [{"id": f"q{n}", "question": f"What is {n}?", "answer": f"{n}"} for n in range(6)]
NAMELESS: Sequence[Row] = [{"question": row["question"], "answer": row["answer"]} for row in ROWS]
SPEC = """
rolegraph: 2
name: own
data: {train: t.jsonl, validation: v.jsonl}
model: {provider: openai, name: m}
roles:
  solver:
    prompt: "{{ task.question }}"
    parser: {tag: answer}
    reward: exact_match
    estimator: grpo
train: {batch_size: 2, rollouts: 2, validation: {tasks: 4}}
"""


def write(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SPEC)
    write(tmp_path / "t.jsonl", ROWS)
    write(tmp_path / "v.jsonl", ROWS)
    return tmp_path / "s.yaml"


def changed(rows: Sequence[Row], number: int, **fields: object) -> Sequence[Row]:
    return [{**row, **fields} if position == number else row for position, row in enumerate(rows)]


CHANGES = {
    "a label": (ROWS, changed(ROWS, 1, answer=SECRET), ("row 2 (q1)", "answer")),
    "a question": (ROWS, changed(ROWS, 0, question="Else?"), ("row 1 (q0)", "question")),
    "a type": (ROWS, changed(ROWS, 1, answer=1), ("row 2 (q1)", "answer")),
    "a field added": (ROWS, [{**row, "hint": SECRET} for row in ROWS], ("row 1 (q0)", "hint (new)")),
    "rows removed": (ROWS, ROWS[:2], ("4 rows at the start, 2 now",)),
    "a row removed": (ROWS, [*ROWS[:1], *ROWS[2:]], ("row 2 (q2)",)),
    "a row on top": (NAMELESS, [{"question": "New?", "answer": SECRET}, *NAMELESS], ("row 1", "answer")),
    "another order": (ROWS, [*reversed(ROWS[:4]), *ROWS[4:]], ("another order", "row 1 (q3)")),
    "ids": (ROWS, changed(ROWS, 2, id="else"), ("row 3 (else)", "id")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_refuses_other_rows_and_names_them_without_their_values(
    change: str, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, named = CHANGES[change]
    file, out = spec.with_name("v.jsonl"), spec.with_name("out")
    write(file, before)
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        words = [str(spec), "--base-url", endpoint.base_url, "--out", str(out), "--limit", "4"]
        assert run(["run", *words]) == 0
        asked = len(endpoint.bodies)
        write(file, after)
        for limit in ((), ("--limit", "6"), ("--limit", "1")):
            capsys.readouterr()
            assert run(["run", "--resume", "--base-url", endpoint.base_url, "--out", str(out), *limit]) == 2
            shown = capsys.readouterr().err
            assert "v.jsonl (validation)" in shown and all(part in shown for part in named), shown
            assert SECRET not in shown
        assert len(endpoint.bodies) == asked
    assert SECRET not in (out / "data.jsonl").read_text()


def test_a_run_takes_rows_behind_the_used_ones_and_records_them_when_it_uses_them(spec: Path) -> None:
    file, out = spec.with_name("v.jsonl"), spec.with_name("out")
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        flow = rg.load(spec, base_url=endpoint.base_url)
        rg.run(flow, limit=2, out=out)
        write(file, [*ROWS[:2], *changed(ROWS[2:], 0, answer="other"), {**ROWS[0], "id": "q6"}])
        longer = rg.RunJob.resume(out, limit=4)
        with longer.open_folder(None):
            pass
        write(file, ROWS)
        with pytest.raises(UsageError, match=r"row 3 \(q2\) differs in answer"):
            rg.RunJob.resume(out)


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_refuses_other_rows_of_either_split(change: str, spec: Path) -> None:
    before, after, named = CHANGES[change]
    for split in ("t", "v"):
        for name in ("t", "v"):
            write(spec.with_name(f"{name}.jsonl"), before)
        out = spec.with_name(f"out-{split}")
        job = rg.TrainingJob.create(rg.load(spec, model="local"), out=out)
        job.folder.begin(job.info, job.flow.plan.resolved, job.data)
        rg.TrainingJob.resume(out)
        write(spec.with_name(f"{split}.jsonl"), after)
        with pytest.raises(UsageError) as error:
            rg.TrainingJob.resume(out)
        assert f"{split}.jsonl" in str(error.value) and SECRET not in str(error.value)
        assert all(part in str(error.value) for part in named if "at the start" not in part)


def test_a_training_refuses_appended_rows_to_train_on_only(spec: Path) -> None:
    out = spec.with_name("out")
    job = rg.TrainingJob.create(rg.load(spec, model="local"), out=out)
    job.folder.begin(job.info, job.flow.plan.resolved, job.data)
    more = [*ROWS, {**ROWS[0], "id": "q6"}]
    write(spec.with_name("v.jsonl"), more)
    rg.TrainingJob.resume(out)
    write(spec.with_name("t.jsonl"), more)
    with pytest.raises(UsageError, match="6 rows at the start, 7 now"):  # its order is drawn from all rows
        rg.TrainingJob.resume(out)


def test_a_sweep_checks_every_point_before_it_goes_on(spec: Path) -> None:
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        out = spec.with_name("sweep")
        rg.sweep(spec, "sampling.temperature=0,1", limit=3, out=out, base_url=endpoint.base_url)
        write(spec.with_name("v.jsonl"), changed(ROWS, 2, answer="other"))
        with pytest.raises(UsageError, match=r"row 3 \(q2\) differs in answer"):
            api.SweepJob.resume(out)


def test_tasks_that_are_given_again_are_compared_too(spec: Path) -> None:
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        out = spec.with_name("out")
        rg.run(rg.load(spec, base_url=endpoint.base_url), tasks=ROWS[:2], out=out)
        assert rg.RunJob.resume(out, tasks=ROWS).done == 2
        with pytest.raises(UsageError, match=r"given in Python .*row 1 \(q0\) differs in answer"):
            rg.RunJob.resume(out, tasks=changed(ROWS, 0, answer="other"))


def test_a_row_beyond_those_with_a_digest_is_still_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.records.data.DIGESTED_ROWS", DIGESTED_ROWS._replace(most=3))
    file, other = tmp_path / "data.jsonl", changed(ROWS, 4, answer="other")

    def used(rows: Sequence[Row]) -> UsedRows:
        return UsedRows("train", "t.jsonl", [*rows], lambda most: rows[:most])

    write_data(file, [used(ROWS)])
    check_data(file, [used(ROWS)])
    with pytest.raises(UsageError, match="behind the first 3 differs in answer"):
        check_data(file, [used(other)])


def test_a_million_rows_take_eight_megabytes(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "answer": "1"} for n in range(10_000)]
    write_data(tmp_path / "data.jsonl", [UsedRows("train", "t.jsonl", rows, lambda _: rows)])
    assert (tmp_path / "data.jsonl").stat().st_size < 81_000


@pytest.mark.parametrize(
    "text", ["{}", "[]", "x", '{"split": "train", "count": 99, "columns": {}, "rows": ""}']
)
def test_a_damaged_record_is_a_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.jsonl").write_text(f"{text}\n")
    with pytest.raises(DataError, match=r"data\.jsonl:1: not a record of data"):
        check_data(tmp_path / "data.jsonl", [])
