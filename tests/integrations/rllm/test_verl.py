"""Composed configs in verl's own package: rLLM's synchronised form of them is what verl's launcher checks."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")
pytest.importorskip("verl.utils.config", reason="needs verl: pip install verl tensordict")

from omegaconf import OmegaConf
from rllm.trainer.verl.utils import sync_config
from verl.utils.config import omega_conf_to_dataclass, validate_config

from rolegraph.engine.records import Source
from rolegraph.engine.shipped import BASE_NAME, model_folder
from rolegraph.integrations.rllm.compose import compose
from rolegraph.integrations.rllm.launch import prepare

pytestmark = pytest.mark.rllm
BASE = model_folder(BASE_NAME)


@pytest.mark.parametrize("name", ["solver_judge", "solver_judge_validator", "solver_only", "debate"])
def test_verl_takes_the_config_of_a_shipped_spec(name: str) -> None:
    prepared = prepare(Source.of(name, f"model=local:{BASE}"), "verl")
    words, train = prepared.hydra_overrides(), prepared.run.train
    # verl imports vLLM, which needs a GPU, to check the rank of an adapter for it.
    config = compose([*words, "actor_rollout_ref.rollout.name=sglang"], "verl")
    sync_config(config, words)
    validate_config(config, use_reference_policy=False, use_critic=False)

    built = {
        part: omega_conf_to_dataclass(OmegaConf.select(config, f"actor_rollout_ref.{part}"))
        for part in ("actor", "rollout", "model")
    }
    actor, rollout, model = built["actor"], built["rollout"], built["model"]
    assert (actor.ppo_mini_batch_size, rollout.n) == (train.batch_size, train.rollouts)
    assert (actor.optim.lr, actor.optim.clip_grad) == (prepared.run.rate, train.gradient_clip)
    assert (model.path, model.lora_rank) == (str(BASE), train.lora.rank)
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu >= (prepared.run.context or 0)


def test_the_inference_server_is_vllm_unless_an_override_says_otherwise() -> None:
    prepared = prepare(Source.of("solver_judge", f"model=local:{BASE}"), "verl")
    assert compose(prepared.hydra_overrides(), "verl").actor_rollout_ref.rollout.name == "vllm"


def test_rllm_s_calls_of_verl_fit_the_installed_version() -> None:
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.experimental.agent_loop.agent_loop import AgentLoopManager
    from verl.workers.rollout.llm_server import LLMServerManager

    prepared = prepare(Source.of("solver_judge", f"model=local:{BASE}"), "verl")
    config = compose(prepared.hydra_overrides(), "verl")
    engine = omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
    # The calls of rllm/trainer/verl/verl_backend.py, with arguments that nothing reads here.
    manager = CheckpointEngineManager(config=engine, trainer="workers", replicas=[])
    assert "workers" in vars(manager).values()
    created = inspect.signature(inspect.unwrap(LLMServerManager.create))
    created.bind(LLMServerManager, config=config, worker_group=None, rollout_resource_pool=None)
    created = inspect.signature(inspect.unwrap(AgentLoopManager.create))
    created.bind(AgentLoopManager, config=config, llm_client=None)


def test_the_router_s_replay_stays_off() -> None:
    prepared = prepare(Source.of("solver_judge", f"model=local:{BASE}"), "verl")
    config = compose(prepared.hydra_overrides(), "verl")
    sync_config(config, prepared.hydra_overrides())
    assert config.rllm.algorithm.get("router_replay", "disabled") == "disabled"


@pytest.mark.parametrize("size", ["1.5B", "7B", "32B"])
@pytest.mark.parametrize("extra", [(), ("train.staleness=1",)], ids=["synchronous", "asynchronous"])
def test_rllm_and_verl_take_the_config_for_eight_gpus(size: str, extra: tuple[str, ...]) -> None:
    from types import SimpleNamespace

    from rllm.trainer.verl.verl_backend import VerlBackend

    prepared = prepare(
        Source.of("solver_judge", f"model=tinker:Qwen/Qwen2.5-{size}-Instruct", *extra), "verl", gpus=8
    )
    config = compose([*prepared.hydra_overrides(), "actor_rollout_ref.rollout.name=sglang"], "verl")
    sync_config(config, [])
    OmegaConf.resolve(config)
    # The dataclass of verl's model downloads the model, and its checks do not read it.
    validate_config(config, use_reference_policy=False, use_critic=False)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.tensor_model_parallel_size == (4 if size == "32B" else 1)
    gpus = config.trainer.n_gpus_per_node + (config.rollout.n_gpus_per_node if extra else 0)
    assert gpus == 8
    if not extra:  # the asynchronous validation looks for cupy
        VerlBackend.validate_config(SimpleNamespace(config=config, is_separated=False))
