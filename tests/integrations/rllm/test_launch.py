"""rLLM's config and AgentTrainer, launched from a spec against the local service."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from omegaconf import OmegaConf
from rllm.data import Dataset
from rllm.trainer.algorithms import AlgorithmConfig
from rllm.trainer.algorithms.advantage import get_rllm_adv_estimator
from rllm.types import TrajectoryGroup

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Services
from rolegraph.engine.records import Source
from rolegraph.integrations.rllm import agent_trainer, compile_agent_flow
from rolegraph.integrations.rllm.compose import compose
from rolegraph.integrations.rllm.config import overrides
from rolegraph.integrations.rllm.estimators import custom_estimators
from rolegraph.integrations.rllm.launch import describe, prepare
from rolegraph.integrations.rllm.names import BACKENDS, Backend
from rolegraph.integrations.rllm.registered import register
from tests.cli.conftest import ENVIRONMENT, Command

pytestmark = pytest.mark.rllm

HOSTED = "model=tinker:Qwen/Qwen3-4B-Instruct-2507"
SMALL = (
    "train.steps=3",
    "train.batch_size=4",
    "train.rollouts=4",
    "train.checkpoint_every=2",
    "train.validation={every: 2, tasks: 4, rollouts: 1}",
)


@pytest.mark.parametrize("extra", [(), ("train.staleness=1",)], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_key_of_the_table_is_one_of_rllms_and_is_set(backend: Backend, extra: tuple[str, ...]) -> None:
    if backend == "fireworks" and extra:
        pytest.skip("the asynchronous loop on fireworks is refused")
    prepared = prepare(Source.of("solver_judge", HOSTED, *extra), backend, folder=Path("runs/it's one"))
    config = compose(prepared.hydra_overrides(), backend)
    for key, value in overrides(prepared.run).items():
        if key != "rllm/backend":
            found = OmegaConf.select(config, key.lstrip("+"))
            assert found == (list(value) if isinstance(value, tuple) else value), key
    assert config.rllm.backend == backend
    assert config.rllm.rollout.n == 8
    assert config.rllm.rollout.n_val == 2


def test_a_word_that_rllm_has_no_key_for_is_refused_without_a_traceback() -> None:
    with pytest.raises(UsageError, match=r"rLLM's config does not take these overrides: .*rllm\.trianer"):
        describe(prepare(Source.of("solver_judge", "rllm.trianer.save_freq=3"), "tinker"))


def test_verl_that_is_not_installed_is_said_to_be_so(process: Command) -> None:
    if find_spec("verl") is not None:
        pytest.skip("verl is installed")
    words = ("train", "solver_judge", "--trainer", "rllm", "--backend", "verl", HOSTED)
    shown = process(*words, "--print-config")
    assert shown.returncode == 0, shown.stderr
    assert "verl is not installed" in shown.stdout
    assert "actor_rollout_ref:" in shown.stdout
    launched = process(*words)
    assert launched.returncode == 2
    assert "rLLM's backend verl needs verl: uv pip install" in launched.stderr


def test_an_estimator_of_ours_computes_under_rllm() -> None:
    plan = prepare(Source.of("solver_judge", "roles.judge.estimator={grpo: {std: false}}"), "tinker").run.plan
    register(custom_estimators(plan, "tinker"))
    advantages, _ = get_rllm_adv_estimator("grpo/judge")(
        rewards=[np.array([1.0, 0.0])],
        algorithm_config=AlgorithmConfig(),
        traj_groups=[TrajectoryGroup(trajectories=[], group_id="t:judge")],
    )
    np.testing.assert_allclose(advantages[0], [0.5, -0.5])


def series(log: str, key: str) -> list[float]:
    """Return a metric's values from rLLM's console log, in order."""
    return [float(found) for found in re.findall(rf"- {re.escape(key)}:(?:np\.\w+\()?(-?[\d.e+-]+)", log)]


def trained(log: subprocess.CompletedProcess[str]) -> str:
    assert log.returncode == 0, log.stderr[-3000:]
    return log.stdout


needs_service = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra `local`")


@pytest.mark.service
@needs_service
@pytest.mark.parametrize("spec", ["solver_judge", "solver_judge_validator", "solver_judge_distill"])
def test_a_spec_is_trained_by_rllm_with_validation_and_checkpoints(
    process: Command, spec: str, tmp_path: Path
) -> None:
    words = ("train", spec, "--trainer", "rllm", "--backend", "tinker", "--out", "run", *SMALL)
    done = process(*words)
    log = trained(done)
    assert series(log, "progress/batch") == [1, 2, 3]
    assert series(log, "batch/dropped_malformed_sequences") == [0, 0, 0]
    assert series(log, "batch/termination_reason/error") == [0, 0, 0]
    assert len(series(log, "val/reward/solver/mean")) == 3
    assert (tmp_path / "run" / "global_step_2" / "checkpoint.json").is_file()
    assert (tmp_path / "run" / "global_step_3" / "checkpoint.json").is_file()
    assert "solver: grpo" in done.stderr
    judge = "precomputed" if spec == "solver_judge_distill" else "reinforce"
    assert f"judge: {judge}" in done.stderr
    if spec == "solver_judge_distill":
        assert len(re.findall("solver: advantages by grpo", done.stderr)) == 3
        assert len(re.findall("judge: advantages by reverse_kl", done.stderr)) == 3


@pytest.mark.service
@needs_service
def test_a_run_goes_on_where_it_was(process: Command) -> None:
    words = ("train", "solver_judge", "--trainer", "rllm", "--out", "run", *SMALL)
    assert series(trained(process(*words)), "progress/batch") == [1, 2, 3]
    again = trained(process(*words, "train.steps=5", "--resume"))
    assert series(again, "progress/batch") == [4, 5]


@pytest.mark.service
@needs_service
def test_the_asynchronous_loop_makes_as_many_updates(process: Command) -> None:
    words = ("train", "solver_judge", "--trainer", "rllm", "--out", "run", *SMALL, "train.staleness=1")
    assert series(trained(process(*words)), "progress/batch") == [1, 2, 3]


@pytest.mark.service
@needs_service
def test_an_ejected_script_trains_by_itself(process: Command, tmp_path: Path) -> None:
    process("eject", "solver_judge_distill", *SMALL, "roles.solver.estimator=opo", "--out", "train.py")
    command: list[Any] = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    log = trained(done)
    assert series(log, "progress/batch") == [1, 2, 3]
    assert series(log, "batch/dropped_malformed_sequences") == [0, 0, 0]


@pytest.mark.service
@needs_service
def test_an_agent_flow_is_trained_by_the_estimators_of_its_spec(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("train.steps=2", *SMALL[1:3], "train.validation={tasks: 1}")
    run = prepare(Source.of("solver_judge", *few), "tinker", folder=tmp_path)
    flow, evaluator = compile_agent_flow(run.run.plan)
    with Services() as services:
        policy = services.locate(run.run.plan.spec.model)
        monkeypatch.setenv("TINKER_API_KEY", policy.api_key or "")
        config = compose([*run.hydra_overrides(), f"tinker_base_url='{policy.ref.base_url}'"], "tinker")
        rows = Dataset([*flow.plan.data["train"].rows(8)], "countdown", "train")
        agent_trainer(
            backend="tinker", config=config, agent_flow=flow, evaluator=evaluator, train_dataset=rows
        ).train()
    log = capfd.readouterr().out
    assert series(log, "progress/batch") == [1, 2]
    # `reinforce` subtracts no mean, so the judge's advantages have the mean of its rewards.
    rewards = series(log, "reward/judge/mean")
    assert any(rewards)
    assert series(log, "advantage/judge/mean") == pytest.approx(rewards)
    assert series(log, "advantage/solver/mean") == pytest.approx([0.0, 0.0], abs=1e-6)
