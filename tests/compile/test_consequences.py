"""Tests of findings that follow from another, which are left out until that one is fixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from tests.edge import write_spec

HEAD = "rolegraph: 2\nname: flow\ndata: {train: rows.jsonl}\n"
PLAIN = "parser: text"
ROLE = "parser: text, reward: exact_match, estimator: grpo"


def found(folder: Path, text: str) -> list[tuple[str, str]]:
    """Return severity and message of each diagnostic of a spec."""
    (folder / "rows.jsonl").write_text(json.dumps({"question": "1?", "answer": "1"}))
    return [(it.severity, it.message) for it in check_file(write_spec(folder, HEAD + text)).diagnostics]


@pytest.mark.parametrize(
    ("text", "cause", "consequence"),
    [
        (
            f"roles: {{a: {{prompt: go, {ROLE}}}}}\nepisode: {{correct: a.right}}",
            ("reward: exact_match", "reward: registered_elsewhere"),
            "can be correct",
        ),
        (
            f"roles: {{a: {{prompt: go, {ROLE}}}, "
            f"b: {{needs: a, prompt: '{{{{ a.action }}}}', sees: [answer], {PLAIN}}}}}",
            ("reward: exact_match", "reward: registered_elsewhere"),
            "is not hidden",
        ),
        (
            f"roles: {{a: {{prompt: go, {PLAIN}}}, "
            f"b: {{needs: a, prompt: '{{{{ a.action }}}}', {PLAIN}, policy: coder}}}}\n"
            "policies: {coder: {model: tinker:x}}",
            ("policy: coder", "policy: codr"),
            "no role has the policy",
        ),
    ],
)
def test_a_finding_that_follows_from_an_unknown_name_is_left_out(
    tmp_path: Path, text: str, cause: tuple[str, str], consequence: str
) -> None:
    assert not any(consequence in message for _, message in found(tmp_path, text))
    faulty = found(tmp_path, text.replace(*cause))
    assert [severity for severity, _ in faulty] == ["error"]
    assert consequence not in faulty[0][1]


@pytest.mark.parametrize(
    ("key", "misspelt"),
    [
        ("prompt:", "promt:"),
        ("reward:", "rewrad:"),
        ("estimator:", "estimatr:"),
        ("parser:", "praser:"),
        ("data:", "dta:"),
        ("rolegraph:", "rolgraph:"),
    ],
)
def test_a_misspelt_key_is_not_said_to_be_missing_as_well(tmp_path: Path, key: str, misspelt: str) -> None:
    text = f"roles: {{a: {{prompt: '{{{{ task.question }}}}', {ROLE}}}}}"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1?", "answer": "1"}))
    faulty = check_file(write_spec(tmp_path, (HEAD + text).replace(key, misspelt))).diagnostics
    assert [it.message for it in faulty] == [f"unknown key {misspelt.removesuffix(':')!r}"]


FLOW = """\
roles:
  solver: {prompt: go, parser: text, reward: number(judge.action), estimator: grpo}
  judge:
    needs: [solver]
    prompt: "{{ solver.action }} {{ self.round }}"
    when: solver.index > 0
    parser: number
  voter: {needs: {other: {of: solver}}, prompt: "{{ other.action }}", parser: text, policy: coder,
    reward: exact_match, estimator: grpo}
