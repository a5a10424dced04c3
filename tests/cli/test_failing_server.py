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
