"""Overrides of rLLM's config and the map from role to estimator, without rLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from rolegraph.engine.compile.compiler import compile_file
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.errors import AdvantageError, UsageError
from rolegraph.engine.records import Source
from rolegraph.engine.vocabulary import Estimator
from rolegraph.integrations.rllm.checks import FlowRun
from rolegraph.integrations.rllm.compose import config_folder
from rolegraph.integrations.rllm.config import TABLE, Launch, as_hydra, overrides, split_overrides
from rolegraph.integrations.rllm.estimators import custom_estimators, estimator_map, hook_reasons
from rolegraph.integrations.rllm.keys import flow_findings
from rolegraph.integrations.rllm.launch import prepare
from rolegraph.integrations.rllm.names import BACKENDS, Backend
from rolegraph.integrations.rllm.registered import as_rllm
from tests.cli.conftest import Command
from tests.edge import solver_judge

HOSTED = "model=tinker:Qwen/Qwen3-8B"
GROUP = SimpleNamespace(task_id="t", trajectories=[], metadata=[])
"""Stand-in for rLLM's group with the attributes that a registered estimator reads."""


def keys(plan: Plan, backend: Backend, **run: Any) -> dict[str, Any]:
    return overrides(Launch(plan, backend, **{"rows": 2048, "steps": 30, **run}))


def test_every_backend_is_given_the_same_run_by_keys_of_its_own() -> None:
    plan = solver_judge(HOSTED, "train.rollouts=4", "train.learning_rate=0.003", "train.lora.rank=8")
    tinker, verl, fireworks = (keys(plan, backend) for backend in BACKENDS)
    assert tinker["training.group_size"] == fireworks["training.group_size"] == verl["rllm.rollout.n"] == 4
    assert tinker["training.learning_rate"] == verl["actor_rollout_ref.actor.optim.lr"] == 0.003
    assert tinker["model.lora_rank"] == verl["actor_rollout_ref.model.lora_rank"] == 8
    assert tinker["model.name"] == verl["actor_rollout_ref.model.path"] == "Qwen/Qwen3-8B"
    for found, backend in zip((tinker, verl, fireworks), BACKENDS, strict=True):
        assert found["rllm/backend"] == backend
        assert found["rllm.data.train_batch_size"] == 16
        assert found["rllm.trainer.total_batches"] == 30


def test_prompts_may_be_as_long_as_the_model_takes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 8192}}')
    words = [f"model=local:{tmp_path}", "++rollout_engine.renderer_name=llama3", "sampling.max_tokens=1000"]
    tinker = overrides(prepare(Source.of("solver_judge", *words), "tinker").run)
    assert (tinker["training.max_length"], tinker["rllm.data.max_prompt_length"]) == (8192, 8190)
    verl = overrides(prepare(Source.of("solver_judge", *words), "verl").run)
    assert verl["rllm.data.max_prompt_length"] == 7192
    shipped = overrides(prepare(Source.of("solver_judge"), "tinker").run)
    assert shipped["rllm.data.max_prompt_length"] == shipped["training.max_length"] - 2


def test_prompts_of_a_model_that_is_elsewhere_may_be_as_long_as_the_backend_s_own_config_says() -> None:
    plan = solver_judge(HOSTED)
    for backend in ("tinker", "fireworks"):
        assert keys(plan, backend)["rllm.data.max_prompt_length"] == 30720
    assert keys(plan, "tinker", context=131072)["rllm.data.max_prompt_length"] == 131070


def test_a_backend_of_one_s_own_is_given_the_keys_that_all_share(rolegraph: Command) -> None:
    prepared = prepare(Source.of("solver_judge", HOSTED, "train.rollouts=4"), "mine.backends:Mine")
    words = prepared.hydra_overrides()
    assert words[0] == "~rllm/backend"
    assert {"++model.name=Qwen/Qwen3-8B", "rllm.rollout.n=4", "rllm.data.train_batch_size=16"} <= set(words)
    for name in ("tinkr", "mine/backends:Mine"):
        with pytest.raises(UsageError, match="is not a backend"):
            prepare(Source.of("solver_judge"), name)
    done = rolegraph("validate", "solver_judge", "--backend", "tinkr")
    assert (done.returncode, "package.module:Class" in done.stderr) == (2, True)


