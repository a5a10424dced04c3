"""Checkpoints as peft reads them, and their folders."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from safetensors import safe_open  # noqa: E402
from tinker import types  # noqa: E402

from rolegraph.engine.records.ownership import STAGING  # noqa: E402
from rolegraph.engine.records.staging import staging_folder  # noqa: E402
from rolegraph.local.launcher import LocalService  # noqa: E402
from rolegraph.local.service.adapters import write_adapter  # noqa: E402
from rolegraph.local.service.checkpoints import CheckpointStore  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.lora import LoraShape  # noqa: E402
from tests.local.client import PROMPT, datum, logprobs_of, prompt, trainer  # noqa: E402
from tests.local.conftest import make_model  # noqa: E402
from tests.settled import settled  # noqa: E402

RANK = 64
"""A rank above the size of the tiny model's layers."""
PATH = "tinker://session-1:train:0/sampler_weights/last"
WEIGHTS = {
    "base_model.model.lm_head.lora_A.weight": torch.ones(8, 32),
    "base_model.model.lm_head.lora_B.weight": torch.ones(260, 8),
}


@pytest.fixture
def fitted(client: tinker.ServiceClient, service: LocalService) -> tinker.TrainingClient:
    training = trainer(client, service, rank=RANK)
    for _ in range(10):
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return training


def folder_of(path: str, state_dir: Path) -> Path:
    return state_dir / path.removeprefix("tinker://").replace(":", "_")


@pytest.mark.service
def test_peft_loads_a_checkpoint_and_gives_the_service_s_logprobs(
    fitted: tinker.TrainingClient, client: tinker.ServiceClient, state_dir: Path, model_dir: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    path = fitted.save_weights_for_sampler("fitted").result().path
    served = client.create_sampling_client(model_path=path).result().compute_logprobs(prompt()).result()[1:]
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    assert logprobs_of(base, PROMPT) != pytest.approx(served, abs=0.1)
    folder = folder_of(path, state_dir)
    model = PeftModel.from_pretrained(base, str(folder))
    assert logprobs_of(model, PROMPT) == pytest.approx(served, abs=1e-4)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == RANK
    assert config["rank_pattern"]["lm_head"] == 32
    assert config["alpha_pattern"]["lm_head"] == 16


@pytest.mark.service
def test_every_file_system_takes_the_folders(fitted: tinker.TrainingClient, state_dir: Path) -> None:
    fitted.save_state("step-000002").result()
    fitted.save_weights_and_get_sampling_client().result()
    names = [part for file in settled(state_dir) for part in file.relative_to(state_dir).parts]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z0-9_-]", name) for name in names)
    for name in ("ends.", "nul", "COM1.txt", "x" * 200, "naïve"):
        with pytest.raises(Exception, match="names no checkpoint"):
            fitted.save_state(name).result()


def test_a_checkpoint_knows_its_base_wherever_that_lies(model_dir: Path, tmp_path: Path) -> None:
    saved = CheckpointStore(tmp_path / "state", "one", model_dir)
    saved.save(PATH, LoraShape(rank=8), WEIGHTS)
    moved = shutil.copytree(model_dir, tmp_path / "moved")
    found = CheckpointStore(tmp_path / "state", "other", moved).load(PATH, optimizer=False)
    assert found.shape == LoraShape(rank=8)
    assert all(torch.equal(found.weights[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    ("name", "message"),
    [("one", "other weights"), ("two", "belongs to the model 'one', but this service serves 'two'")],
)
def test_a_checkpoint_of_other_weights_is_refused(
    model_dir: Path, tmp_path: Path, name: str, message: str
) -> None:
    CheckpointStore(tmp_path / "state", "one", model_dir).save(PATH, LoraShape(rank=8), WEIGHTS)
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(RequestError, match=message):
        CheckpointStore(tmp_path / "state", name, other).load(PATH, optimizer=False)


def test_a_checkpoint_of_an_adapter_knows_the_adapter_and_its_base(model_dir: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    write_adapter(adapter, WEIGHTS, 8, str(model_dir))
    CheckpointStore(tmp_path / "state", "one", adapter).save(PATH, LoraShape(rank=8), WEIGHTS)
    CheckpointStore(tmp_path / "state", "one", adapter).load(PATH, optimizer=False)
    write_adapter(adapter, WEIGHTS, 8, str(make_model(tmp_path / "other", seed=1)))
    with pytest.raises(RequestError, match="other weights"):
        CheckpointStore(tmp_path / "state", "one", adapter).load(PATH, optimizer=False)


def test_merged_embeddings_stay_one_tensor_where_the_adapter_changes_neither_use(
    model_dir: Path, tmp_path: Path
) -> None:
    from rolegraph.local.service.exporting import export_merged

    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{layer}.lora_A.weight": torch.ones(8, 32), f"{layer}.lora_B.weight": torch.ones(32, 8)}
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", weights, 8, str(model_dir))
    export_merged(tmp_path / "adapter", tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is True
    with safe_open(tmp_path / "merged" / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  (it is no mapping)


def test_what_a_killed_service_was_writing_is_swept_and_a_checkpoint_it_was_replacing_is_not_lost(
    tmp_path: Path, model_dir: Path
) -> None:
    """Check a process killed between the two renames of a checkpoint, and one killed while writing a file."""
    CheckpointStore(tmp_path, "tiny", model_dir).save(PATH, LoraShape(8), WEIGHTS)
    (target,) = tmp_path.glob("*/sampler_weights/last")
    part, torn = (tmp_path / f"{STAGING}{name}" for name in "ab")
    for folder in (part, torn):
        (folder / "checkpoint").mkdir(parents=True)
    (torn / "checkpoint" / "adapter_model.safetensors").write_bytes(b"half")
    shutil.copytree(target, part / "checkpoint", dirs_exist_ok=True)
    target.rename(part / "replaced")
    again = CheckpointStore(tmp_path, "tiny", model_dir)
    assert not [*tmp_path.glob(f"{STAGING}*")]
    assert again.load(PATH, optimizer=False).weights.keys() == WEIGHTS.keys()


def test_what_another_service_is_writing_is_left_alone(tmp_path: Path, model_dir: Path) -> None:
    with staging_folder(tmp_path) as part:
        (part / "checkpoint").mkdir()
        CheckpointStore(tmp_path, "tiny", model_dir)
        assert (part / "checkpoint").is_dir()
    assert not [*tmp_path.iterdir()]
