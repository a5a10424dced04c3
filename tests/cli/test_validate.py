"""Tests of `rolegraph validate` on files that are not specs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.models.test_rates import make_folder


def test_whose_weights_an_untrained_role_has_is_said(rolegraph: Command) -> None:
    frozen = ("policies={past: {of: main}}", "roles.judge.policy=past", "roles.judge.estimator=null")
    done = rolegraph("validate", "solver_judge", *frozen)
    assert "not trained: judge: past selves of main\n" in done.stdout, done.stderr
    assert "\ntrained: solver (grpo, policy main)\n" in done.stdout
    whole = rolegraph("validate", "solver_judge", "roles.judge.signal={reverse_kl: {teacher: base}}").stdout
    line = "trained: solver (grpo, policy main), judge (reinforce + reverse_kl, policy main)"
    assert line in whole.splitlines() and "not trained" not in whole


def test_the_tests_of_a_spec_are_checked_as_what_they_are(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.test.yaml").write_text("tasks: 8\nexpect:\n  figures: {correct: 0.5}\n")
    done = rolegraph("validate", "mine.test.yaml")
    assert (done.returncode, done.stdout) == (0, "mine.test.yaml: valid (tests of a spec)\n"), done.stderr
    (tmp_path / "mine.test.yaml").write_text("tsks: 8\n")
    done = rolegraph("validate", "mine.test.yaml")
    assert done.returncode == 2
    assert "mine.test.yaml:1:1" in done.stderr and "did you mean 'tasks'?" in done.stderr


def test_validate_and_preview_show_the_rate_and_its_origin(rolegraph: Command, tmp_path: Path) -> None:
    model = make_folder(tmp_path / "smol", 4 * 135_000_000)
    words = ("policies.judge.learning_rate=0.003", f"model=local:{model}")
    done = rolegraph("validate", "two_policies", *words, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["specs"]
    assert row["learning_rates"] == {"solver": 0.00017, "judge": 0.003}
    (warning,) = row["diagnostics"]
    assert (warning["severity"], warning["place"]["text"]) == ("warning", words[0])
    assert "by the size of smol, 135 million parameters" in done.stderr
    assert "0.002 (by the size of rolegraph-base" in rolegraph("preview", "solver_judge").stdout
