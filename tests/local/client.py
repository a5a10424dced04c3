"""Requests to the service through the SDK's own client, for several tests."""

from __future__ import annotations

from pathlib import Path

import tinker
import torch
from tinker import types

from rolegraph.local.launcher import LocalService

PROMPT = [5, 80, 90, 100, 110]
ADAM = types.AdamParams(learning_rate=1e-2)


def prompt(tokens: list[int] = PROMPT) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def sampler(client: tinker.ServiceClient, service: LocalService) -> tinker.SamplingClient:
    return client.create_sampling_client(base_model=service.model_name).result()


def trainer(
    client: tinker.ServiceClient, service: LocalService, rank: int = 8, seed: int = 1
) -> tinker.TrainingClient:
    return client.create_lora_training_client(base_model=service.model_name, rank=rank, seed=seed).result()


def plain_logprobs(model_dir: Path, tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Return log p(tokens[t] | tokens[:t]) for t > 0, computed by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return logprobs_of(model, tokens, temperature)


def logprobs_of(model: torch.nn.Module, tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Return log p(tokens[t] | tokens[:t]) for t > 0 under a model of transformers or peft."""
    with torch.inference_mode():
        logprobs = (model.eval()(torch.tensor([tokens])).logits[0] / temperature).log_softmax(-1)
    return [logprobs[t - 1, token].item() for t, token in enumerate(tokens) if t]


def datum(loss: str, tokens: list[int], weight: float = 1.0) -> types.Datum:
    inputs, targets = tokens[:-1], tokens[1:]
    length = len(inputs)
    extra = (
        {"weights": [weight] * length}
        if loss == "cross_entropy"
        else {"logprobs": [-2.0] * length, "advantages": [weight] * length}
    )
    tensors = {
        key: types.TensorData(data=value, dtype="float32", shape=[length]) for key, value in extra.items()
    }
    tensors["target_tokens"] = types.TensorData(data=targets, dtype="int64", shape=[length])
    return types.Datum(model_input=prompt(inputs), loss_fn_inputs=tensors)
