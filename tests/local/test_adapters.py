"""Adapters on one model: memory of many, and independence of each."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.service.adapters import write_adapter  # noqa: E402
from rolegraph.local.service.local_model import LocalModel, LoraAdapter, LoraShape  # noqa: E402
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
