"""Tests of trainings that update on a Tinker service and sample from a server of vLLM or SGLang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.records import RunFolder, Step, read_episodes
from rolegraph.local.launcher import LocalService
from tests.local.client import logprobs_of
from tests.models.token_edge import TokenEdge, token_server
from tests.trainings import train

pytestmark = pytest.mark.service
SMALL = (
    "train.batch_size=2",
    "train.rollouts=4",
    "train.steps=2",
    "train.learning_rate=0.01",
    "sampling.max_tokens=48",
    "train.validation={every: 0, tasks: 1, rollouts: 1}",
)


@pytest.fixture(scope="module")
def server() -> Iterator[TokenEdge]:
    with token_server() as edge:
        yield edge


@pytest.fixture
def edge(server: TokenEdge) -> TokenEdge:
    server.bodies.clear()
    server.loads.clear()
    server.adapters.clear()
    server.processed, server.allows_loading = True, True
    return server


def steps_of(folder: Path, split: Literal["train", "validation"], step: int) -> list[Step]:
    episodes = read_episodes(RunFolder(folder).episodes_file(split, step))
    return [step for episode in episodes for one in episode.trajectories for step in one.steps]


@pytest.mark.parametrize("provider", ["vllm", "sglang"])
def test_each_update_is_loaded_and_sampled_from(
    edge: TokenEdge, provider: str, service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    place = f"train.sample_from={{provider: {provider}, base_url: {edge.base_url}}}"
    train(out, "solver_judge", *SMALL, place, service=service)
    places: list[tuple[Literal["train", "validation"], int]] = [("train", 1), ("train", 2), ("validation", 2)]
    assert [{step.weight_version for step in steps_of(out, *place)} for place in places] == [{0}, {1}, {2}]
    (name,) = edge.adapters
    assert re.fullmatch(r"run-[0-9a-f]{8}-main" + ("" if provider == "vllm" else "-2"), name)
    assert [*(out / "adapters").iterdir()] == [Path(edge.loads[-1]["lora_path"])]
    for step in steps_of(out, "validation", 2):
        tokens, prompt = [*step.prompt_ids, *step.response_ids], len(step.prompt_ids)
        models = (edge.adapters[name], edge.base)
        loaded, base = (logprobs_of(model, tokens)[prompt - 1 :] for model in models)
        assert [*step.logprobs] == pytest.approx(loaded, abs=1e-4)
        assert [*step.logprobs] != pytest.approx(base, abs=1e-2)


def test_a_server_that_loads_no_adapters_is_told(
    edge: TokenEdge, service: LocalService, tmp_path: Path
) -> None:
    edge.allows_loading = False
    place = f"train.sample_from={{provider: vllm, base_url: {edge.base_url}}}"
    with pytest.raises(rg.WorldError, match=r"cannot load an adapter: .*VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        train(tmp_path / "run", "solver_judge", *SMALL, place, service=service)


def test_only_a_server_that_loads_adapters_may_sample() -> None:
    with pytest.raises(rg.SpecError, match="openai does not load the adapters of a training"):
        rg.load("solver_judge", "train.sample_from=openai:gpt-5")
