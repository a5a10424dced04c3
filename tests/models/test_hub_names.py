"""Tests of the names at the hub that exported weights give their base model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.shipped import MODELS, hub_name, model_folder

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_a_fetched_model_has_the_hub_s_name_and_is_found_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    known, other = tmp_path / "rolegraph" / "smollm2-135m", tmp_path / "rolegraph" / "org--tiny"
    assert hub_name(known) == HUB
    assert hub_name(other) == "org/tiny"
    assert hub_name(MODELS["rolegraph-base"]) is None
    assert hub_name(tmp_path / "mine") is None
    assert model_folder(HUB) == Path(HUB), "not fetched"
    for folder, name in ((known, HUB), (other, "org/tiny")):
        folder.mkdir(parents=True)
        assert model_folder(name) == folder
