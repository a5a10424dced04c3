"""Tests that an accuracy stands beside the score of the best constant answer, wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rolegraph as rg
from tests.cli.conftest import Command
from tests.models.edges import Endpoint, chat_answer, serving

SPEC = """
rolegraph: 2
name: labels
data: {validation: rows.jsonl, hidden: [answer]}
model: openai:tiny
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: exact_match
  validator:
    needs: solver
    prompt: "Is {{ solver.action }} right? <verdict></verdict>"
    parser: {tag: verdict, as: [correct, incorrect]}
    reward: action == ("correct" if solver.right else "incorrect")
episode: {correct: solver.right, metrics: {solver_acc: all(solver.right)}}
"""
GOLDS = "AABC" * 5
"""Label of each task; always saying A is right for half of them."""


@pytest.fixture
def one_label() -> Iterator[Endpoint]:
    """Serve a model that gives each role one answer, whatever it is asked."""

    def answer(body: dict[str, object]) -> object:
        is_validator = "verdict" in json.dumps(body)
        return chat_answer("<verdict>incorrect</verdict>" if is_validator else "<answer>A</answer>")

    with serving(answer) as served:
        yield served


Run = Callable[..., str]


@pytest.fixture
def labels(rolegraph: Command, one_label: Endpoint, tmp_path: Path) -> Run:
    """Return a function that runs the spec and returns what it prints."""
    rows = [{"id": f"t{n}", "question": f"{n}?", "answer": gold} for n, gold in enumerate(GOLDS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    (tmp_path / "labels.yaml").write_text(SPEC)

    def run(*words: str) -> str:
        done = rolegraph("run", "labels.yaml", "--base-url", one_label.base_url, *words, COLUMNS="160")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_table_of_a_run_shows_what_a_constant_answer_gets(labels: Run) -> None:
    rows = {line.split()[0]: line.split() for line in labels("--out", "run").splitlines() if line.strip()}
    assert {"constant", "commonest"} <= {*rows["role"]}
    assert rows["solver"][2:7] == ["0.500", "50.0%", "0.500", "'A'", "100%"]
    assert rows["validator"][2:7] == ["0.500", "50.0%", "0.500", "'incorrect'", "100%"]


def test_the_document_has_the_same(labels: Run) -> None:
    roles = json.loads(labels("--out", "run", "--json"))["roles"]
    assert roles["solver"]["constant"] == {"commonest": "A", "share": 1.0, "best": "A", "reward": 0.5}
    assert roles["validator"]["constant"]["best"] == "incorrect"
    assert roles["solver"]["n"] == 20


def test_a_comparison_and_its_page_have_rows_beside_the_reward(
    labels: Run, rolegraph: Command, tmp_path: Path
) -> None:
    labels("--out", "runs/one")
    labels("--out", "runs/other", "--seed", "1")
    rows = {row.figure: row for row in rg.compare(tmp_path / "runs/one", tmp_path / "runs/other").rows}
    names = [*rows]
    place = names.index("reward/solver")
    assert names[place + 1 : place + 3] == ["answers/constant/solver", "answers/same/solver"]
    (one, _) = rows["answers/constant/validator"].sides
    assert one and (one.mean, one.n) == (0.5, 20)
    rolegraph("compare", "runs/one", "runs/other", "--html", "page.html")
    _, constants = (tmp_path / "page.html").read_text().split(">constant answers</th>", 1)
    assert "answers/constant/solver" in constants.split("</tbody>")[0]


def test_a_verdict_on_an_accuracy_names_it(labels: Run, rolegraph: Command, tmp_path: Path) -> None:
    labels("--out", "run")
    names = ("correct", "solver_acc", "reward/validator")
    tests = {"answers": "run", "expect": {"figures": {name: {"at_least": 0.4} for name in names}}}
    (tmp_path / "labels.test.yaml").write_text(json.dumps(tests))
    done = rolegraph("test", "labels.yaml")
    lines = [line for line in done.stdout.splitlines() if "figure" in line]
    assert len(lines) == 3, done.stdout + done.stderr
    assert all("n 20" in line and "best constant answer gets 0.500" in line for line in lines)


def test_a_share_of_all_right_answers_has_an_interval(labels: Run, tmp_path: Path) -> None:
    for name in ("one", "other"):
        labels("--out", name)
    rows = {row.figure: row for row in rg.compare(tmp_path / "one", tmp_path / "other").rows}
    (same, _), (gap,) = rows["answers/same/solver"].sides, rows["answers/same/solver"].differences
    assert same and same.mean == 1.0 and same.low == pytest.approx(0.839, abs=1e-3)
    assert gap and gap.low < 0 < gap.high


def test_answers_of_their_own_leave_the_columns_out(
    rolegraph: Command, tmp_path: Path, recording: Path
) -> None:
    done = rolegraph("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["roles"]["solver"]["answers"] == []
