"""Tests of two commands that write in one folder at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.ownership import LOCK_FILE
from rolegraph.engine.records.writer_lock import sole_writer
from tests.cli.conftest import ENVIRONMENT
from tests.examples import repetitions
from tests.models.edges import Endpoint, chat_answer, serving

EPISODES = 6
PAIRS = repetitions(20, 3)
# Forks pairs of commands from one process, which imports the package once; prints exit codes and outputs.
FORKS = """
import json, os, sys
import rolegraph as rg
import rolegraph.cli.running, rolegraph.engine.models.openai, rolegraph.engine.run
from rolegraph.cli.main import run

rg.load("solver_judge")  # imports what a run imports
for pair in json.loads(sys.argv[1]):
    children = []
    for at, words in enumerate(pair):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(f"said-{os.getpid()}", os.O_WRONLY | os.O_CREAT), 2)
            os.dup2(2, 1)
            os._exit(run(words))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps([codes, [open(f"said-{child}").read() for child in children]]))
"""
HOLDER = """
import sys
from pathlib import Path
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.writer_lock import sole_writer

with sole_writer(Path(sys.argv[1]), RUN):
    print("held", flush=True)
    sys.stdin.read()
"""


def slow_answer(body: dict[str, Any]) -> Response:
    time.sleep(0.02)
    return chat_answer(f"<answer>{1 + body.get('seed', 0) % 2}</answer>")


def run_pairs(folder: Path, pairs: Sequence[Sequence[Sequence[str]]]) -> list[tuple[list[int], list[str]]]:
    """Run pairs of commands, each pair at the same time; return the exit codes and outputs of each."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(pairs)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def run_words(endpoint: Endpoint, out: str, *words: str) -> list[str]:
    limits = ("--limit", "2", "--rollouts", str(EPISODES // 2), "--concurrency", "2")
    return [
        "run",
        "solver_judge",
        "--model",
        "openai:tiny",
        "--base-url",
        endpoint.base_url,
        *limits,
        *words,
        "--out",
        out,
    ]


def assert_each_once(folder: Path) -> None:
    made = Counter(episode.id for episode in rg.read_episodes(folder / "episodes.jsonl"))
    assert len(made) == EPISODES and set(made.values()) == {1}


def test_of_each_pair_of_new_runs_in_one_folder_one_runs(tmp_path: Path) -> None:
    names = [f"run-{n}" for n in range(PAIRS)]
    with serving(slow_answer) as endpoint:
        done = run_pairs(tmp_path, [[run_words(endpoint, name)] * 2 for name in names])
    for name, (codes, said) in zip(names, done, strict=True):
        assert sorted(codes) == [0, 2], said
        assert name in said[codes.index(2)]
        assert_each_once(tmp_path / name)
        assert not (tmp_path / name / LOCK_FILE).exists()


def test_of_each_pair_of_resumed_runs_each_episode_is_made_once(tmp_path: Path) -> None:
    names = [f"run-{n}" for n in range(PAIRS)]
    with serving(slow_answer) as endpoint:
        flow = rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)
        for name in names:
            rg.run(flow, limit=2, rollouts=1, out=tmp_path / name)
        more = ("--rollouts", str(EPISODES // 2))
        words = [["run", "--resume", "--base-url", endpoint.base_url, *more, "--out", name] for name in names]
        done = run_pairs(tmp_path, [[each, each] for each in words])
    refused = [said[codes.index(2)] for codes, said in done if 2 in codes]
    assert refused, "the second began before the first had ended"
    for name, (codes, said) in zip(names, done, strict=True):
        assert sorted(codes) in ([0, 0], [0, 2]), said
        assert_each_once(tmp_path / name)


def test_a_job_that_was_made_before_another_wrote_does_not_write(tmp_path: Path) -> None:
    with serving(slow_answer) as endpoint:
        flow = rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)
        rg.run(flow, limit=2, out=tmp_path / "run")
        first, second = (rg.RunJob.resume(tmp_path / "run", rollouts=EPISODES // 2) for _ in range(2))
        asyncio.run(first.run())
        with pytest.raises(rg.UsageError, match="meanwhile"):
            asyncio.run(second.run())
    assert_each_once(tmp_path / "run")


def test_the_lock_ends_with_its_process_and_names_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(rg.UsageError, match=f"process {holder.pid} on "), sole_writer(tmp_path / "run", RUN):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    (tmp_path / "run" / "weights").mkdir()  # as a killed command leaves it, before the mark
    with sole_writer(tmp_path / "run", RUN):
        (tmp_path / "run" / "adapters").mkdir()
    # No mark was written: the own subfolder goes; the lock stays, for the next command.
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [LOCK_FILE, "weights"]
    with sole_writer(tmp_path / "run", RUN):
        (tmp_path / "run" / "run.json").write_text('{"name": "x", "roles": {}}')
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.json", "weights"]


def test_a_damaged_mark_costs_no_weights(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "run", RUN):
        (tmp_path / "run" / "weights").mkdir()
        (tmp_path / "run" / "run.json").write_text("{}")
    assert (tmp_path / "run" / "weights").is_dir()


@pytest.mark.parametrize("made", [(), ("weights",)])
def test_a_folder_without_a_mark_is_removed(made: Sequence[str], tmp_path: Path) -> None:
    with sole_writer(tmp_path / "run", RUN):
        for name in made:
            (tmp_path / "run" / name).mkdir()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_stranger_s_link_or_pipe_is_no_lock(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    if kind == "link":
        (folder / LOCK_FILE).symlink_to(target)
    else:
        os.mkfifo(folder / LOCK_FILE)
    with pytest.raises(rg.WorldError), sole_writer(folder, RUN):
        pass
    assert target.read_text() == "kept"
