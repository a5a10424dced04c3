"""Families of models: a tiny random one of each is sampled in a batch, trained for a step, and exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from rolegraph.engine.errors import UsageError  # noqa: E402
from rolegraph.local.service.adapters import load_model, write_adapter  # noqa: E402
from rolegraph.local.service.bodies import AdamSettings  # noqa: E402
from rolegraph.local.service.caches import HAS_STATES  # noqa: E402
from rolegraph.local.service.decoder import Decoder, check_decoding  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraAdapter, LoraShape  # noqa: E402
from rolegraph.local.service.memory import account  # noqa: E402
from rolegraph.local.service.sampling import SampleRequest  # noqa: E402
from rolegraph.local.service.trainer import Datum, TrainingRun  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA3 = {**SMALL, **SLIDING, "model_type": "gemma3_text", "query_pre_attn_scalar": 8}
HYBRIDS = {"lfm2", "qwen3_5_text", "granitemoehybrid", "qwen3_next"}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {**SMALL, "n_positions": 256},
    "llama": SMALL,
    "mistral": {**SMALL, "sliding_window": 16},
    "phi3": SMALL,
    "qwen3": SMALL,
    "gemma3": {
        "text_config": GEMMA3,
        "vision_config": {**VISION, "image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "lfm2": {**SMALL, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "qwen3_5_text": {**SMALL, **LINEAR},
    "granitemoehybrid": {
        **SMALL,
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 32,
    },
    "qwen3_moe": {**SMALL, **EXPERTS},
    "qwen3_next": {**SMALL, **LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16},
    "gpt_oss": {**SMALL, **SLIDING, **EXPERTS},
}


def make(kind: str, settings: dict[str, Any], folder: Path, model_dir: Path) -> Path:
    for file in [*model_dir.glob("*token*"), *model_dir.glob("*.jinja")]:
        shutil.copy(file, folder)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    return folder


def scores(model: LocalModel, adapter: LoraAdapter | None, tokens: list[int]) -> torch.Tensor:
    """Return the log-probability of each token but the first, by the model's own forward."""
    with torch.inference_mode(), model.adapted([adapter]) as module:
        logits = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    return logits.log_softmax(-1)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_of_each_family_is_sampled_trained_and_exported(
    kind: str, tmp_path: Path, model_dir: Path
) -> None:
    if kind in HYBRIDS and not HAS_STATES:
        pytest.skip("this version of transformers keeps the states of hybrids otherwise")
    folder = make(kind, FAMILIES[kind], tmp_path, model_dir)
    assert account(folder).longest == 256
    model = LocalModel(folder, threads=1)
    model.small, model.chunk = False, 7
    check_decoding(model)
    has_experts = "num_experts" in FAMILIES[kind]
    if has_experts:
        with pytest.raises(RequestError, match=rf"{kind} has experts .*mlp: false"):
            TrainingRun(model, LoraShape(4))
    run = TrainingRun(model, LoraShape(4, train_mlp=not has_experts, seed=1))
    assert not any("vision" in name for name in run.adapter.pairs)

    rows = [[(7 * row + 3 * place) % 250 + 4 for place in range(20 + row)] for row in range(3)]
    data = [
        Datum(row[:-1], {"target_tokens": torch.tensor(row[1:]), "weights": torch.ones(len(row) - 1)})
        for row in rows
    ]
    before, _ = run.forward_backward(data, "cross_entropy", {})
    run.step(AdamSettings(learning_rate=1e-2))
    after, logprobs = run.forward_backward(data, "cross_entropy", {}, backward=False)
    assert after < before
    for row, found in zip(rows, logprobs, strict=True):
        assert torch.allclose(found, scores(model, run.adapter, row), atol=1e-4)

    requests = [
        SampleRequest(row[:length], 12, seed=(length, 0), adapter=adapter)
        for row, length, adapter in zip(rows, (20, 5, 1), (run.adapter, None, run.adapter), strict=True)
    ]
    decoder = Decoder(model)
    decoder.add(requests[:2])
    decoder.step()
    decoder.add(requests[2:])
    while decoder.live:
        decoder.step()
    for request in requests:
        expected = scores(model, request.adapter, [*request.prompt, *request.tokens])
        assert request.logprobs == pytest.approx(expected[len(request.prompt) - 1 :].tolist(), abs=1e-4)

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    write_adapter(adapter, run.adapter.weights(), 4, str(folder))
    merged: Any = load_model(adapter)
    with torch.inference_mode():
        logits = merged(input_ids=torch.tensor([rows[0]]), use_cache=False).logits[0].log_softmax(-1)
    found = logits[torch.arange(len(rows[0]) - 1), torch.tensor(rows[0][1:])]
    assert torch.allclose(found, scores(model, run.adapter, rows[0]), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "falcon_h1",
            {**SMALL, **MAMBA, "mamba_d_ssm": 64},
            "cache of the kind LinearAttentionAndFullAttentionLayer",
        ),
        (
            "mamba2",
            {**SMALL, "num_heads": 8, "state_size": 8, "n_groups": 1, "expand": 2},
            "mamba2 cannot be sampled here" if HAS_STATES else "LinearAttentionLayer",
        ),
    ],
)
def test_a_family_that_is_not_served_is_refused_by_name_before_it_answers(
    kind: str, settings: dict[str, Any], message: str, tmp_path: Path, model_dir: Path
) -> None:
    model = LocalModel(make(kind, settings, tmp_path, model_dir), threads=1)
    with pytest.raises(UsageError, match=message):
        check_decoding(model)
