"""SkyRL itself, started by `serve --engine skyrl` on a CPU; takes some minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolegraph.engine.plugins import plugin
from rolegraph.engine.records import RunFolder
from rolegraph.local.engines import ANY_KEY, TinkerEngine
from tests.local.test_engines import free_port
from tests.trainings import assert_same, metrics

ENGINE: TinkerEngine = plugin("engines", "skyrl")
pytestmark = [
    pytest.mark.skyrl,
    pytest.mark.skipif(
        not ENGINE.is_installed or ENGINE.sdk_fault() is not None,
        reason="needs SkyRL, as `rolegraph serve --engine skyrl` installs it, and its Tinker SDK",
    ),
]
TRAINING = (
    "train.steps=3",
    "train.checkpoint_every=1",
    "train.batch_size=4",
    "train.rollouts=2",
    "train.validation={every: 0, tasks: 4, rollouts: 1}",
    "sampling.max_tokens=48",
)


@contextmanager
def serving(folder: Path, port: int) -> Generator[subprocess.Popen[bytes]]:
    """Serve the shipped model with SkyRL, with the checkpoints in `folder`."""
    words = [sys.executable, "-m", "rolegraph", "serve", "--engine", "skyrl", "--port", str(port)]
    with (folder / "output").open("w+") as output:
        command = subprocess.Popen([*words, "--state-dir", str(folder / "state")], stdout=output)
        try:
            while "train on it" not in (folder / "output").read_text():
                assert command.poll() is None
                time.sleep(0.5)
            yield command
        finally:
            command.terminate()
            command.wait(60)


def train(port: int, *words: str) -> subprocess.Popen[bytes]:
    """Start a training of two policies."""
    url = ("--base-url", f"http://127.0.0.1:{port}") if "--resume" not in words else ()
    environment = {**os.environ, "TINKER_API_KEY": ANY_KEY}
    return subprocess.Popen([sys.executable, "-m", "rolegraph", "train", *words, *url], env=environment)


def test_two_policies_survive_the_end_of_their_training_and_of_the_service(tmp_path: Path) -> None:
    port, whole, broken = free_port(), tmp_path / "whole", tmp_path / "broken"
    with serving(tmp_path, port):
        assert train(port, "two_policies", *TRAINING, "--out", str(whole)).wait() == 0
        training = train(port, "two_policies", *TRAINING, "--out", str(broken))
        while len(metrics(broken) if (broken / "metrics.jsonl").exists() else ()) < 2:
            assert training.poll() is None
            time.sleep(0.1)
        training.send_signal(signal.SIGKILL)
        training.wait()
    with serving(tmp_path, port):
        assert train(port, "--resume", "--out", str(broken)).wait() == 0
    assert_same(metrics(broken), metrics(whole))
    last = RunFolder(broken).checkpoints()[-1]
    assert {name: saved.version for name, saved in last.policies.items()} == {"solver": 3, "judge": 3}
