"""Clusters that a run starts by itself, and other users of the machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph import api
from tests.models.edges import Endpoint, chat_answer, serving

ray: Any = pytest.importorskip("ray", reason="needs Ray: pip install 'rolegraph[ray]'")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
KEY = "sk-of-this-run-4711"
WITHOUT_TOKEN = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
print("inside")
"""


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[rg.Workflow]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def answer(body: dict[str, Any]) -> Any:
        return chat_answer("<answer>1</answer>")

    endpoint: Endpoint
    with serving(answer) as endpoint:
        yield rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)


def test_a_cluster_of_the_run_alone_is_for_nobody_else(flow: rg.Workflow, tmp_path: Path) -> None:
    others: list[subprocess.CompletedProcess[str]] = []

    def observe(event: api.Event) -> None:
        if not isinstance(event, api.EpisodeDone) or others:
            return
        node = ray._private.worker._global_node
        session = Path(node.get_session_dir_path())
        assert any(not folder.stat().st_mode & 0o077 for folder in session.parents)
        for file in session.rglob("*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes()
        command = [sys.executable, "-c", WITHOUT_TOKEN, node.gcs_address]
        environment = {**os.environ, "HOME": str(tmp_path / "missing")}
        del environment["RAY_AUTH_TOKEN"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        others.append(ran)

    for name in ("first", "second"):  # the token is that of the process
        job = rg.RunJob.create(flow, limit=2, rollouts=2, out=tmp_path / name)
        result = asyncio.run(job.run(observe, concurrency=2, on="ray"))
        assert result.figures["episodes"] == 4
    (other,) = others
    assert "inside" not in other.stdout
    assert "oken" in other.stderr
    assert not (Path.home() / ".ray" / "auth_token").exists()


@pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0, reason="needs root, to plant a file of another user"
)
def test_a_cluster_that_another_user_names_is_not_used(
    flow: rg.Workflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    planted = tmp_path / "ray" / "ray_current_cluster"
    planted.write_text("127.0.0.1:6379")
    os.chown(planted, 65534, 65534)
    job = rg.RunJob.create(flow, limit=1, out=tmp_path / "out")
    with pytest.raises(rg.UsageError, match="another user"):
        asyncio.run(job.run(on="ray"))
