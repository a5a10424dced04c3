"""Tests of the findings about vocabulary items, with their places and the expected options."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from rolegraph.engine.compile.resolve import OWN_NAME
from rolegraph.engine.spec import Diagnostic
from tests.edge import write_spec

HEAD = "rolegraph: 2\nname: x\ndata: {validation: countdown}\nroles:\n"


def pointed_at(diagnostic: Diagnostic) -> str:
    place = diagnostic.place
    return place.text[place.column - 1 : place.column - 1 + place.width]


def faults_of(folder: Path, role: str) -> list[tuple[str, str, str]]:
    """Return the marked text, the message, and the expectation of each fault of a role."""
    text = f"{HEAD}  solver: {{prompt: Hi, {role}}}"
    found = check_file(write_spec(folder, text)).diagnostics
    return [(pointed_at(fault), fault.message, fault.expected) for fault in found]


@pytest.mark.parametrize(
    ("role", "at", "message", "expected"),
    [
        ("parser: {tag: a, keep_tag: maybe}", "keep_tag", "keep_tag cannot be 'maybe'", "true or false"),
        ("parser: {tag: 5}", "tag", "its value cannot be 5", "text"),
        ("parser: {tag: a, as: [1]}", "as", 'as: 1 is no text; quote it: "1"', ""),
        ("parser: {tag: a, as: {number: {min: few}}}", "min", "min cannot be 'few'", "a number, or null"),
        ("parser: {tag: a, which: last}", "which", "no option 'which'", "as, keep_tag, ignore_case, default"),
        ("parser: tag", "tag", "needs a value", "{tag: …}"),
        ("parser: {text: 5}", "text", "takes no value of its own", "no options"),
        (
            "reward: {exact_match: {feild: x}}",
            "feild",
            "no option 'feild'",
            "field, ignore_case, punctuation",
        ),
        ("reward: {math: {timeout: 0}}", "timeout", "timeout cannot be 0", "a number above 0"),
    ],
)
def test_a_wrong_option_is_pointed_at_with_what_may_be_written(
    tmp_path: Path, role: str, at: str, message: str, expected: str
) -> None:
    if "math" in role:
        pytest.importorskip("math_verify")
    ((where, said, wanted),) = faults_of(tmp_path, role)
    assert (where, wanted) == (at, expected)
    assert message in said


@pytest.mark.parametrize(
    ("term", "at", "message", "expected"),
    [
        ("{reward: countdwn}", "countdwn", "unknown reward 'countdwn'", "close_to, countdown, env, "),
        ("{reward: {f1: {feld: x}}}", "feld", "reward 'f1' has no option 'feld'", "field"),
        ("{reward: {f1: {field: 5}}}", "field", "reward 'f1': field cannot be 5", "text"),
        ("{reward: {json_field: a, feild: x}}", "feild", "'json_field' has no option", "field, value"),
        ("{reward: {json_field: a}}", "json_field", "give one", ""),
        ("{reward: {json_field: 5, value: 1}}", "json_field", "its value cannot be 5", "text"),
        ("{reward: [f1]}", "reward", "right.reward: expected a name, or a mapping", ""),
        ("{reward: countdown, wieght: 2}", "wieght", "no option 'right.wieght'", "{reward, weight}"),
        ("{reward: countdown, weight: big}", "weight", "right.weight cannot be 'big'", "a number"),
        ("{reward: countdown, weight: .inf}", "weight", "right.weight cannot be inf", "a finite number"),
        ("[5]", "right", "right cannot be", "{reward, weight}"),
        ("{}", "right", "needs right.reward", "{reward, weight}"),
        ("{weight: 2}", "right", "needs right.reward", "{reward, weight}"),
        ("countdwn", "countdwn", "unknown reward 'countdwn'", "close_to, countdown, env, "),
        ("{f2: {field: x}}", "f2", "unknown reward 'f2'", "close_to, countdown, env, "),
        ("{f1: {feld: x}}", "feld", "reward 'f1' has no option 'feld'", "field"),
        ("{json_field: a, feild: x}", "feild", "'json_field' has no option", "field, value"),
        ("{json_field: a}", "json_field", "give one", ""),
        ("{sum: {deep: {f1: {feld: x}}}}", "feld", "no option 'feld'", "field"),
        ("{reward: {sum: {deep: {reward: {f1: {feld: x}}}}}}", "feld", "no option 'feld'", "field"),
    ],
)
def test_a_fault_in_a_term_of_a_weighted_reward_is_pointed_at_too(
    tmp_path: Path, term: str, at: str, message: str, expected: str
) -> None:
    ((where, said, wanted),) = faults_of(tmp_path, f"reward: {{sum: {{right: {term}}}}}")
    assert where == at
    assert message in said
    assert wanted.startswith(expected)


def test_all_terms_that_are_wrong_are_said_at_once(tmp_path: Path) -> None:
    terms = "{a: {reward: countdwn}, b: {reward: {f1: {feld: x}}}, c: {reward: countdown}}"
    found = faults_of(tmp_path, f"reward: {{sum: {terms}}}")
    assert [where for where, _, _ in found] == ["countdwn", "feld"]


@pytest.mark.parametrize("written", ["{tasks.jsonl: [sol]}", "{tasks.jsonl: sol}"])
def test_a_file_takes_no_value_but_options(tmp_path: Path, written: str) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    roles = "roles: {solver: {prompt: Hi}}"
    text = f"rolegraph: 2\nname: x\ndata: {{validation: {written}}}\n{roles}"
    (fault,) = check_file(write_spec(tmp_path, text)).diagnostics
    assert "takes no value of its own, only options" in fault.message
    assert (fault.expected, fault.place.line) == ("hidden", 3)


@pytest.mark.parametrize(
    ("role", "hint"),
    [
        ("parser: {tag: a, keep_tga: true}", "did you mean 'keep_tag'?"),
        ("parser: {text: {option: 5}}", ""),
        ("reward: {sum: {right: {reward: countdown, wieght: 2}}}", "did you mean 'weight'?"),
        ("reward: {sum: {right: {rewrd: countdown}}}", "did you mean 'reward'?"),
        ("reward: {sum: {right: countdwn}}", "did you mean 'countdown'?"),
        ("reward: {sum: {right: rewrd}}", OWN_NAME),
    ],
)
def test_only_what_may_be_written_is_meant(tmp_path: Path, role: str, hint: str) -> None:
    text = f"{HEAD}  solver: {{prompt: Hi, {role}}}"
    (fault,) = check_file(write_spec(tmp_path, text)).diagnostics
    assert fault.hint == hint


def test_an_option_of_a_file_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    roles = "roles: {solver: {prompt: Hi}}"
    text = f"rolegraph: 2\nname: x\ndata: {{validation: {{tasks.jsonl: {{hiden: [q]}}}}}}\n{roles}"
    (fault,) = check_file(write_spec(tmp_path, text)).diagnostics
    assert (pointed_at(fault), fault.hint) == ("hiden", "did you mean 'hidden'?")
