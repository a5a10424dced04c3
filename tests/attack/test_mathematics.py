"""Tests that answers which no process can compute are failed at once, and all others are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.roles.equality import is_beyond_memory
from tests.attack.test_workers import write_spec
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

TOWER = "9^{9^{9^{9}}}"


def test_a_power_that_no_memory_holds_fails_before_it_is_computed(tmp_path: Path, rolegraph: Command) -> None:
    write_spec(tmp_path, reward="{math: {timeout: 900}}")
    with serving(lambda _: chat_answer(f"<answer>\\boxed{{1 + {TOWER}}}</answer>")) as endpoint:
        done = rolegraph(
            "run", "x.yaml", "--model", "openai:m", "--base-url", endpoint.base_url, "--out", "r"
        )
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "r" / "episodes.jsonl").read_text().splitlines()
    assert "call_memory" in line
    assert json.loads(line)["trajectories"][0]["reward"] is None


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        (TOWER, True),
        (f"${TOWER}$", True),
        ("\\boxed{3^{3^{3^{3}}}+1}", True),
        ("10^{10^{10}}", True),
        (f"\\frac{{1}}{{{TOWER}}}", True),
        (f"{TOWER} is large", False),  # the library may read another part of a text
        (f"{TOWER} = 5", False),
        (f"${TOWER}$ or $5$", False),
        (f"x^{{{TOWER}}}", False),
        ("9^{9^{9}}", False),  # 155 MB: the deadline decides
        ("2^{2024} - 1", False),
        ("2^{-9999999999999}", False),
        ("1^{99999999999999}", False),
        ("\\frac{3}{4}", False),
        ("2^{3}^{4}", False),
        ("1" * 5_000 + "^{2}", False),
        ("2^{3}" * 5_000, False),
        ("2^{" * 500 + "1" + "}" * 500, True),
        ("", False),
    ],
)
def test_only_arithmetic_with_such_a_power_is_beyond_memory(text: str, beyond: bool) -> None:
    assert is_beyond_memory(text) == beyond
