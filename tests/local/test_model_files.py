"""Model folders whose weights, config and files do not fit each other."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from safetensors.torch import load_file, save_file  # noqa: E402

from rolegraph.engine.errors import UsageError  # noqa: E402
from rolegraph.local.service.adapters import load_model  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from tests.local.client import PROMPT  # noqa: E402

Weights = dict[str, Any]
NAME = "model.layers.1.mlp.down_proj.weight"
HUGE = {"hidden_size": 65_536, "intermediate_size": 262_144, "num_hidden_layers": 64}
PEAK = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit of `ru_maxrss`."""


def change(folder: Path, change_weights: Callable[[Weights], object] | None = None, **settings: Any) -> None:
    """Change the weights and the config of a model folder."""
    if change_weights is not None:
        weights = load_file(folder / "model.safetensors")
        change_weights(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_dir, tmp_path / "theirs")


def put(tensor: Any, name: str = NAME) -> Callable[[Weights], None]:
    return lambda weights: weights.update({name: tensor})


def put_one(value: float) -> Callable[[Weights], None]:
    return lambda weights: weights[NAME][3].fill_(value)


def empty(weights: Weights) -> None:
    weights.clear()
    weights["x"] = torch.zeros(1)


UNFIT: dict[str, tuple[Callable[[Weights], object], str]] = {
    "missing": (lambda weights: weights.pop(NAME), f"{NAME} is missing"),
    "all missing": (empty, r"model.embed_tokens.weight is missing; .* and \d+ more"),
    "not a number": (put_one(float("nan")), f"{NAME} has values that are not finite"),
    "infinite": (put_one(float("-inf")), f"{NAME} has values that are not finite"),
    "unexpected": (put(torch.zeros(2), "model.layers.9.mlp.down_proj.weight"), "layers.9.* is unexpected"),
    "shape": (put(torch.zeros(5, 5)), rf"{NAME} has the shape \[5, 5\], expected \[32, 64\]"),
    "kind": (put(torch.zeros(32, 64, dtype=torch.int8)), f"{NAME} has the type torch.int8"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_weights_that_do_not_fit_are_refused_by_the_tensor_s_name(folder: Path, kind: str) -> None:
    change_weights, message = UNFIT[kind]
    change(folder, change_weights)
    with pytest.raises(UsageError, match=f"theirs: .*{message}"):
        load_model(folder)


def test_a_head_of_its_own_may_not_be_missing(folder: Path) -> None:
    change(folder, tie_word_embeddings=False)
    with pytest.raises(UsageError, match=r"lm_head\.weight is missing"):
        load_model(folder)


def test_shards_are_one_model_and_none_may_be_missing(folder: Path, tmp_path: Path) -> None:
    whole, shards = load_model(folder), tmp_path / "shards"
    whole.save_pretrained(shards, max_shard_size="40KB")
    model = load_model(shards)
    assert all(
        torch.equal(one, other) for one, other in zip(whole.parameters(), model.parameters(), strict=True)
    )
    index = json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"]
    left_out = load_file(shards / index[NAME])
    del left_out[NAME]
    save_file(left_out, shards / index[NAME], metadata={"format": "pt"})
    with pytest.raises(UsageError, match=f"{NAME} is missing"):
        load_model(shards)
    (shards / index[NAME]).unlink()
    with pytest.raises(UsageError, match=index[NAME]):
        load_model(shards)
    (shards / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../theirs/model.safetensors"}}'
    )
    with pytest.raises(UsageError, match="other folders"):
        load_model(shards)


NEO = {"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global"], 2]]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (HUGE, r"model\.layers\.2\.\S+ is missing"),
        ({"vocab_size": 10**12}, r"model\.embed_tokens\.weight has the shape"),
        ({"num_hidden_layers": 10**9}, r"announces 1,000,000,000 layers \(num_hidden_layers\)"),
        ({**NEO, "max_position_embeddings": 50_000}, "limit: model_buffers"),
        ({"hidden_size": 10**30}, "cannot load"),
    ],
)
def test_a_config_that_asks_for_more_than_its_files_takes_no_memory(
    folder: Path, settings: dict[str, Any], message: str
) -> None:
    change(folder, **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=message):
        load_model(folder)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * PEAK < 500_000_000


def test_numbers_that_no_weights_follow_from_take_no_memory(folder: Path, model_dir: Path) -> None:
    change(folder, max_position_embeddings=10**15, num_labels=10**9)
    model, plain = (LocalModel(path, threads=1) for path in (folder, model_dir))
    targets = [torch.tensor(PROMPT[1:])]
    with torch.inference_mode():
        (_, found), (_, expected) = (
            next(it.logprobs(None, [PROMPT[:-1]], targets, 99)) for it in (model, plain)
        )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
def test_a_config_s_kernels_of_the_hub_are_not_asked_for(
    folder: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda *it, **_: asked.append(it)
    )
    names = {"experts_implementation": "someone/kernel", "fusion_config": {"patch_embeddings": True}}
    change(folder, **{key: "someone/kernel"}, **names, auto_map={"AutoModelForCausalLM": "evil.Model"})
    assert load_model(folder).config._attn_implementation == "sdpa" and not asked


@pytest.mark.parametrize("where", ["quantization_config", "text_config"])
def test_quantized_weights_are_refused(folder: Path, where: str) -> None:
    method = {"quant_method": "mxfp4"}
    change(folder, **{where: method if where == "quantization_config" else {"quantization_config": method}})
    with pytest.raises(UsageError, match="its weights are quantized"):
        load_model(folder)
