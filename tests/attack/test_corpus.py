"""Tests that no case of the corpus raises, takes 256 MB, exceeds its budget or lacks a clear message.

Each part of the corpus runs in one process with that memory limit, and nothing is timed. Add a new finding as
a line in one of the parts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.limits.prompts import PROMPT_WORK
from tests.attack import bombs, conditions, folders, given, overrides, packages, prompts, specs, tables
from tests.attack.cases import Came, Case

ROOT = Path(__file__).parents[2]
PARTS: dict[str, Sequence[Case]] = {
    "prompts": prompts.CASES,
    "conditions": conditions.CASES,
    "specs": specs.CASES,
    "overrides": overrides.CASES,
    "given": given.CASES,
    "packages": packages.CASES,
    "tables": tables.CASES,
    "folders": folders.CASES,
    "bombs": bombs.CASES,
}


@pytest.fixture(scope="module")
def all_came() -> dict[str, dict[str, list[Any]]]:
    """Run the corpus and return the outcomes, by part and name of the case."""
    command = [sys.executable, "-m", "tests.attack.runner"]
    # glibc reserves an arena for each thread, and reserved memory counts against the limit.
    few = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, cwd=ROOT, env=few, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits a process as Linux does")
@pytest.mark.parametrize("part", PARTS)
def test_what_comes_of_each_hostile_input_is_what_the_corpus_says(
    part: str, all_came: dict[str, dict[str, list[Any]]]
) -> None:
    came = {name: Came(*of) for name, of in all_came[part].items()}
    assert [*came] == [case.name for case in PARTS[part]]
    otherwise = {
        case.name: came[case.name]
        for case in PARTS[part]
        if came[case.name].outcome != case.outcome or case.says not in came[case.name].says
    }
    assert not otherwise
    overspent = {
        name: it.spent for name, it in came.items() if it.outcome == "text" and it.spent > PROMPT_WORK.most
    }
    assert not overspent


def test_the_corpus_has_every_case_once() -> None:
    for cases in PARTS.values():
        names = [case.name for case in cases]
        assert len(names) == len({*names})
    assert sum(map(len, PARTS.values())) >= 400
