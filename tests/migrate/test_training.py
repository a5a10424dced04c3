"""Tests of the rewrites of training: who is trained, and when a training stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from rolegraph.migrate.files import migrate_yaml
from rolegraph.migrate.rewrites import REWRITES

HEAD = "rolegraph: 1\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "roles: {a: {trainable: false, estimator: grpo, prompt: a.j2}}",
            "roles: {a: {prompt: a.j2}}",
        ),
        (
            "roles:\n  a:\n    prompt: a\n    estimator: grpo\n    trainable: false  # alone\n    count: 2\n",
            "roles:\n  a:\n    prompt: a\n    # alone\n    count: 2\n",
        ),
        (
            "roles: {a: {prompt: a.j2, signal: imitation, trainable: false, estimator: precomputed}}",
            "roles: {a: {prompt: a.j2}}",
        ),
        (
            "roles: {a: {prompt: a.j2, trainable: true, estimator: grpo}}",
            "roles: {a: {prompt: a.j2, estimator: grpo}}",
        ),
        (
            "roles: {a: {estimator: precomputed, signal: imitation}}",
            "roles: {a: {signal: imitation}}",
        ),
        (
            "extends: b.yaml\nroles:\n  a:\n    trainable: false\n    estimator: grpo\n",
            "extends: b.yaml\nroles:\n  a:\n    estimator: null\n    signal: null\n",
        ),
        (
            "extends: b.yaml\nroles: {a: {estimator: precomputed}}",
            "extends: b.yaml\nroles: {a: {estimator: null}}",
        ),
        (
            "x-g: &g {estimator: grpo}\nroles: {a: {<<: *g, trainable: false}, b: {<<: *g}}",
            "x-g: &g {estimator: grpo}\nroles: {a: {<<: *g, estimator: null}, b: {<<: *g}}",
        ),
        (
            "x-f: &f {trainable: false}\nroles: {a: {<<: *f, prompt: a.j2, estimator: grpo}}",
            "x-f: &f {estimator: null}\nroles: {a: {<<: *f, prompt: a.j2}}",
        ),
        ("train: {stop: {patience: 3, figure: correct}}", "train: {stop: 3}"),
        ("train:\n  stop:\n    patience: 3  # few\n", "train:\n  stop: 3  # few\n"),
        (
            "train: {stop: {figure: a}, validation: {best: a}}",
            "train: {stop: 5, validation: {best: a}}",
        ),
    ],
)
def test_a_role_keeps_its_weights_and_a_stop_its_number(before: str, after: str) -> None:
    changed, problems = migrate_yaml(HEAD + before, REWRITES)
    assert not problems
    assert changed == "rolegraph: 2\n" + after


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("extends: b.yaml\nroles:\n  a: {trainable: true}\n", 4, "its estimator here"),
        (
            "x-f: &f {trainable: false, parser: text}\nroles:\n  a: {<<: *f, trainable: true}\n",
            4,
            "its estimator here",
        ),
        (
            "x-f: &f {trainable: false, parser: text}\nx-g: &g {estimator: grpo}\nroles:\n"
            "  a: {<<: [*f, *g], prompt: a.j2}\n",
            5,
            "estimator: null",
        ),
        (
            "roles:\n  a: {trainable: false, estimator: &e grpo}\n  b: {estimator: *e}\n",
            3,
            "anchor",
        ),
        ("train:\n  stop: {figure: rounds, patience: 2}\n", 3, "validation.best"),
        ("extends: b.yaml\ntrain:\n  stop: {figure: correct}\n", 4, "validation.best"),
    ],
)
def test_what_other_places_decide_is_named_with_its_line(text: str, line: int, word: str) -> None:
    _, problems = migrate_yaml(HEAD + text, REWRITES)
    assert [at for at, message in problems if word in message] == [line]


def test_a_role_that_was_frozen_over_a_shipped_spec_stays_frozen(tmp_path: Path) -> None:
    before = "rolegraph: 1\nextends: solver_judge.yaml\nname: x\nroles: {judge: {trainable: false}}\n"
    after, _ = migrate_yaml(before, REWRITES)
    (tmp_path / "x.yaml").write_text(after)
    assert [*check_file(tmp_path / "x.yaml").valid().trained] == ["solver"]
