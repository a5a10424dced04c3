"""Tests of the learning rate that follows a model's size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.models.rates import policy_rates, rate_findings, rate_for


def make_folder(folder: Path, size: int, **config: str) -> str:
    """Write a model's config, and a sparse file of weights of a size in bytes; return the folder's path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(size)
    return str(folder)


def rate_of(*words: str, **options: str) -> tuple[float, bool]:
    """Return the learning rate of solver_judge's policy, and whether there is a warning about it."""
    plan = rg.load("solver_judge", *words, **options).plan
    (rate,) = policy_rates(plan).values()
    return rate.value, any(rate_findings(plan))


def test_the_rate_falls_with_the_root_of_the_number_of_parameters(tmp_path: Path) -> None:
    assert rate_of() == (0.002, False)
    assert [rate_for(n) for n in (1_000_000, 135_000_000, 8_000_000_000)] == [0.002, 0.00017, 2.2e-5]
    model = make_folder(tmp_path / "smol", 4 * 135_000_000, dtype="float32")
    assert rate_of(model=f"local:{model}") == (0.00017, False)
    half = make_folder(tmp_path / "half", 2 * 135_000_000, torch_dtype="bfloat16")
    assert rate_of(model=f"local:{half}") == (0.00017, False)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("Qwen/Qwen3-8B", 2.2e-5),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 1.2e-5),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.00017),
        ("meta-llama/Llama-3.2-1B", 6.3e-5),
        ("openai/gpt-oss-120b", 5.8e-6),
        ("moonshotai/Kimi-K2.6", 1e-4),
        ("v2m/abc", 1e-4),
    ],
)
def test_the_size_of_a_hosted_model_is_in_its_name(name: str, rate: float) -> None:
    assert rate_of(model=f"tinker:{name}") == (rate, False)


def test_a_folder_without_weights_gives_the_rate_of_an_unknown_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert rate_of(model=f"local:{tmp_path / 'empty'}") == (1e-4, False)
    (tmp_path / "empty" / "config.json").write_text("[1", encoding="utf-8")
    assert rate_of(model=f"local:{tmp_path / 'empty'}") == (1e-4, False)


@pytest.mark.parametrize(
    ("rate", "warned"), [("0.002", True), ("0.0017", False), ("0.00002", False), ("0.00001", True)]
)
def test_a_rate_that_is_ten_times_off_is_a_warning(tmp_path: Path, rate: str, warned: bool) -> None:
    model = make_folder(tmp_path / "smol", 4 * 135_000_000)
    assert rate_of(f"train.learning_rate={rate}", model=f"local:{model}") == (float(rate), warned)
