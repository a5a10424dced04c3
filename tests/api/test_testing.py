"""Tests of `rg.test` and `rg.record`: verdicts on recorded answers, and their messages."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import rolegraph as rg
from rolegraph import api
from tests import replays

SPEC = "extends: solver_judge.yaml\nname: mine\n"
FIRST = "countdown-validation-0"


def recorded(folder: Path, tests: str = "tasks: 3\n", says: replays.Says | None = None) -> Path:
    """Write a spec, record its answers on three tasks, write its tests file, and return the spec's path."""
    spec = folder / "mine.yaml"
    spec.write_text(SPEC)
    (folder / "mine.test.yaml").write_text("tasks: 3\n")
    answers = replays.answers(folder / "model.jsonl", says or replays.solved(0, 2), tasks=3)
    rg.record(rg.load(spec, model=f"replay:{answers}"))
    (folder / "mine.test.yaml").write_text(tests)
    return spec


def verdicts(spec: Path, *overrides: str) -> dict[str, api.Verdict]:
    return {verdict.name: verdict for verdict in rg.test(rg.load(spec, *overrides)).verdicts}


def test_a_recording_without_tests_writes_tests_that_hold(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text(SPEC)
    answers = replays.answers(tmp_path / "model.jsonl", replays.solved(0, 2), tasks=8)
    written = rg.record(rg.load(spec, model=f"replay:{answers}"))
    assert [path.name for path in written] == ["mine.answers.jsonl", "mine.test.yaml"]
    assert "correct: 0.25" in written[1].read_text()
    assert len(written[0].read_text().splitlines()) == 8
    tested = rg.test(rg.load(spec))
    assert tested.failed == []
    assert {"figure correct", "figure reward/solver", "prompts of judge", "failures"} <= {
        verdict.name for verdict in tested.verdicts
    }
    again = rg.record(rg.load(spec, model=f"replay:{answers}"))
    assert [path.name for path in again] == ["mine.answers.jsonl"]


def test_figures_failures_tokens_and_tasks_are_held_against_what_is_expected(tmp_path: Path) -> None:
    spec = recorded(
        tmp_path,
        f"""
expect:
  figures: {{correct: {{at_least: 0.5}}, judge_acc: 0.5, reward/solver: {{at_most: 0.1}}}}
  failures: {{judge: 0, solver/malformed_output: 0}}
  tokens: {{answers: 80, prompts: 8}}
  tasks:
    {FIRST}:
      correct: true
      action: {{solver 1: "<answer>6*1</answer>", judge: {{contains: "7"}}}}
      reward: {{judge: 1, solver: 1}}
""",
    )
    found = verdicts(spec)
    assert {name: verdict.holds for name, verdict in found.items()} == {
        "answers on record": True,
        "prompts of solver": True,
        "prompts of judge": True,
        "figure correct": True,
        "figure judge_acc": False,
        "figure reward/solver": False,
        "failures of judge": True,
        "failures of solver/malformed_output": True,
        "tokens of prompts": False,
        "tokens of answers": True,
        f"{FIRST}: correct": True,
        f"{FIRST}: action of solver 1": True,
        f"{FIRST}: action of judge": False,
        f"{FIRST}: reward of judge": True,
        f"{FIRST}: reward of solver": False,
    }
    assert found["figure judge_acc"].summary == "0.667 (n 3 tasks), expected exactly 0.5"
    assert found["tokens of prompts"].summary.startswith("9 in countdown-validation-")
    assert found[f"{FIRST}: reward of solver"].summary == "0.0 in rollout 0, expected exactly 1"
    assert "'<answer>6*1</answer>'" in found[f"{FIRST}: action of judge"].summary


def test_a_changed_prompt_is_shown_as_a_diff_of_that_role_alone(tmp_path: Path) -> None:
    spec = recorded(tmp_path)
    prompt = "roles.judge.prompt='{{ task.question }}\n{% for s in solver %}{{ s.action }}{% endfor %}'"
    found = verdicts(spec, prompt)
    assert found["prompts of solver"].holds
    assert found["answers on record"].holds
    changed = found["prompts of judge"]
    assert (changed.holds, changed.summary) == (False, "3 of 3 changed")
    assert changed.detail.startswith(f"task '{FIRST}', rollout 0, judge 1\n--- recorded\n+++ now\n")
    assert "-Proposed solutions:" in changed.detail
    assert "<answer>6*1</answer><answer>1</answer>" in changed.detail
    (tmp_path / "mine.test.yaml").write_text("prompts: any\n")
    assert "prompts of judge" not in verdicts(spec, prompt)


def test_what_was_never_answered_asks_to_be_recorded_again(tmp_path: Path) -> None:
    spec = recorded(tmp_path)
    found = verdicts(spec, "roles.solver.count=3")["answers on record"]
    assert not found.holds
    assert "--record" in found.summary
    assert "solver 3" in found.detail


def test_a_new_reward_or_parser_shows_in_the_figures(tmp_path: Path) -> None:
    spec = recorded(tmp_path, "expect: {figures: {reward/judge: {at_least: 0.6}}}\n")
    assert verdicts(spec)["figure reward/judge"].holds
    changed = "roles.judge.reward={length: {over: 999}}"
    assert not verdicts(spec, changed)["figure reward/judge"].holds


def test_no_model_is_asked_whatever_the_spec_names(tmp_path: Path) -> None:
    spec = recorded(tmp_path)
    nowhere = "{provider: openai, name: x, base_url: 'http://127.0.0.1:9/v1'}"
    tested = rg.test(rg.load(spec, f"roles.judge.model={nowhere}"))
    assert tested.failed == []


def test_unknown_names_are_faults_with_their_places(tmp_path: Path) -> None:
    spec = recorded(
        tmp_path,
        "expect:\n"
        "  figures: {juge_acc: 1}\n"
        "  failures: {solver/timeuot: 0, jugde: 0}\n"
        "  tasks: {countdown-validation-9: {action: {validator: 1}}}\n",
    )
    with pytest.raises(rg.SpecError) as found:
        rg.test(rg.load(spec))
    assert [(d.place.line, d.place.column, d.message) for d in found.value.diagnostics] == [
        (2, 13, "there is no figure 'juge_acc'"),
        (3, 14, "there is no failure 'timeuot'"),
        (3, 33, "there is no role 'jugde'"),
        (4, 11, "there is no recorded task 'countdown-validation-9'"),
        (4, 45, "there is no role 'validator'"),
    ]
    assert found.value.diagnostics[0].hint == "did you mean 'judge_acc'?"


def test_junit_says_what_forges_read(tmp_path: Path) -> None:
    spec = recorded(tmp_path, "expect: {figures: {correct: 0.25}, tokens: {answers: 999}}\n")
    file = tmp_path / "junit.xml"
    rg.test(rg.load(spec, 'roles.judge.prompt="no \\x0b more"'), junit=file)
    root = ElementTree.parse(file).getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    assert (suite.attrib["name"], suite.attrib["tests"], suite.attrib["failures"]) == ("mine", "5", "2")
    cases = {case.attrib["name"]: case.find("failure") for case in suite}
    assert cases["tokens of answers"] is None
    failure = cases["figure correct"]
    assert failure is not None and failure.attrib["message"] == "0.667 (n 3 tasks), expected exactly 0.25"
    prompt = cases["prompts of judge"]
    assert prompt is not None and "+no" in (prompt.text or "")


def test_a_run_s_folder_can_be_the_recording_and_is_not_recorded_into(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text(SPEC)
    answers = replays.answers(tmp_path / "model.jsonl", replays.solved(1), tasks=2)
    rg.run(rg.load(spec, model=f"replay:{answers}"), limit=2, out=tmp_path / "run")
    (tmp_path / "mine.test.yaml").write_text("answers: run\nexpect: {figures: {correct: 0.5}}\n")
    assert rg.test(rg.load(spec)).failed == []
    with pytest.raises(rg.UsageError, match="is a run's folder"):
        rg.record(rg.load(spec, model=f"replay:{answers}"))


def test_without_tests_or_answers_it_says_how_to_get_them(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text(SPEC)
    with pytest.raises(rg.UsageError, match=r"no tests file .*mine\.test\.yaml; create it with"):
        rg.test(rg.load(spec))
    (tmp_path / "mine.test.yaml").write_text("tasks: 1\n")
    with pytest.raises(rg.UsageError, match=r"no recorded answers in .*mine\.answers\.jsonl"):
        rg.test(rg.load(spec))
