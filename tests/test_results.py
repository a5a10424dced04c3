"""Tests of benchmarks/results/: every arm is a valid spec, and the page says what is measured."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import results_tasks
from click.testing import CliRunner
from results import Job, best_constant, main
from results_page import WIDER, Findings, interval, minus, write_page
from results_tables import ALLOWED, HERE, OVER_STEPS, Run, Study
from starlette.responses import Response

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.shipped import SPECS
from tests.models.edges import chat_answer, serving
from tests.settled import settled

TABLES = sorted(file.stem for file in HERE.glob("*.yaml"))
CASES = [
    (size, table, arm)
    for table in TABLES
    for size in ("small", "tiny", "paper size")
    if size != "paper size" or Study(table, Path()).table.paper_size
    for arm in Study(table, Path()).table.arms
]


def faults(source: api.Source, backend: str | None = None) -> list[str]:
    return [str(fault) for fault in api.check_for(source, backend).diagnostics if fault.severity == "error"]


@pytest.mark.parametrize(("size", "table", "name"), CASES, ids="-".join)
def test_an_arm_and_all_its_evaluations_are_valid_specs(
    size: str, table: str, name: str, tmp_path: Path
) -> None:
    study = Study(table, tmp_path, tiny=size == "tiny", full=size == "paper size")
    for part in (study.table.arms[name], *study.evaluations(name).values()):
        if "textarena" in part.spec or "poker" in part.spec:
            pytest.importorskip("textarena")
        assert not faults(study.source(part, 0))
    if size == "paper size" and study.table.paper_size:
        backend = study.table.paper_size.rllm.get(name)
        assert not backend or not faults(study.source(study.table.arms[name], 0), backend)


def test_every_shipped_spec_is_trained_unchanged() -> None:
    arms = Study("shipped", Path()).table.arms
    assert sorted(arms) == sorted(arm.spec for arm in arms.values())
    assert sorted(arms) == sorted(file.stem for file in SPECS.glob("*.yaml"))
    # The tools of an MCP server are not here.
    assert [name for name, arm in arms.items() if arm.set] == ["react"]


def test_tables_that_train_the_same_spec_share_the_training(tmp_path: Path) -> None:
    def work(table: str, arm: str, seed: int = 0) -> str:
        study = Study(table, tmp_path)
        return study.work(study.table.arms[arm], seed)

    for table, arm, spec in [
        ("at_grpo", "shared", "plan_path"),
        ("debate", "margin", "debate"),
        ("debate", "judge", "solver_judge"),
        ("malt", "malt", "malt"),
        ("rllm", "ours", "solver_judge"),
        ("self_play", "self_play", "tic_tac_toe"),
    ]:
        assert work(table, arm) == work("shipped", spec)
        assert work(table, arm, 1) != work("shipped", spec)
    assert work("at_grpo", "single") != work("at_grpo", "single_ten")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_predicts_what_its_arms_measure(name: str) -> None:
    table = Study(name, Path()).table
    trained = [arm for arm, part in table.arms.items() if part.trainer != "none"]
    own = ["", "start", *table.tests, *(f"{test}.start" for test in table.tests), *table.metrics]
    own += ["constant", "greedy.start"] if table.label else []
    known = {*table.arms, *(f"{arm}.{figure}".rstrip(".") for arm in trained for figure in own)}
    assert table.minutes > 0
    assert table.model or {*table.equal_calls} <= {*table.expect}
    assert bool(table.papers) == bool(table.expect) == bool(table.paper_size)
    for words in {*table.expect, *table.equal_calls}:
        left, sign, right = words.split()
        assert sign in (">", "~")
        assert left in known
        assert right in known or float(right)
    assert all(function in OVER_STEPS for wanted in table.metrics.values() for function in wanted)


def measure(study: Study, arm: str, seed: int, **figures: float) -> None:
    """Keep a run whose figures vary by 0.04 over 16 tasks, each figure in its own way."""
    values: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        offsets = [0.02, -0.02] * 8
        random.Random(f"{arm}{name}").shuffle(offsets)
        values[name.strip("_")] = {f"{task}": value + offset for task, offset in enumerate(offsets)}
    figures_of_cost: dict[str, Any] = {"minutes": 1.5, "calls": 10, "tokens": 100}
    study.keep(Run(arm=arm, seed=seed, work="", overrides=(), values=values, **figures_of_cost))


def compare(study: Study, *pairs: tuple[float, float]) -> str:
    """Measure both arms of c3 with these figures, seed by seed, and return whether one beats the other."""
    for seed, (counterfactual, team) in enumerate(pairs):
        measure(study, "counterfactual", seed, _=counterfactual, start=0.2)
        measure(study, "team", seed, _=team, start=0.2)
    return str(Findings(study).compared("counterfactual > team").verdict)


def test_a_comparison_holds_if_the_interval_leaves_0_out(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    assert not Findings(study).measured
    assert compare(study, (0.6, 0.4)) == "cannot tell"  # one training says nothing about the next
    assert compare(study, (0.6, 0.4), (0.6, 0.42), (0.6, 0.38)) == "holds"
    assert Findings(study).verdict == "holds (2 of 2, 3 seeds)"
    assert compare(study, (0.6, 0.4), (0.6, 0.7), (0.6, 0.3)) == "cannot tell"
    assert Findings(study).verdict == "cannot tell (1 of 2, 3 seeds)"
    assert compare(study, (0.4, 0.6), (0.4, 0.58), (0.4, 0.62)) == "does not hold"
    assert Findings(study).verdict == "does not hold (1 of 2, 3 seeds)"


def test_seeds_are_added_three_at_a_time_until_a_comparison_is_decided(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    unlike = [(0.6, 0.6 + gap) for gap in (0.1, -0.1, 0.05)]
    alike = [(0.6, 0.6 + gap) for gap in (0.004, -0.004, 0.0)]
    assert compare(study, *unlike) == "cannot tell"
    assert Findings(study).undecided == ["counterfactual", "team"]
    assert compare(study, *unlike, (0.6, 0.9)) == "cannot tell"
    before, after = (Findings(study).compared("counterfactual > team").over for _ in range(2))
    assert before == after, "the fourth seed waits for the sixth"
    assert compare(study, *alike) == "no difference above 0.03"
    measure(study, "team", 3, _=0.1)
    assert Findings(study).undecided == []
    assert Findings(study).sentence == "There is no difference above 0.03 (1 of 2, 3 seeds)."


def test_a_comparison_keeps_the_verdict_of_the_look_that_decided_it(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    first = [(0.6, 0.4), (0.6, 0.42), (0.6, 0.38)]
    assert compare(study, *first, (0.2, 0.6), (0.9, 0.2), (0.1, 0.6)) == "holds"
    assert Findings(study).compared("counterfactual > team").seeds == 3


def test_further_seeds_are_for_the_arms_of_open_comparisons(tmp_path: Path) -> None:
    study = Study("at_grpo", tmp_path)
    for seed, spread in enumerate((-0.01, 0.0, 0.01)):
        for arm in study.table.arms:
            measure(study, arm, seed, _=0.2 + spread)
        measure(study, "shared", seed, _=0.9 + spread, start=0.1)
        measure(study, "per_role", seed, _=0.5 + 30 * spread)
    # per_role is held against `apart`, which takes its weights from two trainings, and against `swapped`.
    assert Findings(study).undecided == ["per_role", "planner_alone", "walker_alone", "apart", "swapped"]


def test_the_intervals_of_a_claim_are_wider_than_those_of_one_look(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    compare(study, (0.6, 0.4), (0.6, 0.42), (0.6, 0.38))
    found = Findings(study)
    over = found.compared("counterfactual > team").over
    once = interval(minus(found.values("counterfactual"), found.values("team")), difference=True)
    assert over.mean == pytest.approx(once.mean)
    assert over.high - over.low == pytest.approx(WIDER * (once.high - once.low))


def test_a_decided_claim_takes_no_further_seed(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    compare(study, (0.6, 0.4), (0.6, 0.42), (0.6, 0.38))
    for (arm, seed), run in study.runs().items():
        study.keep(run.model_copy(update={"work": study.work(study.table.arms[arm], seed)}))
    done = CliRunner().invoke(main, ["c3", "--out", str(tmp_path)])
    assert done.exit_code == 0 and "c3: decided with 3 seeds" in done.output
    assert len(study.runs()) == 6


def test_two_figures_are_alike_if_the_interval_lies_near_0(tmp_path: Path) -> None:
    study = Study("rllm", tmp_path)
    for rllm, verdict in [(0.55, "holds"), (0.8, "does not hold"), (0.61, "cannot tell")]:
        for seed, spread in enumerate((-0.005, 0, 0.005)):
            measure(study, "ours", seed, first=0.3, last=0.5)
            measure(study, "rllm", seed, first=0.3, last=rllm + spread)
        assert Findings(study).compared("ours.last ~ rllm.last").verdict == verdict


def test_the_page_leaves_out_what_is_not_measured(tmp_path: Path) -> None:
    study = Study("c3", tmp_path)
    measure(study, "team", 0, _=0.5, start=0.25)
    write_page([study, Study("malt", tmp_path)], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert re.findall("^## (.*)", text, re.MULTILINE) == ["Not measured yet"]
    assert "Credit from counterfactuals (`c3`), Generator, verifier, refiner (`malt`)" in text
    measure(study, "counterfactual", 0, _=0.6, start=0.25)
    write_page([study, Study("malt", tmp_path)], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "We cannot tell (0 of 2, 1 seed)." in text
    assert "the trained team beats" not in text
    low, high = re.findall(r"0\.250 → 0\.500 \[(0\.\d+),\N{NO-BREAK SPACE}(0\.\d+)\]", text)[0]
    assert float(low) < 0.5 < float(high)
    assert (tmp_path / "page_c3.svg").read_text("utf-8").startswith("<svg")
    assert not (tmp_path / "page_malt.svg").exists()


def test_the_page_counts_the_teams_that_beat_a_single_role(tmp_path: Path) -> None:
    study = Study("debate", tmp_path)
    for seed in study.table.seeds:
        for arm, right in {"margin": 0.7, "outcome": 0.6, "majority_six": 0.5, "judge": 0.4}.items():
            measure(study, arm, seed, _=right, start=0.2)
        measure(study, "majority_three", seed, _=0.5, start=0.2)
    write_page([study], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "the trained team beats the trained single role in 1 of 2 settings." in text


def test_a_shipped_spec_rises_in_the_seeds_that_leave_the_interval_of_their_start(tmp_path: Path) -> None:
    study = Study("shipped", tmp_path)
    for seed, after in enumerate((0.5, 0.2, 0.6)):
        measure(study, "router", seed, _=after, start=0.2)
        measure(study, "malt", seed, _=0.9, start=0.2)
    write_page([study], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert re.search(r"^\| `router` \| `correct` \|.*\| 2 of 3 \|", text, re.MULTILINE)
    assert "**1 of 21 specs rose in all their seeds.** 6 of 63 trainings are measured. The longest" in text
    assert "Not measured yet: `best_of_n`," in text


def test_a_table_of_a_real_model_says_what_is_measured_and_what_is_missing(tmp_path: Path) -> None:
    study = Study("smollm2", tmp_path)
    for seed, after in enumerate((0.8, 0.82, 0.78)):
        measure(study, "judge", seed, _=after, start=0.3, constant=0.1)
        measure(study, "solver", seed, _=after, start=0.3, constant=0.8)
        measure(study, "facts_three", seed, _=0.5, start=0.3)
    write_page([study, Study("shipped", MEASURED)], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert re.findall("^## (.*)", text, re.MULTILINE)[0] == study.table.title
    rows = {line.split("`")[1]: line.split(" | ") for line in text.splitlines() if line.startswith("| `")}
    assert rows["judge"][4] == "holds"
    assert rows["solver"][4] == "cannot tell"  # no better than always saying the same
    assert rows["judge"][5:8] == ["0.500 (`facts_three`)", rows["judge"][6], "3"]
    assert rows["judge"][6].endswith(", holds")
    assert "facts_three" not in rows  # its figure stands beside its team's
    assert "9 of 30 trainings are measured" in text
    assert f"results.py smollm2    # {study.table.minutes:.0f} minutes a seed" in text  # an estimate
    assert "`router` (0, 1, 2)" in text
    assert "`judge` (" not in text


def test_the_best_constant_answer_is_the_commonest_label() -> None:
    tasks = {"a": "7", "b": 8, "c": "8", "d": "9"}
    episodes = [rg.Episode(task, 0, {"answer": answer}, ()) for task, answer in tasks.items()]
    assert best_constant(episodes, "answer") == {"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0}


def test_the_tables_of_tasks_are_those_that_the_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_tasks, "FOLDER", tmp_path)
    results_tasks.main()
    questions: dict[str, set[str]] = {}
    for file in tmp_path.iterdir():
        assert (HERE / "specs" / file.name).read_bytes() == file.read_bytes()
        questions[file.stem] = {json.loads(line)["question"] for line in file.read_text("utf-8").splitlines()}
    for table in ("facts", "sums", "mixed"):
        assert not questions[f"{table}_test"] & questions[f"{table}_train"]


@pytest.mark.parametrize("route", ["reader", "calculator"])
def test_an_expert_of_the_router_is_right_on_its_own_tasks_alone(route: str) -> None:
    removed = [f"roles.router.{key}=null" for key in ("prompt", "examples", "parser", "reward", "estimator")]
    file = HERE / "specs" / "tool_router.yaml"

    async def answered() -> list[rg.Episode]:
        async with rg.load(file, *removed, f"roles.router.run={{text: {route}}}").open() as opened:
            return [episode async for episode in opened.stream("validation", limit=48)]

    # The page computes the figure of the best constant route from the labels.
    for episode in asyncio.run(answered()):
        assert episode.is_correct == (episode.task["route"] == route)


def test_the_sweep_names_the_setting_that_suits_all(tmp_path: Path) -> None:
    study = Study("sweep", tmp_path)
    for setting in study.table.settings:
        for arm in ("solver_judge", "plan_path", "tic_tac_toe"):
            rise = {"rate_1e-3": 0.3, "rate_4e-3": 0.6 if arm == "plan_path" else 0.0}.get(setting, 0.1)
            measure(study, f"{arm}@{setting}", 0, _=0.2 + rise, start=0.2)
    write_page([study], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "**`train.learning_rate=0.001` suits all best**: each workflow rises by at least 50% of" in text


MEASURED, PAGE = HERE.parent / "measured", HERE.parent.parent / "docs" / "results.md"


@pytest.mark.parametrize("table", sorted(file.stem for file in MEASURED.glob("*.jsonl")))
def test_what_is_measured_is_of_the_specs_and_the_model_as_they_are(table: str) -> None:
    study = Study(table, MEASURED)
    assert [*study.runs()] == sorted(study.runs())
    for (arm, seed), run in study.runs().items():
        assert seed in study.table.seeds
        assert run.work == study.work(study.table.arms[arm], seed), f"measure {arm}, seed {seed} again"


def test_the_page_of_results_is_made_of_what_is_measured(tmp_path: Path) -> None:
    write_page([Study(file.stem, MEASURED) for file in sorted(HERE.glob("*.yaml"))], tmp_path / PAGE.name)
    for file in tmp_path.iterdir():
        assert (PAGE.parent / file.name).read_bytes() == file.read_bytes(), "write docs/results.md again"


@pytest.mark.service
@pytest.mark.usefixtures("lasting_services")
def test_a_run_is_made_once_and_only_for_its_own_spec(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    study = Study("c3", tmp_path, tiny=True)
    for arm in ("counterfactual", "team"):
        Job(study, arm, 0).run()
    counterfactual, team = (study.runs()[arm, 0] for arm in ("counterfactual", "team"))
    assert counterfactual.calls == 2 * 2 * 5  # tasks, rollouts, a plan and its four answers
    assert team.calls == 2 * 2 * 2
    assert counterfactual.calls_per_episode == team.calls_per_episode == 2
    for run in (counterfactual, team):
        assert run.values.keys() >= {"", "start"}
        assert len(run.values[""]) == len(run.values["start"]) == 2

    def written() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in settled(tmp_path) if ".json" in file.suffix}

    kept = written()
    Job(study, "team", 0).run()
    assert written() == kept
    study.file.write_text(f"{team.model_dump_json()}\n")
    for file in settled(tmp_path):
        if file.name != "run.json":
            continue
        # Code that the spec names is in other words since.
        file.write_text(re.sub('"hash": "[0-9a-f]+"', '"hash": "1"', file.read_text("utf-8")), "utf-8")
    Job(study, "counterfactual", 0).run()  # finished folders are read as they are
    assert study.runs()["counterfactual", 0] == counterfactual
    with pytest.raises(rg.UsageError, match="is of another spec or model"):
        Job(Study("c3", tmp_path), "team", 0).run()


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
            return [episode async for episode in opened.stream("validation", limit=5)]

    with serving(first_legal) as endpoint, patch.dict(os.environ, OPENAI_API_KEY="key"):
        episodes = asyncio.run(play(endpoint.base_url))
    assert not [t.failure for episode in episodes for t in episode.trajectories if t.failure]
    endings = {str(episode.metadata["environment"]["reason"]) for episode in episodes}
    assert all("three in a row" in reason or "chips" in reason or reason == "draw" for reason in endings)
    if spec == "against_perfect":
        assert "X has three in a row" not in endings
