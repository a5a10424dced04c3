"""Test that a model call that always fails costs only its own trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving


def test_seven_of_eight_solvers_and_the_judge_survive_a_call_that_always_fails(
    rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.01)
    doomed: list[int] = []
    tries = 0

    def answer(body: dict[str, Any]) -> Response:
        nonlocal tries
        doomed[:] = doomed or [body["seed"]]
        if body["seed"] == doomed[0]:
            tries += 1
            return JSONResponse({"error": {"message": "out of memory"}}, status_code=500)
        text = (
            "<answer>2</answer>"
            if "Proposed solutions" in body["messages"][-1]["content"]
            else "<answer>1+1</answer>"
        )
        return chat_answer(text)

    with serving(answer) as endpoint:
        words = ("run", "solver_judge", "roles.solver.count=8", "--limit", "1", "--out", "out")
        done = rolegraph(*words, "--model", "openai:tiny", "--base-url", endpoint.base_url)
    assert done.returncode == 0, done.stderr
    assert "model_error 1" in " ".join(done.stdout.split())

    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    assert [t.name for t in episode.trajectories] == ["solver"] * 8 + ["judge"]
    failed = [t for t in episode.trajectories if t.failure is not None]
    assert [(t.name, t.failure and t.failure.name.value) for t in failed] == [("solver", "model_error")]
    assert sum(len(t.steps) for t in episode.trajectories) == 8
    assert tries == 4, "it was tried again before it was given up"


RATED = """
rolegraph: 2
name: rated
data: {train: {countdown: {count: 4}}}
roles:
  solver: {prompt: <answer>, parser: {tag: answer}, reward: number(judge.action), estimator: grpo}
  judge: {needs: [solver], prompt: "Rate {{ solver.action }}", parser: text}
"""


@pytest.mark.parametrize(
    ("solved", "line"),
    [
        ("<answer>1+1</answer>", "solver unrated: judge did not run or gave no rating that can be read"),
        ("It is\n1+1", "solver malformed_output: no <answer>…</answer>, as in 'It is 1+1'"),
    ],
)
def test_a_run_shows_what_could_not_be_read(
    solved: str, line: str, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "rated.yaml").write_text(RATED)

    def answer(body: dict[str, Any]) -> Response:
        return chat_answer("rather good" if "Rate" in body["messages"][-1]["content"] else solved)

    with serving(answer) as endpoint:
        words = ("run", "rated.yaml", "--limit", "2", "--out", "out")
        done = rolegraph(*words, "--model", "openai:tiny", "--base-url", endpoint.base_url)
    assert done.returncode == 0, done.stderr
    assert f"{line}\n" in done.stdout