loops: {l: {roles: [judge], times: 2}}
policies: {coder: {model: tinker:x}}
episode: {metrics: {acc: voter.right}}
"""


@pytest.mark.parametrize(
    ("key", "misspelt"),
    [
        ("needs: [", "neds: ["),
        ("needs: {other", "neds: {other"),
        ("needs: [solver", "needs: [solvr"),
        ("roles:\n", "rols:\n"),
        ("loops:", "lops:"),
        ("policies:", "polices:"),
    ],
)
def test_names_that_a_misspelt_key_would_have_given_are_no_faults(
    tmp_path: Path, key: str, misspelt: str
) -> None:
    assert not found(tmp_path, FLOW)
    faulty = found(tmp_path, FLOW.replace(key, misspelt))
    assert [severity for severity, _ in faulty] == ["error"], faulty
    assert "unknown key" in faulty[0][1] or "no role 'solvr'" in faulty[0][1]


def test_another_misspelt_name_beside_a_misspelt_needs_stays(tmp_path: Path) -> None:
    text = FLOW.replace("needs: [", "neds: [").replace("self.round", "tsk.question")
    assert len(found(tmp_path, text)) == 2


def test_an_edge_of_a_cycle_has_no_warning_and_another_edge_has_one(tmp_path: Path) -> None:
    text = (
        f"roles:\n  a: {{needs: c, prompt: go, {PLAIN}}}\n"
        f"  b: {{needs: a, prompt: go, {PLAIN}}}\n"
        f"  c: {{needs: b, prompt: go, {PLAIN}}}\n"
        f"  d: {{needs: a, prompt: go, {PLAIN}}}\n"
    )
    cycle, *others = found(tmp_path, text)
    assert cycle[0] == "error"
    assert others == [("warning", "d waits for a, but its prompt does not mention it")]


def test_a_warning_without_a_fault_before_it_stays(tmp_path: Path) -> None:
    text = (
        f"roles: {{a: {{prompt: go, {PLAIN}}}, "
        f"b: {{prompt: go, parser: text, reward: registered_elsewhere, estimator: grpo}}}}\n"
        "episode: {correct: a.right}"
    )
    assert {severity for severity, _ in found(tmp_path, text)} == {"warning", "error"}


@pytest.mark.parametrize(
    "expression",
    ["critic + planner", "critic * 2", "-critic", "planner > 1", "critic == 'good'", "critics[0] - 1"],
)
@pytest.mark.parametrize("key", ["when", "prompt"])
def test_roles_themselves_are_no_numbers_and_no_words(tmp_path: Path, expression: str, key: str) -> None:
    place = f'when: "{expression}", prompt: go'
    if key == "prompt":
        place = f'prompt: "{{% if {expression} %}}go{{% endif %}}"'
    text = (
        f"roles:\n  critic: {{prompt: go, {PLAIN}}}\n"
        f"  planner: {{prompt: go, {PLAIN}}}\n"
        f"  critics: {{prompt: go, {PLAIN}, count: 2}}\n"
        f"  last: {{needs: [critic, planner, critics], {place}, {PLAIN}}}\n"
    )
    faults = [message for severity, message in found(tmp_path, text) if severity == "error"]
    assert faults and all("instance of a role" in message for message in faults)
    sound = text.replace(expression, "critic.action == planner.action or (critics + critics) | length > 2")
    assert not any(severity == "error" for severity, _ in found(tmp_path, sound))


def test_a_word_that_a_map_leaves_out_is_warned_of(tmp_path: Path) -> None:
    text = (
        "roles:\n  a: {prompt: go, parser: text, reward: 'MAP[judge.action]', "
        "estimator: reinforce}\n"
        "  judge: {needs: a, prompt: 'Is {{ a.action }} good, bad or unsure?', "
        "parser: {one_of: [good, bad, unsure]}}\n"
    )
    (warning,) = found(tmp_path, text.replace("MAP", '{"good": 1, "bad": 0}'))
    assert warning[0] == "warning" and "may be unsure" in warning[1]
    assert not found(tmp_path, text.replace("MAP", '{"good": 1, "bad": 0, "unsure": 0.5}'))


def test_a_chat_named_after_a_role_with_its_own_chat_is_a_fault_with_both_readings(tmp_path: Path) -> None:
    text = (
        f"roles:\n  a: {{prompt: go, memory: MEMORY, {PLAIN}}}\n"
        f"  b: {{needs: a, prompt: '{{{{ a.action }}}}', memory: {{chat: a}}, {PLAIN}}}\n"
        "loops: {l: {roles: [a, b], times: 2}}"
    )
    ((severity, message),) = found(tmp_path, text.replace("MEMORY", "chat"))
    assert severity == "error" and "keeps the conversation a" in message
    assert not found(tmp_path, text.replace("MEMORY", "{chat: a}"))


def test_search_without_a_corpus_names_its_form_for_a_model(tmp_path: Path) -> None:
    text = f"roles: {{a: {{prompt: go, tools: search, max_calls: 2, {PLAIN}}}}}"
    ((severity, message),) = found(tmp_path, text)
    assert severity == "error" and "{search: null, corpus: FILE.jsonl}" in message


@pytest.mark.parametrize("key", ["loss: ppo", "group: turn", "weight: 0.5"])
def test_a_key_of_training_without_an_estimator_is_warned_of(key: str, tmp_path: Path) -> None:
    ((severity, message),) = found(tmp_path, f"roles: {{a: {{prompt: go, {PLAIN}, {key}}}}}")
    assert severity == "warning" and message == f"a is not trained, so its {key.split(':')[0]} has no effect"