@pytest.mark.skipif(config_folder("verl") is None, reason="needs verl, of which its config is enough")
def test_every_key_for_verl_is_one_of_verl_s_own() -> None:
    pytest.importorskip("rllm")
    from omegaconf import OmegaConf

    from rolegraph.integrations.rllm.compose import compose

    prepared = prepare(Source.of("solver_judge", HOSTED), "verl")
    config = compose(prepared.hydra_overrides(), "verl")
    own = config_folder("verl")
    assert own is not None
    generated = OmegaConf.load(own / "_generated_ppo_trainer.yaml")
    for key, value in overrides(prepared.run).items():
        if key != "rllm/backend":
            found = OmegaConf.select(config, key.lstrip("+"))
            assert found == (list(value) if isinstance(value, tuple) else value), key
        if not key.startswith("rllm"):
            section = key.lstrip("+").rpartition(".")[0]
            assert OmegaConf.select(generated, section) is not None, key


def test_nothing_is_set_by_the_keys_that_rllm_overwrites() -> None:
    assert not [row for backend in BACKENDS for row in TABLE[backend] if row.key.startswith("data.")]


def test_epochs_are_as_many_as_the_steps_need() -> None:
    assert keys(solver_judge(), "tinker", rows=32, steps=5)["rllm.trainer.total_epochs"] == 3


def test_measuring_before_and_after_only_is_said_so_that_rllm_does_it() -> None:
    found = keys(solver_judge("train.validation.every=0"), "tinker")
    assert found["rllm.trainer.test_freq"] == 30
    assert found["rllm.trainer.val_before_train"] is True


def test_without_validation_data_nothing_is_measured() -> None:
    found = keys(solver_judge("data.validation=null"), "tinker")
    assert found["rllm.trainer.test_freq"] == -1
    assert found["rllm.trainer.val_before_train"] is False


def test_staleness_turns_on_the_asynchronous_loop() -> None:
    assert "rllm.async_training.enable" not in keys(solver_judge(), "tinker")
    found = keys(solver_judge("train.staleness=2"), "tinker")
    assert found["rllm.async_training.enable"] is True
    assert found["rllm.async_training.staleness_threshold"] == 2
    assert found["rllm.async_training.mini_batch_size"] == 16
    assert found["rllm.workflow.raise_on_error"] is False
    assert found["rllm.trainer.total_batches"] == 31


def test_a_shipped_model_comes_with_its_renderer_and_another_folder_does_not() -> None:
    assert keys(solver_judge(), "tinker")["rollout_engine.renderer_name"] == "qwen3_instruct"
    assert "rollout_engine.renderer_name" not in keys(solver_judge("model=local:somewhere"), "tinker")


def test_words_are_quoted_where_hydra_would_misread_them() -> None:
    words = as_hydra(
        {"a": "plain/path", "b": "http://h:1/x", "c": "it's", "d": True, "e": ["x", "y"], "f": 1e-5}
    )
    assert words == ["a=plain/path", "b='http://h:1/x'", r"c='it\'s'", "d=true", "e=[x,y]", "f=1e-05"]


def test_words_for_rllm_are_told_from_those_for_the_spec() -> None:
    own, passed = split_overrides(
        ["train.steps=3", "rllm.trainer.save_freq=5", "++training.beta2=0.9", "~rllm.x"]
    )
    assert own == ["train.steps=3"]
    assert passed == ["rllm.trainer.save_freq=5", "++training.beta2=0.9", "~rllm.x"]


def test_words_for_rllm_come_last() -> None:
    prepared = prepare(Source.of("solver_judge", "rllm.trainer.save_freq=5"), "tinker")
    assert prepared.hydra_overrides()[-1] == "rllm.trainer.save_freq=5"
    assert "rllm.trainer.save_freq=10" in prepared.hydra_overrides()


