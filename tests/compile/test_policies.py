"""Tests of the policies of instances and their training settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.spec import Lora, ModelRef
from tests.edge import write_spec

SPEC = """
rolegraph: 2
name: flow
data: {train: countdown}
sampling: {max_tokens: 64}
train: {learning_rate: 0.002, lora: {mlp: false}, rollouts: 4}
policies:
  coder: {lora: {rank: 16}, learning_rate: 0.001}
  hosted: {model: tinker:big, checkpoint: "tinker://run/weights/x"}
  warm: {sampling: {temperature: 1.5}}
roles:
  planner: {prompt: x, reward: countdown, estimator: grpo}
  coder: {prompt: x, reward: countdown, estimator: grpo, policy: coder, count: 2}
  rival: {prompt: x, policy: coder}
  judge: {prompt: x}
  layer: {prompt: x, count: 3, policy: [hosted, warm, coder]}
episode: {correct: all(coder.right)}
"""


def plan(folder: Path, text: str = SPEC, *overrides: str) -> Plan:
    return check_file(write_spec(folder, text), overrides).valid()


def endpoints(plan: Plan, role: str) -> list[tuple[str | None, str | None]]:
    """Return the model's name and the policy in training of each instance."""
    (found,) = (it for it in plan.roles if it.name == role)
    return [(plan.endpoints[e].model.name, plan.endpoints[e].policy) for e in found.endpoints]


