"""Tests of benchmarks/results/: every arm is a valid spec, and the page says what is measured."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from results import Job
from results_page import UNMEASURED, Findings, write_page
from results_tables import ALLOWED, HERE, OVER_STEPS, Run, Study
from starlette.responses import Response

import rolegraph as rg
from tests.models.edges import chat_answer, serving

TABLES = sorted(file.stem for file in HERE.glob("*.yaml"))
ARMS = [(table, arm) for table in TABLES for arm in Study(table, Path()).table.arms]


def faults(source: rg.Source, backend: str | None = None) -> list[str]:
    return [str(fault) for fault in rg.check_for(source, backend).diagnostics if fault.severity == "error"]


@pytest.mark.parametrize("options", [{}, {"tiny": True}, {"full": True}], ids=["small", "tiny", "paper size"])
@pytest.mark.parametrize(("table", "name"), ARMS, ids="/".join)
def test_an_arm_and_all_its_evaluations_are_valid_specs(
    table: str, name: str, options: dict[str, bool], tmp_path: Path
) -> None:
    study = Study(table, tmp_path, **options)
    for part in (study.table.arms[name], *study.evaluations(name).values()):
        if "textarena" in part.spec or "poker" in part.spec:
            pytest.importorskip("textarena")
        assert not faults(study.source(name, part, 0))
    if backend := study.table.paper_size.rllm.get(name):
        assert not faults(study.source(name, study.table.arms[name], 0), backend)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_predicts_what_its_arms_measure(name: str) -> None:
    table = Study(name, Path()).table
    trained = [arm for arm, part in table.arms.items() if part.trainer != "none"]
    own = ["", "start", *table.tests, *(f"{test}.start" for test in table.tests), *table.metrics]
    known = {*table.arms, *(f"{arm}.{figure}".rstrip(".") for arm in trained for figure in own)}
    for words in table.expect:
        left, sign, right = words.split()
        assert sign in (">", "~")
        assert left in known
        assert right in known or float(right)
    assert all(function in OVER_STEPS for wanted in table.metrics.values() for function in wanted)


def measure(study: Study, arm: str, seed: int, **figures: float) -> None:
    """Write the JSON file of a run whose figures are the same on each of four tasks."""
    values = {name.strip("_"): dict.fromkeys("abcd", value) for name, value in figures.items()}
    study.folder.mkdir(parents=True, exist_ok=True)
    run = Run(hash="", overrides=(), values=values, minutes=1.5, calls=10, tokens=100)
    study.place(arm, seed).with_suffix(".json").write_text(run.model_dump_json())


def test_a_claim_holds_if_every_seed_agrees_beyond_the_interval(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    assert Findings(study).verdict == UNMEASURED
    for seed, team in enumerate((0.4, 0.5, 0.3)):
        measure(study, "counterfactual", seed, _=0.6, start=0.2)
        if seed == 0:
            assert Findings(study).verdict == UNMEASURED
        measure(study, "team", seed, _=team, start=0.2)
        few = "" if seed == 2 else f", {seed + 1} of 3 seeds"
        assert Findings(study).verdict == f"holds (2 of 2{few})"
    measure(study, "team", 1, _=0.7, start=0.2)
    assert Findings(study).verdict == "does not hold (1 of 2)"


def test_the_page_says_what_is_not_measured_yet(tmp_path: Path) -> None:
    study, other = Study("c3", tmp_path), Study("malt", tmp_path)
    measure(study, "team", 0, _=0.5, start=0.25)
    write_page([study, other], tmp_path / "page.md")
    measured, unmeasured = (tmp_path / "page.md").read_text("utf-8").split("\n## ")[1:]
    assert "0.500 [0.500, 0.500]" in measured
    assert "0.250 [0.250, 0.250]" in measured
    assert f"**Here: {UNMEASURED}.**" in measured
    assert f"**Here: {UNMEASURED}.**" in unmeasured
    assert (tmp_path / "page_c3.svg").read_text("utf-8").startswith("<svg")
    assert not (tmp_path / "page_malt.svg").exists()


@pytest.mark.service
def test_a_run_is_made_once_and_only_for_its_own_spec(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    study = Study("dr_mas", tmp_path, tiny=True)
    Job(study, "by_role", 0).run()
    (run,) = study.runs("by_role").values()
    assert run.calls == 2 * 2 * 2  # tasks, rollouts, rounds
    assert run.calls_per_episode == 2
    assert run.values.keys() >= {"", "start"}
    assert len(run.values[""]) == len(run.values["start"]) == 2
    file = study.place("by_role", 0).with_suffix(".json")
    written = file.stat().st_mtime_ns
    Job(study, "by_role", 0).run()
    assert file.stat().st_mtime_ns == written
    with pytest.raises(rg.UsageError, match="is of another spec"):
        Job(Study("dr_mas", tmp_path), "by_role", 0).run()


def first_legal(body: dict[str, Any]) -> Response:
    """Answer with the first free cell, or the first legal action, of a prompt."""
    text = body["messages"][-1]["content"]
    legal = re.findall(r"Free cells: (\d)|available actions are: '(\[\w+\])'", text)[-1]
    return chat_answer(f"<answer>{''.join(legal)}</answer>")


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        ("against_random", ()),
        # Two random moves may have lost the game already.
        ("against_perfect", ("loops.play.env={tic_tac_toe: {opening: 1}}", "loops.play.times=8")),
        ("poker_against_random", ()),
    ],
)
def test_a_fixed_player_plays_by_the_rules(spec: str, overrides: tuple[str, ...]) -> None:
    pytest.importorskip("pydantic_monty")
    pytest.importorskip("textarena" if "poker" in spec else "rolegraph")

    async def play(url: str) -> list[rg.Episode]:
        file = HERE / "specs" / f"{spec}.yaml"
        flow = rg.load(file, *overrides, model="openai:scripted", base_url=url, allow=ALLOWED)
        async with flow.open() as opened:
            return [episode async for episode in opened.stream("validation", limit=12)]

    with serving(first_legal) as endpoint, patch.dict(os.environ, OPENAI_API_KEY="key"):
        episodes = asyncio.run(play(endpoint.base_url))
    assert not [t.failure for episode in episodes for t in episode.trajectories if t.failure]
    endings = {str(episode.metadata["environment"]["reason"]) for episode in episodes}
    assert all("three in a row" in reason or "chips" in reason or reason == "draw" for reason in endings)
    if spec == "against_perfect":
        assert "X has three in a row" not in endings
