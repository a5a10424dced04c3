"""Tests of names that must be fields of the data, and of rewards below what a failed turn earns."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph.engine.compile import check_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec import Diagnostic
from tests.edge import write_spec
from tests.models.edges import chat_answer, serving

ROLE = "{prompt: '{{ task.question }}', estimator: grpo"


def checked(folder: Path, data: str, role: str) -> list[Diagnostic]:
    (folder / "rows.jsonl").write_text('{"id": "t", "question": "3 + 4?", "answer": "7", "note": "x"}\n')
    text = f"rolegraph: 2\nname: named\ndata: {data}\nroles:\n  solver: {ROLE}, {role}}}\n"
    return list(check_file(write_spec(folder, text)).diagnostics)


ROWS = "{train: rows.jsonl, hidden: [answer]}"


@pytest.mark.parametrize(
    ("data", "role", "line"),
    [
        ("{train: rows.jsonl, hidden: [answr]}", "reward: exact_match", 3),
        ("{train: {file: rows.jsonl, hidden: [answr]}}", "reward: exact_match", 3),
        (ROWS, "reward: exact_match, sees: [answr]", 5),
        (ROWS, "reward: countdown, right: action == task.answr", 5),
        (ROWS, "reward: {exact_match: {field: answr}}", 5),
        (ROWS, "reward: {sum: {right: {exact_match: {field: answr}}}}", 5),
        (ROWS, "reward: action == task.answr", 5),
    ],
)
def test_a_name_that_is_no_field_is_a_fault_with_its_place_and_the_nearest_name(
    tmp_path: Path, data: str, role: str, line: int
) -> None:
    faults = [d for d in checked(tmp_path, data, role) if d.severity == "error"]
    (fault,) = [d for d in faults if "answr" in d.message]
    assert fault.place is not None and fault.place.line == line
    assert "answer" in f"{fault.message} {fault.hint}" and "did you mean" in str(fault)


def test_names_of_fields_are_no_fault(tmp_path: Path) -> None:
    role = "reward: action == task.answer, right: task.note == 'x', sees: [answer]"
    assert not [d for d in checked(tmp_path, ROWS, role) if d.severity == "error"]


@pytest.mark.parametrize(
    "reward",
    [
        "(action == task.answer) - 0.002 * tokens",
        "1 if action == task.answer else -1",
        "2 * (action == task.answer) - 1",
        "1 - ((action | float) - 7) | abs",
        "{sum: {right: exact_match, long: {reward: {length: {over: 4}}, weight: -0.1}}}",
        "{sum: {right: exact_match, price: -0.001 * tokens}}",
        "{sum: {deep: {sum: {right: exact_match, price: -0.001 * tokens}}}}",
    ],
)
def test_failing_that_pays_more_than_being_wrong_is_warned_of_with_the_fix(
    tmp_path: Path, reward: str
) -> None:
    (warning,) = [d for d in checked(tmp_path, ROWS, f"reward: {reward}") if "failing pays" in d.message]
    assert warning.severity == "warning"
    assert "on_failure: {reward: -" in warning.hint
    for mended in ("{reward: -1}", "{then: mask}", "{then: fail}"):
        found = checked(tmp_path, ROWS, f"reward: {reward}, on_failure: {mended}")
        assert not [d for d in found if "failing pays" in d.message]


@pytest.mark.parametrize(
    "reward",
    [
        "exact_match",
        "action == task.answer",
        "'[0, 1 - 0.01 * tokens] | max'",
        "action | float",
        "{sum: {right: exact_match, noted: {reward: {length: {over: 4}}, weight: 0}}}",
    ],
)
def test_a_reward_that_is_never_below_0_is_not_warned_of(tmp_path: Path, reward: str) -> None:
    assert not [d for d in checked(tmp_path, ROWS, f"reward: {reward}") if "failing pays" in d.message]


def test_given_tasks_are_checked_before_a_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    text = f"rolegraph: 2\nname: given\nroles:\n  solver: {ROLE}, reward: exact_match}}\n"
    asked: list[object] = []

    def answer(request: object) -> Response:
        asked.append(request)
        return chat_answer("7")

    with serving(answer) as endpoint:
        spec = write_spec(tmp_path, text)
        flow = rg.load(spec, model="openai:tiny", base_url=endpoint.base_url)
        with pytest.raises(UsageError, match="did you mean 'answr'"):
            rg.run(flow, tasks=[{"id": "t", "question": "3 + 4?", "answr": "7"}], out=tmp_path / "out")
    assert not asked