def test_a_role_has_main_its_policy_its_policy_s_latest_weights_or_a_model_as_it_is(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert endpoints(found, "planner") == [(None, "main")]
    assert endpoints(found, "coder") == [(None, "coder")] * 2
    assert endpoints(found, "rival") == [(None, "coder")]
    assert endpoints(found, "judge") == [(None, None)]
    assert endpoints(found, "layer") == [("big", None), (None, None), (None, "coder")]
    assert [found.policy_of("layer", index) for index in (1, 2, 3)] == ["main", "main", "coder"]


def test_only_what_a_trainable_role_has_is_trained_and_what_it_leaves_out_is_the_spec_s(
    tmp_path: Path,
) -> None:
    policies = plan(tmp_path).policies
    assert list(policies) == ["main", "coder"]
    assert policies["main"] == (ModelRef(), Lora(mlp=False), 0.002)
    assert policies["coder"] == (ModelRef(), Lora(rank=16, mlp=False), 0.001)
    assert [s.temperature for s in plan(tmp_path).roles[-1].samplings] == [1.0, 1.5, 1.0]
    assert {s.max_tokens for role in plan(tmp_path).roles for s in role.samplings} == {64}


def test_main_under_policies_sets_what_main_is_trained_with(tmp_path: Path) -> None:
    found = plan(
        tmp_path, SPEC.replace("  warm:", "  main: {learning_rate: 0.1, checkpoint: runs/x}\n  warm:")
    )
    assert found.policies["main"] == (ModelRef(checkpoint="runs/x"), Lora(mlp=False), 0.1)


def test_a_policy_that_nobody_has_is_warned_of(tmp_path: Path) -> None:
    (warning,) = check_file(
        write_spec(tmp_path, SPEC.replace("hosted, warm, coder", "warm, warm, coder"))
    ).diagnostics
    assert (warning.severity, warning.message) == ("warning", "no role has the policy hosted")
    assert warning.hint == "give a role `policy: hosted`, or remove it"


def test_a_group_is_of_one_policy_so_instances_of_their_own_policies_are_alone(tmp_path: Path) -> None:
    text = SPEC.replace("policy: coder, count: 2", "policy: [coder, main], count: 2")
    assert check_file(write_spec(tmp_path, text)).diagnostics == ()
    (fault,) = check_file(write_spec(tmp_path, text.replace("rollouts: 4", "rollouts: 1"))).diagnostics[-1:]
    assert "coder's group has 1" in fault.message


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("policy: coder, count: 2", "policy: served, count: 2", "a model of openai cannot be trained", ""),
        (
            "estimator: grpo}",
            "estimator: grpo, model: tinker:x}",
            "planner has a model of its own",
            "policies: {planner: {model: …}}",
        ),
        (
            "warm: {sampling: {temperature: 1.5}}",
            "warm: {sampling: {temperature: 1.5}}\n  main: {sampling: {temperature: 0.5}}",
            "planner samples with temperature 0.5",
            "",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_at_its_policy(
    old: str, new: str, message: str, hint: str, tmp_path: Path
) -> None:
    text = SPEC.replace(old, new, 1).replace("policies:", "policies:\n  served: {model: openai:x}", 1)
    found = check_file(write_spec(tmp_path, text), (), training_findings).diagnostics
    (fault,) = [diagnostic for diagnostic in found if diagnostic.severity == "error"]
    assert message in fault.message
    assert hint in fault.hint


PAST = SPEC.replace("  warm:", "  past: {of: coder, every: 3, keep: 2}\n  warm:")
SELVES = PAST.replace("count: 3, policy: [hosted, warm, coder]", "count: 2, policy: [past, coder]")


def test_past_selves_begin_at_the_start_of_their_policy(tmp_path: Path) -> None:
    found = plan(tmp_path, SELVES.replace("coder: {lora", "coder: {model: tinker:big, lora"))
    assert found.past == {"past": ("coder", 3, 2, "uniform")}
    assert endpoints(found, "layer") == [("big", None), ("big", "coder")]
    assert list(found.policies) == ["main", "coder"]
    assert [found.untrained_weights(role) for role in found.roles] == [
        "",
        "",
        "the latest of coder",
        "local as it is",
        "past selves of coder and the latest of coder",
    ]


def test_an_instance_that_is_a_past_self_is_in_no_group(tmp_path: Path) -> None:
    mixed = PAST.replace("policy: coder, count: 2", "policy: [coder, past], count: 2")
    found = plan(tmp_path, mixed)
    (coder,) = (role for role in found.roles if role.name == "coder")
    assert coder.frozen == {2} and found.untrained_weights(coder) == "past selves of coder"
    found = check_file(write_spec(tmp_path, mixed.replace("rollouts: 4", "rollouts: 1")))
    assert any("coder's group has 1" in diagnostic.message for diagnostic in found.diagnostics)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("of: coder", "of: codr", "no policy to copy 'codr'"),
        ("of: coder", "of: past", "no policy to copy 'past'"),
        ("of: coder", "of: warm", "past selves of warm, which no role trains"),
        ("of: coder, every: 3", "of: coder, every: 0", "every cannot be 0"),
        ("of: coder", "of: coder, model: tinker:x", "past has the weights of coder"),
        ("of: coder", "of: coder, lora: {rank: 4}", "past has the weights of coder"),
        (
            "of: coder, every: 3, keep: 2",
            "keep: 2",
            "`keep` applies only to policies of past selves; past is a trained policy",
        ),
        ("policy: coder, count: 2", "policy: past, count: 2", "coder is trained, and past selves"),
    ],
)
def test_what_past_selves_cannot_be_is_a_fault(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = SELVES.replace(old, new, 1)
    assert any(message in fault.message for fault in check_file(write_spec(tmp_path, text)).diagnostics)


def test_policies_merge_by_key_and_a_role_s_list_is_replaced(tmp_path: Path) -> None:
    write_spec(tmp_path, SPEC, "base.yaml")
    text = "extends: base.yaml\npolicies: {coder: {learning_rate: 0.5}}\nroles: {layer: {policy: warm}}\n"
    found = plan(tmp_path, text, "policies.coder.lora.attention=false")
    assert found.policies["coder"] == (ModelRef(), Lora(rank=16, mlp=False, attention=False), 0.5)
    assert endpoints(found, "layer") == [(None, None)] * 3


ASKED = """
rolegraph: 2
name: flow
data: {train: countdown}
model: {provider: PROVIDER, name: x, checkpoint: runs/x}
roles:
  one: {prompt: x, reward: countdown, estimator: grpo}
  two: {prompt: x, reward: countdown, estimator: grpo}
episode: {correct: two.right}
"""


@pytest.mark.parametrize(
    ("provider", "override", "place"),
    [
        ("openai", "", "provider"),
        ("vllm", "", "provider"),
        ("local", "roles.two.model=local:rolegraph-teacher", "roles.two.model"),
        ("local", "policies={main: {checkpoint: runs/y}}", "model.checkpoint"),
    ],
)
def test_a_checkpoint_that_is_not_asked_is_a_fault(
    tmp_path: Path, provider: str, override: str, place: str
) -> None:
    path = write_spec(tmp_path, ASKED.replace("PROVIDER", provider))
    faults = check_file(path, [override] if override else []).diagnostics
    assert [it.severity for it in faults] == ["error"]
    assert ("checkpoint" if place == "provider" else "weights runs/x") in faults[0].message


@pytest.mark.parametrize("provider", ["local", "tinker", "replay"])
def test_a_checkpoint_that_is_asked_or_replayed_is_no_fault(tmp_path: Path, provider: str) -> None:
    path = write_spec(tmp_path, ASKED.replace("PROVIDER", provider).replace("name: x, ", ""))
    assert not check_file(path).diagnostics


def test_a_checkpoint_is_beside_the_spec_and_one_of_the_command_line_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs" / "runs" / "x").mkdir(parents=True)
    text = SPEC.replace("  warm:", "  main: {checkpoint: runs/x}\n  warm:")

    def weights(*overrides: str) -> str | None:
        return plan(tmp_path / "specs", text, *overrides).policies["main"].model.checkpoint

    assert weights() == "specs/runs/x"
    assert weights("policies.main.checkpoint=runs/x") == "runs/x"
    assert weights("policies.main.checkpoint=null", "model={checkpoint: runs/x}") == "runs/x"
