"""Test that an oversized episode is shortened in the file, and that later commands can read it."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command, rolegraph
from tests.models.edges import chat_answer, serving

__all__ = ["rolegraph"]
SPEC = """rolegraph: 2
name: large
data: {validation: tasks.jsonl}
roles:
  a: {prompt: "{{ task.question }}", parser: text}
loops: {again: {roles: a, times: 4}}
"""


def test_what_is_too_large_is_written_without_ids_resumed_and_replayed(
    tmp_path: Path, rolegraph: Command
) -> None:
    (tmp_path / "x.yaml").write_text(SPEC)
    (tmp_path / "tasks.jsonl").write_text('{"id": "1", "question": "q"}\n')
    large = chat_answer("said", choice={"token_ids": [7]}, prompt_token_ids=[7] * 800_000)
    with serving(lambda _: large) as endpoint:
        first = ("run", "x.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "out")
        done = rolegraph(*first)
        assert done.returncode == 0, done.stderr
        log = (tmp_path / "out" / "log.txt").read_text()
        assert "WARNING episode 1:0 is written without its token ids and log-probabilities: " in log
        assert "(limit: record_values)" in log
        asked = len(endpoint.bodies)
        again = rolegraph(*first, "--resume")
        assert again.returncode == 0, again.stderr
        assert len(endpoint.bodies) == asked == 4
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    assert episode.metadata["left_out"] == "token ids and log-probabilities"
    assert [(step.action, list(step.prompt_ids)) for step in episode["a"][0].steps] == [("said", [])] * 4
    replayed = rolegraph("run", "x.yaml", "--model", "replay:out", "--out", "replayed")
    assert replayed.returncode == 0, replayed.stderr
    (same,) = read_episodes(tmp_path / "replayed" / "episodes.jsonl")
    assert [step.action for step in same["a"][0].steps] == ["said"] * 4
