"""Tests of `rolegraph forecast`, and of its figures against the first step of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rolegraph.engine.records.folder import RunFolder
from tests.cli.conftest import Command
from tests.trainings import key

if TYPE_CHECKING:
    from rolegraph.local.launcher import LocalService

SIZE = ("train.batch_size=5", "train.rollouts=1", "roles.solver.estimator=reinforce")


def test_the_bounds_hold_what_a_replayed_run_did(rolegraph: Command, recording: Path, tmp_path: Path) -> None:
    told = json.loads(rolegraph("forecast", "solver_judge", *SIZE, "--json").stdout)
    words = ("run", "solver_judge", *SIZE, "--limit", "5", "--model", f"replay:{recording}", "--out", "out")
    ran = json.loads(rolegraph(*words, "--json").stdout)
    calls = sum(role["calls"] for role in ran["roles"].values())
    assert ran["episodes"] == told["episodes"] == 5
    assert calls <= told["calls_at_most"] == 15
    for name, role in ran["roles"].items():
        assert role["calls"] <= told["roles"][name]["calls_at_most"]
        assert role["response_tokens"] <= told["roles"][name]["response_tokens_at_most"]


def test_a_forecast_from_a_run_says_what_it_costs_and_teaches(
    rolegraph: Command, recording: Path, tmp_path: Path
) -> None:
    rolegraph("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "out")
    done = rolegraph("forecast", "solver_judge", *SIZE, "--from", "out", "--price", "in=1,out=2")
    assert done.returncode == 0, done.stderr
    assert "5 tasks × 1 rollouts = 5 episodes" in done.stdout
    assert "estimated from out" in done.stdout and "cost: about $0.00" in done.stdout
    assert "next: rolegraph train solver_judge train.batch_size=5" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--price", "inn=3"), "--price: 'inn=3' is not a price; expected in=N, out=N or train=N"),
        (("--price", "in=much"), "--price: 'in=much' is not a price"),
        (("--from", "nowhere"), "there is no folder nowhere"),
        (("--from", "out", "--probe", "4"), "either a probe or a run, not both"),
    ],
)
def test_what_cannot_be_told_is_said(rolegraph: Command, words: tuple[str, ...], message: str) -> None:
    done = rolegraph("forecast", "solver_judge", *words)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.service
def test_a_probe_tells_the_tokens_of_the_first_step(
    rolegraph: Command, service: LocalService, tmp_path: Path
) -> None:
    spec = ("solver_judge", "train.batch_size=8", "train.rollouts=4", "train.steps=1")
    where = ("--base-url", service.base_url)
    probe = rolegraph("forecast", *spec, *where, "--probe", "32", "--seed", "5", "--json", **key(service))
    told = json.loads(probe.stdout)
    none = "train.validation={every: 0, tasks: 1, rollouts: 1}"
    trained = rolegraph("train", *spec, none, *where, "--out", "out", "-q", **key(service))
    assert trained.returncode == 0, trained.stderr
    after = rolegraph("forecast", *spec, "--from", "out", "--json")
    came = json.loads(after.stdout)
    for kind in ("prompt_tokens", "response_tokens"):
        assert told[kind] == pytest.approx(came[kind], rel=0.2)
    for name, row in told["roles"].items():
        at_once = came["roles"][name]
        assert 0 <= row["teaching"]["mean"] <= 1 and row["teaching"]["n"] == 8
        assert at_once["group_sizes"] == row["group_sizes"]
        (step,) = (line for line in RunFolder(tmp_path / "out").metrics() if line["step"] == 1)
        assert at_once["share"] == pytest.approx(step[f"optim/share/{name}"], rel=1e-3)
        assert at_once["teaching"]["mean"] == pytest.approx(step[f"outcome/{name}/taught"])
