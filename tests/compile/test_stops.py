"""Tests of the warnings of a `stop` that cuts away what a role's parser needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from rolegraph.engine.spec import Diagnostic
from tests.edge import decided, write_spec

TAG = {"tag": "answer"}


def warnings(folder: Path, parser: object, *stop: str, **spec: Any) -> list[Diagnostic]:
    (folder / "rows.jsonl").write_text(json.dumps({"question": "?"}), encoding="utf-8")
    solver = {"prompt": "{{ task.question }} <answer> <a> \\boxed", "parser": parser}
    whole = {
        "rolegraph": 2,
        "name": "x",
        "data": {"validation": "rows.jsonl"},
        "sampling": {"stop": [*stop]},
        "roles": {"solver": {**solver}},
        **spec,
    }
    checked = check_file(write_spec(folder, yaml.safe_dump(decided(whole), sort_keys=False)))
    assert checked.plan is not None
    assert {it.severity for it in checked.diagnostics} <= {"warning"}
    return [it for it in checked.diagnostics if "its parser needs" in it.message]


@pytest.mark.parametrize(
    ("parser", "stop"),
    [
        (TAG, "</answer>"),
        (TAG, "</"),
        (TAG, ">"),
        (TAG, "</answer>\n"),
        (TAG, "\n</ans"),
        (TAG, "<answer>"),
        ({"tag": "answer", "as": "number"}, "</answer>"),
        ({"regex": "<a>(.*)</a>"}, "</a>"),
        ("json", "}"),
        ({"fence": "any"}, "```"),
        ("boxed", "}"),
    ],
    ids=str,
)
def test_a_stop_that_cuts_what_the_parser_needs_is_warned_of_at_its_place(
    parser: object, stop: str, tmp_path: Path
) -> None:
    (warning,) = warnings(tmp_path, parser, stop)
    lines = (tmp_path / "spec.yaml").read_text().splitlines()
    assert lines[warning.place.line - 1].strip().startswith("-")
    assert repr(stop) in warning.message


@pytest.mark.parametrize(
    ("parser", "stop"),
    [(TAG, "\n\n"), (TAG, "Question:"), (TAG, "</ANSWER>"), ("text", "</answer>"), ("number", "</answer>")],
    ids=str,
)
def test_a_stop_that_cuts_nothing_the_parser_needs_is_no_fault(
    parser: object, stop: str, tmp_path: Path
) -> None:
    assert warnings(tmp_path, parser, stop) == []


def test_the_sampling_of_the_role_or_its_policy_is_the_one_that_counts(tmp_path: Path) -> None:
    own = {
        "prompt": "<answer>",
        "parser": TAG,
        "sampling": {"stop": ["</answer>"]},
    }
    (warning,) = warnings(tmp_path, TAG, "Question:", roles={"solver": own})
    assert "solver" in warning.message
    own["sampling"] = {"stop": ["Question:"]}
    assert warnings(tmp_path, TAG, "</answer>", roles={"solver": own}) == []
