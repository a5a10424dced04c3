"""Test of two roles on two base models, each with a separate service, adapter and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.records.folder import RunFolder
from rolegraph.local.launcher import BASE_MODEL, LocalService
from tests.local.conftest import make_model
from tests.trainings import STEP, train

pytestmark = pytest.mark.service


def width_of(model: Path) -> int:
    return json.loads((model / "config.json").read_text())["hidden_size"]


def widths(adapter: Path) -> set[int]:
    from safetensors.torch import load_file

    return {size for tensor in load_file(adapter).values() for size in tensor.shape}


@pytest.mark.usefixtures("lasting_services")
def test_policies_of_two_bases_are_trained_and_evaluated_together(
    service: LocalService, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_model(tmp_path / "other")
    words = [
        f"policies.judge.model={{provider: local, name: '{other}'}}",
        "roles.judge.prompt='{{ solver[0].index }}'",
        "sampling.max_tokens=12",
    ]
    for role in ("solver", "judge"):
        words += [f"roles.{role}.reward={{length: {{under: 9999}}}}", f"roles.{role}.estimator=reinforce"]
        words += [f"roles.{role}.parser=text"]
    trained = train(tmp_path / "run", "two_policies", *STEP, *words, service=service)
    saved = RunFolder(trained.folder).checkpoints()[-1].policies
    assert {name: policy.version for name, policy in saved.items()} == {"solver": 1, "judge": 1}
    kept = {"solver": state_dir, "judge": trained.folder / "weights"}
    for role, base in (("solver", BASE_MODEL), ("judge", other)):
        assert abs(RunFolder(trained.folder).metrics()[-1][f"optim/loss/{role}"]) > 0
        path = kept[role] / saved[role].sampler.removeprefix("tinker://").replace(":", "_")
        assert width_of(base) in widths(path / "adapter_model.safetensors"), "the adapter is of its own base"
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    for role, base in (("solver", BASE_MODEL), ("judge", other)):
        assert width_of(base) in widths(rg.export(trained.folder, policy=role) / "adapter_model.safetensors")
        assert width_of(base) == width_of(rg.export(trained.folder, policy=role, merged=True))
    flow = rg.load("two_policies", *STEP, *words, base_url=service.base_url)
    found = rg.evaluate(flow, trained.folder, tasks=1, rollouts=1)
    assert {"reward/solver", "reward/judge"} <= found.figures.keys()