def test_a_role_is_mapped_to_its_estimator_and_to_its_loss_where_rllm_would_choose_another() -> None:
    plan = solver_judge("roles.judge.loss=ppo")
    assert estimator_map(plan, "tinker") == {"solver": "grpo", "judge": ("reinforce", "ppo")}
    assert estimator_map(plan, "verl") == {"solver": "grpo", "judge": "reinforce"}


def test_fireworks_is_given_no_map_but_the_hook() -> None:
    assert estimator_map(solver_judge(), "fireworks") == {}
    assert list(hook_reasons(solver_judge(), "fireworks")) == ["solver", "judge"]
    assert hook_reasons(solver_judge(), "tinker") == {}


def test_what_rllm_would_lose_has_the_hook() -> None:
    distilled = compile_file("solver_judge_distill")
    assert list(hook_reasons(distilled, "tinker")) == ["judge"]
    assert keys(distilled, "tinker")["rllm.algorithm.use_precomputed_advantage"] is True
    assert "rllm.algorithm.use_precomputed_advantage" not in keys(solver_judge(), "tinker")
    assert list(hook_reasons(solver_judge("roles.judge.on_failure.then=mask"), "tinker")) == ["judge"]
    assert list(hook_reasons(solver_judge("roles.judge.estimator=null"), "verl")) == ["judge"]


def test_an_estimator_that_rllm_has_not_got_is_registered_under_a_name_of_its_own() -> None:
    plan = solver_judge("roles.judge.estimator=opo")
    assert estimator_map(plan, "tinker")["judge"] == "opo/judge"
    assert list(custom_estimators(plan, "tinker")) == ["opo/judge"]
    assert custom_estimators(plan, "fireworks") == {}


@pytest.mark.parametrize(
    ("words", "algorithm", "named"),
    [
        ((), {}, ["judge"]),
        (("roles.judge.estimator=grpo",), {}, []),
        (("roles.judge.estimator={grpo: {std: false}}",), {}, ["judge"]),
        (("roles.judge.estimator=grpo",), {"norm_adv_by_std_in_grpo": False}, ["solver", "judge"]),
        (("roles.judge.estimator=grpo",), {"loss_fn": "cispo"}, ["solver", "judge"]),
        (("roles.judge.estimator=grpo", "roles.judge.loss=cispo"), {}, ["judge"]),
        (("roles.judge.estimator=grpo", "roles.judge.on_failure.then=mask"), {}, ["judge"]),
        (("roles.judge.estimator=null",), {}, ["judge"]),
        (("roles.judge.estimator=rloo", "roles.solver.estimator=rloo"), {"adv_estimator": "rloo"}, []),
    ],
)
def test_roles_that_a_run_of_one_estimator_would_train_otherwise_are_named(
    words: tuple[str, ...], algorithm: dict[str, object], named: list[str]
) -> None:
    found = flow_findings(solver_judge(*words), FlowRun(algorithm))
    assert [it.path[1] for it in found if "would train every role" in it.message] == named


def test_grpo_of_two_kinds_is_one_of_rllms_and_one_of_ours() -> None:
    plan = solver_judge("roles.judge.estimator={grpo: {std: false}}")
    assert keys(plan, "tinker")["rllm.algorithm.norm_adv_by_std_in_grpo"] is True
    assert estimator_map(plan, "tinker") == {"solver": "grpo", "judge": ("grpo/judge", "ppo")}
    both = solver_judge(
        "roles.judge.estimator={grpo: {std: false}}", "roles.solver.estimator={grpo: {std: false}}"
    )
    assert keys(both, "tinker")["rllm.algorithm.norm_adv_by_std_in_grpo"] is False
    assert estimator_map(both, "tinker") == {"solver": "grpo", "judge": "grpo"}


