"""Tests of the order of settings (spec, policy, role, command line), and of overrides that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.spec import Lora
from tests.edge import write_spec

SPEC = """
rolegraph: 2
name: flow
data: {train: countdown}
sampling: {max_tokens: 64, top_p: 0.9}
train: {steps: 4, lora: {rank: 8}}
policies:
  coder: {lora: {rank: 16}, learning_rate: 0.001, sampling: {top_p: 0.8, temperature: 0.5}}
  other: {model: "openai:other"}
  idle: {sampling: {temperature: 0.1}}
  warm: {checkpoint: "tinker://run/weights/x", model: "tinker:big"}
roles:
  planner: {prompt: x, reward: countdown, estimator: grpo, policy: coder, sampling: {temperature: 0.7}}
  judge: {prompt: x, model: "openai:judge", sampling: {temperature: 0.2}}
  rival: {prompt: x, policy: other, sampling: {temperature: 0.3}}
episode: {correct: planner.right}
"""
STAGED = "train: {steps: 4, stages: [{imitation: best, steps: 4, learning_rate: 0.01, rollouts: 4}]}"


def plan(folder: Path, *overrides: str, text: str = SPEC) -> Plan:
    return check_file(write_spec(folder, text), overrides).valid()


def samplings(plan: Plan) -> dict[str, tuple[float, float, int]]:
    drawn = {role.name: role.samplings[0] for role in plan.roles}
    return {name: (it.temperature, it.top_p, it.max_tokens) for name, it in drawn.items()}


def test_settings_are_merged_key_by_key_and_the_command_line_is_last(tmp_path: Path) -> None:
    assert samplings(plan(tmp_path)) == {
        "planner": (0.7, 0.8, 64),
        "judge": (0.2, 0.9, 64),
        "rival": (0.3, 0.9, 64),
    }
    greedy = plan(tmp_path, "sampling.temperature=0")
    assert [it[0] for it in samplings(greedy).values()] == [0, 0, 0]
    own = samplings(plan(tmp_path, "roles.judge.sampling.temperature=0.4", "sampling={temperature: 0}"))
    assert own == {"planner": (0, 0.8, 1024), "judge": (0.4, 1.0, 1024), "rival": (0, 1.0, 1024)}
    assert plan(tmp_path).policies["coder"].lora == Lora(rank=16)
    assert plan(tmp_path, "train.lora.rank=4").policies["coder"].lora == Lora(rank=4)


def test_a_model_that_names_no_other_is_the_spec_s_with_other_keys(tmp_path: Path) -> None:
    found = plan(tmp_path, "model=openai:big", "roles.judge.model={concurrency: 2}")
    model = found.endpoints[found.roles[1].endpoints[0]].model
    assert (model.provider, model.name, model.concurrency) == ("openai", "big", 2)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("model=local:x", "read instead: policies.coder.model, policies.other.model, roles.judge.model"),
        ("policies.coder.sampling.temperature=0", "read instead: roles.judge.sampling.temperature"),
        ("policies.idle.sampling.temperature=0", "read instead: roles.judge.sampling.temperature"),
        ("policies.idle.model=local", "read instead: "),
        ("policies.other.lora.rank=2", "read instead: policies.coder.lora.rank"),
        ("train.learning_rate=0.1", "read instead: policies.coder.learning_rate"),
    ],
)
def test_an_override_that_nothing_reads_is_a_fault(tmp_path: Path, override: str, hint: str) -> None:
    file = write_spec(tmp_path, SPEC.replace("learning_rate: 0.001,", "learning_rate: 0.001, model: local,"))
    key = override.partition("=")[0]
    (fault,) = (it for it in check_file(file, [override]).diagnostics if it.severity == "error")
    assert fault.message == f"nothing reads {key}: it would change nothing"
    assert (str(fault.hint).startswith(hint), fault.place.text, fault.code) == (True, override, "override")


@pytest.mark.parametrize("key", ["learning_rate=0.1", "rollouts=8"])
def test_an_override_of_a_key_that_each_stage_sets_is_a_fault(tmp_path: Path, key: str) -> None:
    text = SPEC.replace("train: {steps: 4, lora: {rank: 8}}", STAGED).replace("learning_rate: 0.001,", "")
    (fault,) = (
        it
        for it in check_file(write_spec(tmp_path, text), [f"train.{key}"]).diagnostics
        if it.severity == "error"
    )
    assert fault.hint == f"read instead: train.stages.{key.partition('=')[0]}"


def test_rows_that_no_validation_reads_are_warned_of(tmp_path: Path) -> None:
    text = SPEC + "\n" + "x-none: 1"
    write_spec(tmp_path, SPEC.replace("name: flow", "name: held"), "held.yaml")
    found = check_file(
        write_spec(tmp_path, text.replace("steps: 4", "steps: 4, validation: {workflow: held.yaml}")),
        ["data.validation=countdown"],
    )
    assert any("`train.validation.workflow`, not on these" in it.message for it in found.diagnostics)
