"""Tests of resuming runs that were killed or stopped."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records.folder import RunFolder
from tests.examples import repetitions
from tests.models.edges import chat_answer, serving

ROOT = Path(__file__).parent.parent.parent
KILLS = repetitions(20, 4)
TASKS, ROLLOUTS = repetitions(40, 20), 3
KILLER = f"""
import asyncio, os, random, signal, sys, time
import rolegraph as rg
import rolegraph.engine.models.openai, rolegraph.engine.records.episodes, rolegraph.engine.run

url, out, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
episodes = os.path.join(out, "episodes.jsonl")
draw = random.Random(seed)
rg.load("solver_judge")  # what a run imports is imported once

def lines():
    return open(episodes, "rb").read().count(b"\\n") if os.path.exists(episodes) else 0

for kill in range({KILLS}):
    before, more = lines(), draw.randrange(0, 9)
    child = os.fork()
    if child == 0:
        try:
            try:
                run = rg.RunJob.resume(out)
            except rg.UsageError:  # it was killed before it had begun
                flow = rg.load("solver_judge", model="openai:tiny", base_url=url)
                run = rg.RunJob.create(flow, limit={TASKS}, rollouts={ROLLOUTS}, seed=7, out=out)
            asyncio.run(run.run(concurrency=3))
        finally:
            os._exit(0)
    ended = 0
    while lines() < before + more and not ended:
        ended, _ = os.waitpid(child, os.WNOHANG)
        time.sleep(0.001)
    if not ended:
        time.sleep(draw.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
print(lines())
"""


def answer(body: dict[str, Any]) -> Response:
    """Return the same answer for the same prompt and seed."""
    return chat_answer(f"<answer>{1 + body.get('seed', 0) % 2}</answer>")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def made(out: Path) -> list[tuple[str, int]]:
    return sorted((episode.task_id, episode.rollout) for episode in rg.read_episodes(out / "episodes.jsonl"))


def said(out: Path) -> dict[str, list[object]]:
    """Return the answers of each episode."""
    return {
        episode.id: [step.model_response for t in episode.trajectories for step in t.steps]
        for episode in rg.read_episodes(out / "episodes.jsonl")
    }


def test_a_run_killed_again_and_again_has_every_episode_once(out: Path, tmp_path: Path) -> None:
    with serving(answer) as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", KILLER, endpoint.base_url, str(out), "3"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert 0 < int(done.stdout) < TASKS * ROLLOUTS, "killed in the middle"
        run = rg.RunJob.resume(out)
        assert (run.done, run.episodes) == (int(done.stdout), TASKS * ROLLOUTS)
        asked = len(endpoint.bodies)
        result = finish(run)
        assert len(endpoint.bodies) - asked == 3 * (run.episodes - run.done)
        flow = rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)
        whole = rg.run(flow, limit=TASKS, rollouts=ROLLOUTS, seed=7, out=tmp_path / "whole")
    assert made(out) == made(whole.folder)
    assert len(set(made(out))) == len(made(out)) == TASKS * ROLLOUTS
    assert said(out) == said(whole.folder), "with the seeds that they would have had"
    assert result.figures == whole.figures
    assert RunFolder(out).info().resumed
    known = RunFolder(whole.folder).info()
    assert known.seconds and known.started and known.finished
    assert 0 < known.seconds <= (known.finished - known.started).total_seconds()
    assert RunFolder(out).info().seconds is None, "nobody knows how long a killed command ran"


def finish(run: rg.RunJob) -> rg.Run:
    return asyncio.run(run.run())


@pytest.fixture
def flaky() -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve an endpoint that fails for about a third of the tasks; yield its URL and a repair function."""
    broken = True

    def reply(body: dict[str, Any]) -> Response:
        question = str(body["messages"])
        if broken and sum(map(ord, question)) % 3 == 0:
            return Response("out of order", status_code=400)
        return answer(body)

    def mend() -> None:
        nonlocal broken
        broken = False

    with serving(reply) as endpoint:
        yield endpoint.base_url, mend


def test_failed_episodes_are_made_again_when_asked_for(
    flaky: tuple[str, Callable[[], None]], out: Path
) -> None:
    url, mend = flaky
    flow = rg.load("solver_judge", model="openai:tiny", base_url=url)
    rg.run(flow, limit=12, out=out)
    failed = {e.id for e in rg.read_episodes(out) if "failures" in e.metadata}
    assert 0 < len(failed) < 12
    kept = {e.id: e.to_dict() for e in rg.read_episodes(out) if e.id not in failed}
    mend()
    assert finish(rg.RunJob.resume(out)).figures["episodes"] == 12
    assert {e.id for e in rg.read_episodes(out) if "failures" in e.metadata} == failed, "only when asked for"
    again = rg.RunJob.resume(out, retry_failed=True)
    assert again.done == 12 - len(failed)
    result = finish(again)
    assert result.figures["episodes"] == 12
    assert not any("failures" in episode.metadata for episode in rg.read_episodes(out))
    assert {e.id: e.to_dict() for e in rg.read_episodes(out) if e.id not in failed} == kept


def test_a_larger_limit_goes_on_with_the_tasks_that_are_new(
    flaky: tuple[str, Callable[[], None]], out: Path
) -> None:
    url, mend = flaky
    mend()
    rg.run(rg.load("solver_judge", model="openai:tiny", base_url=url), limit=2, out=out)
    more = rg.RunJob.resume(out, limit=3, rollouts=2)
    assert (more.done, more.episodes) == (2, 6)
    finish(more)
    assert Counter(task for task, _ in made(out)) == dict.fromkeys({task for task, _ in made(out)}, 2)
    assert rg.RunJob.resume(out).episodes == 6, "as it was last said"


def test_what_no_run_can_go_on_with_is_said(flaky: tuple[str, Callable[[], None]], out: Path) -> None:
    url, _ = flaky
    flow = rg.load("solver_judge", model="openai:tiny", base_url=url)
    rg.run(flow, limit=1, seed=3, out=out)
    with pytest.raises(rg.UsageError, match="the seed 3"):
        rg.RunJob.resume(out, seed=4)
    with pytest.raises(rg.UsageError, match="count: 2"):
        rg.RunJob.resume(out, api.Source(overrides=("roles.solver.count=3",)))
    with pytest.raises(rg.UsageError, match="is not the folder of a run"):
        rg.RunJob.resume(out.parent)
    info = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**info, "rollouts": 0}))
    with pytest.raises(rg.UsageError, match="give both"):
        rg.RunJob.resume(out)


def test_tasks_of_a_person_s_own_are_given_again(flaky: tuple[str, Callable[[], None]], out: Path) -> None:
    url, mend = flaky
    mend()
    flow = rg.load("solver_judge", model="openai:tiny", base_url=url)
    tasks = flow.tasks(limit=3)
    rg.run(flow, tasks=tasks[:2], out=out)
    with pytest.raises(rg.UsageError, match="give them again"):
        rg.RunJob.resume(out)
    finish(rg.RunJob.resume(out, tasks=tasks))
    assert [task for task, _ in made(out)] == sorted(task["id"] for task in tasks)
