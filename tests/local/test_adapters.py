"""Adapters on one model: memory of many, and independence of each."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from safetensors.torch import load_file, save_file  # noqa: E402

from rolegraph.engine.errors import UsageError  # noqa: E402
from rolegraph.local.service.adapters import load_model, write_adapter  # noqa: E402
from rolegraph.local.service.backend import Backend  # noqa: E402
from rolegraph.local.service.checkpoints import CheckpointStore, SaveOptions  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.exporting import export_adapter  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraAdapter, LoraShape  # noqa: E402
from rolegraph.local.service.trainer import Datum, TrainingRun  # noqa: E402

RANK = 40  # beyond the 32 that most of the layers have


@pytest.fixture(scope="module")
def model(model_dir: Path) -> LocalModel:
    return LocalModel(model_dir, threads=1)


def test_a_new_adapter_is_the_one_that_peft_makes(model: LocalModel, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from peft.utils import get_peft_model_state_dict

    first, second = (model.add_adapter(LoraShape(RANK, seed=seed)) for seed in (3, 7))
    assert {len(a) for a, _ in second.pairs.values()} == {32}
    write_adapter(tmp_path, second.weights(), RANK, "base")
    torch.manual_seed(7)
    with model.adapted([None]) as module:
        plain = copy.deepcopy(module)
    made = get_peft_model(plain, LoraConfig.from_pretrained(tmp_path))
    expected = get_peft_model_state_dict(made, save_embedding_layers=False)
    given = second.weights()
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[key], expected[key]) for key in given)
    assert not all(torch.equal(given[key], tensor) for key, tensor in first.weights().items())


def test_one_client_more_takes_tensors_and_no_model_of_its_own(model: LocalModel) -> None:
    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    def client(number: int) -> tuple[TrainingRun, LoraAdapter]:
        sampled = model.add_adapter(LoraShape(4, seed=number))
        model.freeze(sampled)
        return TrainingRun(model, LoraShape(4, seed=number)), sampled

    client(0)
    before = objects()
    clients = [client(number) for number in range(1, 21)]
    assert objects() - before < 20 * 400  # a model has thousands
    clients.clear()
    assert objects() - before < 400


@pytest.mark.parametrize("small", [True, False])
def test_two_that_are_trained_in_turn_learn_what_each_would_alone(model_dir: Path, small: bool) -> None:
    model, alone = LocalModel(model_dir, threads=1), LocalModel(model_dir, threads=1)
    alone.small, model.small = True, small
    from tinker import AdamParams

    def datum(token: int) -> Datum:
        targets = torch.tensor([80, 90, token])
        return Datum([5, 80, 90], {"target_tokens": targets, "weights": torch.ones(3)})

    def train(run: TrainingRun, token: int) -> float:
        loss, _ = run.forward_backward([datum(token)], "cross_entropy", {})
        run.step(AdamParams(learning_rate=0.01))
        return loss

    runs = [TrainingRun(model, LoraShape(4, seed=number)) for number in range(2)]
    found = [[train(run, 100 + number) for number, run in enumerate(runs)] for _ in range(4)]
    for number in range(2):
        run = TrainingRun(alone, LoraShape(4, seed=number))
        expected = [train(run, 100 + number) for _ in range(4)]
        assert [losses[number] for losses in found] == pytest.approx(expected, abs=1e-4)
        assert expected[-1] < expected[0]


Q, V = (f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_B.weight" for layer in (0, 1))
NAN = float("nan")


@pytest.fixture
def adapter(model_dir: Path, tmp_path: Path) -> Path:
    """Write an adapter of two layers, one with a rank and a scale of its own."""
    torch.manual_seed(0)
    weights = {name.replace("lora_B", "lora_A"): torch.randn(4, 32) for name in (Q, V)}
    write_adapter(tmp_path, {**weights, **{name: torch.randn(32, 4) for name in (Q, V)}}, 8, str(model_dir))
    return tmp_path


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True, "target_modules": ["q_proj", "w_pack"]},
        {"target_modules": r".*\.(q_proj|w_pack)"},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [0, 1]},
    ],
)
def test_a_merged_adapter_is_the_one_that_peft_merges(
    model_dir: Path, adapter: Path, settings: dict[str, Any]
) -> None:
    from peft import LoraConfig, PeftModel

    LoraConfig(**{**LoraConfig.from_pretrained(str(adapter)).to_dict(), **settings}).save_pretrained(
        str(adapter)
    )
    wrapped: Any = PeftModel.from_pretrained(load_model(model_dir), str(adapter))
    expected, found = wrapped.merge_and_unload().state_dict(), load_model(adapter).state_dict()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({Q: None}, f"{Q} is missing"),
    "other names": (
        {Q: None, Q.replace("model.model", "model"): torch.zeros(32, 4)},
        "is missing; .* is unexpected",
    ),
    "rank": ({Q: torch.zeros(32, 8)}, rf"{Q} has the shape \[32, 8\], expected \[32, 4\]"),
    "not a number": ({Q: torch.full((32, 4), NAN)}, f"{Q} has values that are not finite"),
    "too large": (
        {Q: torch.full((32, 4), 3e38)},
        "cannot be merged: .*q_proj has values that are not finite",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_adapter_that_does_not_fit_is_refused_by_the_tensor_s_name(adapter: Path, kind: str) -> None:
    changed, message = UNFIT[kind]
    weights = {**load_file(adapter / "adapter_model.safetensors"), **changed}
    save_file(
        {name: it for name, it in weights.items() if it is not None}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(UsageError, match=message):
        load_model(adapter)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"megatron_config": {"a": 1}, "megatron_core": "evil"}, "megatron_config"),
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"target_modules": ["w_pack"]}, "no linear layer of its model"),
        ({"target_modules": ["q_proj", "v_proj"]}, "v_proj.lora_A.weight is missing"),
        ({"alpha_pattern": {"v_proj": 1}}, "'v_proj', which it does not adapt"),
        ({"r": 10**30, "rank_pattern": {}}, "less than or equal"),
    ],
)
def test_an_adapter_s_config_that_asks_for_more_is_refused(
    adapter: Path, settings: dict[str, Any], message: str
) -> None:
    change(adapter / "adapter_config.json", **settings)
    with pytest.raises(UsageError, match=message):
        load_model(adapter)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("fault", ["is missing", "is unexpected", "has the shape", "not finite"])
def test_a_checkpoint_that_does_not_fit_changes_nothing(
    model: LocalModel, model_dir: Path, tmp_path: Path, file: str, fault: str
) -> None:
    from tinker import AdamParams

    backend = Backend(model, CheckpointStore(tmp_path, "tiny", model_dir), "tiny")
    backend.create("first", LoraShape(4, seed=0))
    inputs = {"target_tokens": torch.tensor([80, 90, 7]), "weights": torch.ones(3)}
    backend.forward_backward("first", [Datum([5, 80, 90], inputs)], "cross_entropy", {}, backward=True)
    backend.step("first", AdamParams(learning_rate=0.01))  # pyright: ignore[reportArgumentType]
    path = "tinker://first/weights/one"
    backend.save("first", path, SaveOptions())
    saved = tmp_path / "first" / "weights" / "one" / file
    backend.load("again", path, optimizer=True)
    before, after = (backend.run(name).optimizer_state() for name in ("first", "again"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    weights = load_file(saved)
    name = min(weights)
    changed = {
        "is missing": {},
        "is unexpected": {**weights, "x": torch.zeros(1)},
        "has the shape": {**weights, name: torch.zeros(3, 5)},
        "not finite": {**weights, name: torch.full_like(weights[name], NAN)},
    }[fault]
    save_file(changed, saved)
    with pytest.raises(RequestError, match=fault):
        backend.load("other", path, optimizer=True)
    assert "other" not in backend.runs()
    with pytest.raises(RequestError, match=fault):
        backend.load("first", path, optimizer=True)
    assert all(torch.equal(before[name], it) for name, it in backend.run("first").optimizer_state().items())
    if file == "adapter_model.safetensors":
        (tmp_path / "out").mkdir()
        with pytest.raises(UsageError, match=fault):
            export_adapter(path, tmp_path, tmp_path / "out", model_dir)
