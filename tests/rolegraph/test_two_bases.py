"""Two roles that learn from two base models: each has a service, an adapter and checkpoints of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from engine.records.folder import RunFolder
from tests.local.conftest import make_model
from tests.trainings import STEP

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]
WIDTHS = {"solver": 32, "judge": 64}


def test_policies_of_two_bases_are_trained_and_evaluated_together(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    words = ["sampling.max_tokens=12", "roles.judge.prompt={inline: '{{ solver[0].index }}'}"]
    for role, width in WIDTHS.items():
        folder = make_model(tmp_path / role, seed=width, width=width)
        words += [f"policies.{role}.model={{provider: local, name: '{folder}'}}"]
        words += [
            f"roles.{role}.reward={{length: {{under: 9999}}}}",
            f"roles.{role}.estimator=reinforce",
            f"roles.{role}.parser=text",
        ]
    flow = rg.load("two_policies", *STEP, *words)
    trained = rg.train(flow, out=tmp_path / "run")
    saved = RunFolder(trained.folder).checkpoints()[-1].policies
    assert {name: policy.version for name, policy in saved.items()} == {"solver": 1, "judge": 1}
    for role, policy in saved.items():
        assert abs(trained.metrics[-1][f"optim/loss/{role}"]) > 0
        kept = trained.folder / "weights" / policy.sampler.removeprefix("tinker://").replace(":", "_")
        shapes = {
            size for tensor in load_file(kept / "adapter_model.safetensors").values() for size in tensor.shape
        }
        assert WIDTHS[role] in shapes, "the adapter is of the role's own base"
    found = rg.evaluate(flow, trained.folder, tasks=1, rollouts=1)
    assert {"reward/solver", "reward/judge"} <= found.figures.keys()
    # Other weights answer, and by each policy's own service.
    assert len({policy.sampler for policy in saved.values()}) == 2
