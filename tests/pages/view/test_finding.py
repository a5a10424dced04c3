"""Tests of the search for episodes by role, failure, reward, task and text, with pages and growing files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.errors import DataError, SpecError, UsageError
from rolegraph.engine.records import Episode, RunFolder
from rolegraph.engine.records.episodes import EpisodeWriter
from rolegraph.pages.view.finding import PAGE, EpisodeFilter, find, neighbours
from rolegraph.pages.view.runs import ViewedRun, open_run
from tests.pages.report.runs import rollout
from tests.pages.view.runs import episodes, workflow, write_run, write_training


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ViewedRun:
    return open_run(write_run(tmp_path_factory.mktemp("finding") / "run", tasks=6))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> ViewedRun:
    return open_run(write_training(tmp_path_factory.mktemp("finding") / "training", steps=3))


def ids(run: ViewedRun, **written: str) -> list[str]:
    rows = find(run, EpisodeFilter.of(written), most=1000).rows
    return [f"{row.entry.task}:{row.entry.rollout}" for row in rows]


Fits = Callable[[Episode], bool]
FILTERS: list[tuple[dict[str, str], Fits]] = [
    ({"role": "judge"}, lambda e: True),
    ({"role": "nobody"}, lambda e: False),
    ({"failure": "any"}, lambda e: any(t.failure for t in e.trajectories)),
    ({"role": "judge", "failure": "any"}, lambda e: any(t.failure for t in e["judge"])),
    (
        {"failure": "malformed_output"},
        lambda e: any(t.failure and t.failure.name.value == "malformed_output" for t in e.trajectories),
    ),
    ({"correct": "yes"}, lambda e: e.is_correct),
    ({"correct": "no"}, lambda e: not e.is_correct),
    ({"role": "solver", "low": "1"}, lambda e: any((t.reward or 0) >= 1 for t in e["solver"])),
    ({"role": "judge", "low": "0", "high": "0.5"}, lambda e: e["judge"][0].reward == 0),
    ({"task": "t1"}, lambda e: "t1" in e.task_id),
    ({"text": "task 2: MAKE"}, lambda e: "Task 2: make" in e.task["question"]),
    ({"text": "3 * 4"}, lambda e: any("3 * 4" in s.model_response for t in e.trajectories for s in t.steps)),
    (
        {"text": "💡 …\n<answer>3 +"},
        lambda e: "💡 …\n<answer>3 +" in "".join(t.steps[0].model_response for t in e["solver"]),
    ),
    ({"text": "logprobs"}, lambda e: False),
    (
        {"where": "not judge.right and any(solver.right)"},
        lambda e: not e["judge"][0].is_correct and any(t.is_correct for t in e["solver"]),
    ),
    ({"where": "count(solver.failed) == 2"}, lambda e: all(t.failure for t in e["solver"])),
    (
        {"where": "solver[0].right and task.id == 't1'", "role": "judge"},
        lambda e: e["solver"][0].is_correct and e.task_id == "t1",
    ),
    (
        {"where": "correct", "text": "task 2: MAKE"},
        lambda e: e.is_correct and "Task 2: make" in e.task["question"],
    ),
    ({"text": "no such words", "failure": "any"}, lambda e: False),
]


@pytest.mark.parametrize(("written", "fits"), FILTERS, ids=[str(written) for written, _ in FILTERS])
def test_a_filter_finds_what_reading_every_episode_finds(
    run: ViewedRun, written: dict[str, str], fits: Fits
) -> None:
    (part,) = run.parts()
    assert ids(run, **written) == [e.id for row in run.rows(part) if fits(e := run.read(row))]


def test_a_training_shows_its_newest_step_first_and_can_be_narrowed_to_one(training: ViewedRun) -> None:
    rows = find(training, EpisodeFilter(), most=1000).rows
    places = [(row.part.split, row.part.step) for row in rows]
    assert list(dict.fromkeys(places)) == [("validation", 3), ("train", 3), ("train", 2), ("train", 1)]
    chosen = find(training, EpisodeFilter.of({"split": "train", "step": "2"}), most=1000).rows
    assert {row.part.name for row in chosen} == {"train-000002"}


def test_the_lowest_or_the_highest_reward_comes_first_where_asked(run: ViewedRun) -> None:
    def rewards(sort: str) -> list[float]:
        where = EpisodeFilter.of({"role": "solver", "sort": sort})
        return [where.measure(row.entry) for row in find(run, where, most=1000).rows]

    assert rewards("low") == sorted(rewards("low"))
    assert rewards("high") == sorted(rewards("high"), reverse=True)


@pytest.mark.parametrize("written", [{}, {"failure": "any"}, {"text": "answer"}])
def test_pages_follow_one_another_without_gap_or_double(run: ViewedRun, written: dict[str, str]) -> None:
    where, pages, start = EpisodeFilter.of(written), list[str](), 0
    while True:
        found = find(run, where, start, most=5)
        pages += [f"{row.entry.task}:{row.entry.rollout}" for row in found.rows]
        start += len(found.rows)
        if not found.more:
            break
        assert len(found.rows) == 5
    assert pages == ids(run, **written)
    assert found.total == len(pages)


def test_the_episode_before_and_after_are_those_of_the_filter(run: ViewedRun) -> None:
    where = EpisodeFilter.of({"text": "3 * 4"})
    rows = find(run, where, most=1000).rows
    for place, row in enumerate(rows):
        before, after = neighbours(run, where, row)
        assert before == (rows[place - 1] if place else None)
        assert after == (rows[place + 1] if place + 1 < len(rows) else None)


def test_what_is_written_meanwhile_is_found(tmp_path: Path) -> None:
    flow, folder = workflow("solver_judge"), RunFolder(write_run(tmp_path / "run", tasks=1))
    run = open_run(folder.path)
    before = len(find(run, EpisodeFilter()).rows)
    with EpisodeWriter(folder.episodes) as writer:
        writer.append(episodes(flow.plan, 1, 1)[0]._replace(task_id="late", rollout=7))
    assert ids(run)[before:] == ["late:7"]
    with folder.episodes.open("ab") as file:
        file.write(b'{"id": "cut')
    assert len(ids(run)) == before + 1


def test_a_line_that_is_no_episode_is_passed_over_where_there_is_no_index(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    lines = folder.episodes.read_bytes().splitlines(keepends=True)
    folder.episodes.with_suffix(".index").unlink()
    folder.episodes.write_bytes(b"".join([lines[0], b"[]\n", *lines[1:]]))
    run = open_run(folder.path)
    assert ids(run) == ["t0:0", "t0:1", "t0:2", "t0:3"]
    (part,) = run.parts()
    assert run.read(run.row(part, 1)).id == "t0:1"


def test_a_run_that_has_no_episode_yet_is_empty(tmp_path: Path) -> None:
    flow, folder = workflow("solver_judge"), RunFolder(write_run(tmp_path / "run", tasks=1))
    folder.episodes.unlink()
    found = find(open_run(folder.path), EpisodeFilter())
    assert ([*found.rows], found.total, found.more, PAGE) == ([], 0, False, 50)
    assert flow.name == "solver_judge"


@pytest.mark.parametrize(
    "written",
    [
        {"low": "much"},
        {"step": "1.5"},
        {"correct": "maybe"},
        {"sort": "up"},
        {"split": "test"},
        {"low": "nan"},
    ],
)
def test_a_filter_that_says_nothing_sensible_is_refused(written: dict[str, str]) -> None:
    ((name, value),) = written.items()
    with pytest.raises(UsageError, match=f"{name} is '{value}'; expected"):
        EpisodeFilter.of(written)


WORDS = st.text(max_size=20).map(str.strip)


@given(
    st.builds(
        EpisodeFilter,
        role=WORDS,
        failure=WORDS,
        task=WORDS,
        text=WORDS,
        correct=st.sampled_from(["", "yes", "no"]),
        low=st.none() | st.floats(-100, 100),
        step=st.none() | st.integers(0, 10**9),
        sort=st.sampled_from(["", "low", "high"]),
    )
)
def test_an_address_brings_back_the_filter_that_it_was_made_of(where: EpisodeFilter) -> None:
    assert EpisodeFilter.of(dict(parse_qsl(where.query))) == where


def test_an_episode_that_was_taken_away_meanwhile_is_said_to_be(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    run = open_run(folder.path)
    (part,) = run.parts()
    row = run.row(part, 2)
    with EpisodeWriter(tmp_path / "other.jsonl") as writer:
        writer.append(rollout("t9", 0, [1.0]))
    folder.episodes.write_bytes((tmp_path / "other.jsonl").read_bytes() * 8)
    with pytest.raises(DataError, match="the file may have changed"):
        run.read(row)


def test_a_folder_of_something_else_is_the_person_s_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        open_run(tmp_path / "absent")
    with pytest.raises(UsageError, match="is not the folder of a run"):
        open_run(tmp_path)


def test_the_order_by_task_sorts_numbers_by_their_value(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    with EpisodeWriter(folder.episodes) as writer:
        for task in ("t10", "t2", "a", "t10"):
            writer.append(rollout(task, 0, [1.0]))
    assert ids(open_run(folder.path), sort="task")[-3:] == ["t2:0", "t10:0", "t10:0"]
    assert ids(open_run(folder.path), sort="task")[0] == "a:0"


def test_a_fault_of_an_expression_is_told_with_its_place(run: ViewedRun) -> None:
    with pytest.raises(SpecError) as told:
        ids(run, where="solver.right and judge.rigth")
    assert [(it.place.column, it.place.width) for it in told.value.diagnostics] == [(8, 5), (24, 5)]