def test_a_registered_estimator_computes_in_rllms_signature() -> None:
    plan = solver_judge("roles.solver.estimator={grpo: {std: false}}", "roles.judge.estimator=grpo")
    (role,) = custom_estimators(plan, "tinker").values()
    advantages, returns = as_rllm(role)(
        [np.array([1.0, 0.0, 0.5])], algorithm_config=None, traj_groups=[GROUP], future_option=1
    )
    assert advantages is returns
    np.testing.assert_allclose(
        advantages[0], np.array([1.0, 0.0, 0.5] - np.float64(0.5)) / np.sqrt(1 / 6), rtol=1e-5
    )


def test_a_roles_weight_multiplies_its_advantages() -> None:
    plan = solver_judge("roles.judge.weight=0.5")
    assert estimator_map(plan, "verl") == {"solver": "grpo", "judge": "reinforce/judge"}
    assert estimator_map(plan, "tinker") == {"solver": "grpo", "judge": "reinforce/judge"}
    (role,) = custom_estimators(plan, "verl").values()
    advantages, _ = as_rllm(role)([np.array([1.0, 0.0, 0.5])], algorithm_config=None, traj_groups=[GROUP])
    assert advantages[0].tolist() == [0.5, 0.0, 0.25]


def test_an_estimator_that_may_read_the_whole_batch_is_not_called_round_by_round() -> None:
    words = ("loops={l: {roles: [solver, judge], times: 2}}", "roles.judge.group=turn")
    assert hook_reasons(solver_judge(*words, "roles.judge.estimator=opo"), "tinker") == {}
    (reason,) = hook_reasons(solver_judge(*words, "roles.judge.estimator=prpo"), "tinker").values()
    assert "all its turns" in reason


def test_one_that_gives_too_few_is_named_with_its_role() -> None:
    mine = Estimator("mine", compute=lambda rewards, groups: [[1.0]])
    role = replace(solver_judge().trained["judge"], estimator=mine)
    said = r"the estimator mine of judge gave advantages of shape \[1\] for the task t, expected \[3\]"
    with pytest.raises(AdvantageError, match=said):
        as_rllm(role)([np.array([1.0, 0.0, 0.5])], algorithm_config=None, traj_groups=[GROUP])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_config_can_be_shown_for_every_backend(rolegraph: Command, backend: Backend) -> None:
    done = rolegraph(
        "train", "solver_judge", "--trainer", "rllm", "--backend", backend, "--print-config", HOSTED
    )
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    given = shown.get("overrides") or []
    # The whole config if rLLM is installed, else only its overrides.
    assert f"rllm/backend={backend}" in given or shown["rllm"]["backend"] == backend
    assert "30 updates over 2048 tasks" in done.stdout


def test_a_missing_rllm_is_named_with_the_command_that_installs_it(rolegraph: Command) -> None:
    pytest.importorskip("tinker")
    from importlib.util import find_spec

    if find_spec("rllm") is not None:
        pytest.skip("rLLM is installed")
    done = rolegraph("train", "solver_judge", "--trainer", "rllm")
    assert done.returncode == 2
    assert "uv pip install --group rllm ." in done.stderr
    assert "Traceback" not in done.stderr


def test_the_flags_of_rllm_mean_nothing_to_our_own_loop(rolegraph: Command) -> None:
    done = rolegraph("train", "solver_judge", "--print-config")
    assert done.returncode == 2
    assert "--trainer rllm" in done.stderr


def test_a_key_goes_to_no_url_that_only_the_spec_names() -> None:
    elsewhere = json.dumps({"provider": "tinker", "name": "m", "base_url": "https://elsewhere.example"})
    with pytest.raises(UsageError, match="TINKER_API_KEY is not sent"):
        prepare(Source.of("solver_judge", f"model={elsewhere}"), "tinker")
    given = prepare(Source.of("solver_judge", HOSTED, base_url="https://elsewhere.example"), "tinker")
    assert "tinker_base_url='https://elsewhere.example'" in given.hydra_overrides()
