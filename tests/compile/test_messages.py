"""Tests of faults and warnings that are wrong, or say too little, where a spec is unusual but sound."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from tests.edge import write_spec
from tests.spec.test_broken import CASES as BROKEN

HEAD = "rolegraph: 2\nname: x\n"


def messages(folder: Path, text: str) -> list[str]:
    return [diagnostic.message for diagnostic in check_file(write_spec(folder, HEAD + text)).diagnostics]


def test_turns_with_the_same_observation_may_be_compared(tmp_path: Path) -> None:
    text = """train: {steps: 2, rollouts: 8}
roles:
  walker: {prompt: "{{ self.observation }}", reward: env, estimator: grpo, group: prompt}
loops: {play: {roles: [walker], times: 3, env: grid}}
"""
    assert messages(tmp_path, text) == []
    history = text.replace("self.observation", "self.history | length")
    assert "1 of walker share a prompt" in "".join(messages(tmp_path, history))


def test_a_computed_use_of_self_reads_its_history(tmp_path: Path) -> None:
    text = """train: {steps: 2, rollouts: 8}
roles:
  walker:
    prompt: "{{ [self] | map(attribute='history') | list | length }}"
    reward: env
    estimator: grpo
    group: prompt
loops: {play: {roles: [walker], times: 3, env: grid}}
"""
    assert "1 of walker share a prompt" in "".join(messages(tmp_path, text))


@pytest.mark.parametrize(("edge", "warned"), [("{draft: each}", False), ("[draft]", True)])
def test_an_edge_that_sets_the_count_need_not_be_mentioned(edge: str, warned: bool, tmp_path: Path) -> None:
    text = f"""data: {{validation: countdown}}
roles:
  draft: {{count: 2, prompt: x}}
  final: {{needs: {edge}, prompt: x}}
"""
    found = [message for message in messages(tmp_path, text) if "does not mention" in message]
    assert len(found) == warned


def test_a_server_of_functions_is_no_tool_to_run(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    text = """data: {validation: countdown}
roles:
  agent: {run: {mcp: "http://127.0.0.1:9/mcp"}}
"""
    assert "mcp offers functions to a model, and agent has no model to call them" in messages(tmp_path, text)


def test_no_message_names_a_class_of_ours() -> None:
    """Sweep the whole messages of the corpus for names that only the code has."""
    root = Path(__file__).parents[2]
    names = {
        node.name.lstrip("_")
        for file in (root / "rolegraph").glob("**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and re.search("[a-z][A-Z]", node.name)
    }
    assert len(names) > 100
    assert len(BROKEN) > 100
    for name, files in BROKEN.items():
        assert not names & {*re.findall(r"\b[A-Z]\w+", files["message.txt"])}, name
