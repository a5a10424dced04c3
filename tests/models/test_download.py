"""Tests of weights that are downloaded from a service."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolegraph as rg
from tests.models.tinker_edge import tinker_service


def test_a_path_of_the_service_s_own_machine_is_refused_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    theirs = tmp_path / "checkpoint"
    theirs.mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (theirs / file).write_text("{}")
    with tinker_service(lambda _: ([1], [0.0], "stop")) as service:
        service.downloads = theirs.as_uri()
        with pytest.raises(rg.WorldError, match=r"offers no download: it gave 'file:///.*own machine"):
            rg.export("tinker://run/weights/a", tmp_path / "out", base_url=service.base_url)
        saved = service.asked_for("save_weights_external")
    assert [body["path"] for body in saved] == ["export"]
    assert not (tmp_path / "out").exists()
