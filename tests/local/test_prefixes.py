"""Tests that prefix sharing gives the same log-probabilities as each sequence alone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.lora import LoraAdapter, LoraShape  # noqa: E402
from rolegraph.local.service.prefixes import MAX_ROW, rows_of  # noqa: E402


@pytest.fixture(scope="module")
def model(model_dir: Path) -> LocalModel:
    return LocalModel(model_dir, threads=1)


def rollouts(seed: int, prompts: int = 4, samples: int = 6) -> list[list[int]]:
    """Draw several answers to each of several prompts, some of them equal, in any order."""
    chance = random.Random(seed)
    found: list[list[int]] = []
    for _ in range(prompts):
        prompt = [0, *(chance.randrange(4, 9) for _ in range(chance.randint(1, 40)))]
        found += [
            prompt + [chance.randrange(4, 7) for _ in range(chance.randint(0, 30))] for _ in range(samples)
        ]
        found.append(list(prompt))
    chance.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_sequence_is_in_its_row_as_it_was(seed: int) -> None:
    sequences = rollouts(seed)
    rows = rows_of(sequences, share=True)
    assert sorted(number for row in rows for number in row.numbers) == list(range(len(sequences)))
    assert sum(map(len, rows)) < sum(map(len, sequences)) * 0.7
    for row in rows:
        for number, path in zip(row.numbers, row.paths, strict=True):
            assert [row.tokens[place] for place in path] == sequences[number]
            assert [row.positions[place] for place in path] == list(range(len(path)))


def test_long_sequences_share_a_row_only_where_that_saves_work() -> None:
    prompt = list(range(1000))
    assert len(rows_of([[*prompt, 1], [*prompt, 2]], share=True)) == 1
    assert len(rows_of([[*prompt, 1], [7, *prompt]], share=True)) == 2
    assert all(len(row) <= MAX_ROW for row in rows_of([prompt + [n] * 700 for n in range(9)], share=True))


def test_no_sequence_is_added_to_a_row_beyond_the_tokens_of_a_pass() -> None:
    sequences = [[*range(100), 200 + n, 300 + n] for n in range(9)]
    assert [len(row) for row in rows_of(sequences, share=True, most=110)] == [110, 108]
    assert [len(row) for row in rows_of(sequences, share=True, most=50)] == [102] * 9


def both(
    model: LocalModel, adapter: LoraAdapter | None, sequences: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all sequences' log-probabilities by `LocalModel.logprobs` and by a plain pass over each."""
    targets = [torch.tensor([*tokens[1:], 5]) for tokens in sequences]
    ours: dict[int, torch.Tensor] = {}
    for numbers, found in model.logprobs(adapter, sequences, targets, 300):
        ours |= zip(numbers, found.split([len(targets[number]) for number in numbers]), strict=True)
    alone: list[torch.Tensor] = []
    for tokens, target in zip(sequences, targets, strict=True):
        with model.adapted([adapter]) as module:
            logits = module(input_ids=torch.tensor([tokens])).logits[0]
        alone.append(logits.log_softmax(-1).gather(-1, target[:, None])[:, 0])
    return torch.cat([ours[number] for number in range(len(sequences))]), torch.cat(alone)


def test_logprobs_and_gradients_are_those_of_each_sequence_alone(model: LocalModel) -> None:
    assert model.can_share_rows
    one = model.add_adapter(LoraShape(4, seed=1))
    torch.manual_seed(1)
    one.set_weights({key: torch.randn_like(w) * 0.1 for key, w in one.weights().items()})
    for adapter in (None, one):
        ours, alone = both(model, adapter, rollouts(5))
        assert torch.allclose(ours, alone, atol=1e-5)
    parameters = [*one.tensors.values()]
    weights = torch.randn(len(ours))
    pairs = [torch.autograd.grad((weights * values).sum(), parameters) for values in (ours, alone)]
    for one, other in zip(*pairs, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_a_model_that_looks_back_a_few_tokens_only_shares_nothing(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    folder = tmp_path_factory.mktemp("mistral")
    for file in model_dir.glob("*token*"):
        shutil.copy(file, folder)
    config = MistralConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        max_position_embeddings=256,
    )
    MistralForCausalLM(config).save_pretrained(folder)
    model = LocalModel(folder, threads=1)
    assert not model.can_share_rows
    with torch.inference_mode():
        ours, alone = both(model, None, rollouts(6, prompts=2))
    assert torch.allclose(ours, alone, atol=1e-5)
