"""Test of `rolegraph eval --greedy`: both sides at temperature 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(("more", "rollouts"), [((), 1), (("--rollouts", "3"), 3)])
def test_every_role_is_asked_at_temperature_0_and_once(
    rolegraph: Command, more: tuple[str, ...], rollouts: int, tmp_path: Path
) -> None:
    model = ("--model", "tinker:x", "--base-url", "http://127.0.0.1:9", "--checkpoint", "tinker://a/b")
    words = ("eval", "mixture_of_agents", "-m", "train.steps=1,2", "--greedy", "--out", "sweep")
    assert rolegraph(*words, *model, *more).returncode == 2, "no key"
    record = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert record["overrides"] == ["train.steps=1,2", "sampling.temperature=0"]
    assert record["rollouts"] == rollouts
