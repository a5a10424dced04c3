"""Answers and specs that compute without end, in a process with limits, and tokenizers that fail."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph.engine.errors import DataError, ModelError
from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.vocabulary import ItemCall, RewardInputs, Score, rewards
from tests.cli.conftest import ENVIRONMENT
from tests.models.edges import chat_answer, serving, write_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce the limit")
SPEC = """rolegraph: 2
name: x
roles:
  solver: {prompt: "{{ task.question }}", reward: REWARD}
data: {train: DATA}
"""
MEASURED = (
    "import resource, subprocess, sys\n"
    "done = subprocess.run([sys.executable, '-m', 'rolegraph', *sys.argv[1:]])\n"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)\n"
    "sys.exit(done.returncode)"
)
SOLVED = "$(1+x)^{1000000}$"
ASKED: list[Any] = [{"role": "user", "content": "hi"}]
BESIDES = 400_000_000
"""Memory of the libraries of a process."""


def run_measured(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the command in a folder and return its result and the peak memory of its largest process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, int(done.stdout.split()[-1])


def write_spec(folder: Path, *, reward: str = "exact_match", data: str = "tasks.jsonl") -> None:
    (folder / "x.yaml").write_text(SPEC.replace("REWARD", reward).replace("DATA", data))
    (folder / "tasks.jsonl").write_text(json.dumps({"id": "t", "question": "q", "answer": "1"}))


def test_an_answer_that_takes_gigabytes_to_compare_gets_no_more_than_the_limit(tmp_path: Path) -> None:
    write_spec(tmp_path, reward="{math: {timeout: 60}}")
    with serving(lambda body: chat_answer(SOLVED)) as endpoint:
        done, most = run_measured(
            tmp_path, "run", "x.yaml", "--model", "openai:m", "--base-url", endpoint.base_url, "--out", "out"
        )
    assert done.returncode in (0, 1), done.stderr
    assert most < CALL_MEMORY.most + BESIDES
    assert len((tmp_path / "out" / "episodes.jsonl").read_text().splitlines()) == 1


def test_f1_counts_the_words_of_a_long_answer_once_for_all_accepted_ones() -> None:
    score = rewards.build(ItemCall("f1")).score
    accepted = [f"a {number}" for number in range(50_000)]
    answer = " ".join(f"w{number}" for number in range(99_999)) + " 7"
    assert score({"answer": accepted}, answer, RewardInputs()) == Score(2 / 100_001, False)


@pytest.mark.usefixtures("registries")
def test_a_reward_that_reads_a_large_task_does_not_hold_up_other_episodes(tmp_path: Path) -> None:
    @rg.reward(name="process", labels=["answer"], pure=True)
    def process(task: object, action: object) -> float:
        return float(os.getpid())

    async def run(url: str, size: int) -> float | None:
        async with rg.load(tmp_path / "x.yaml").open(model="openai:m", base_url=url) as flow:
            episode = await flow.episode({"id": "1", "question": "q", "answer": ["a b"] * size})
        return episode["solver"][0].reward

    assert process
    write_spec(tmp_path, reward="process")
    with serving(lambda body: chat_answer("a")) as endpoint:
        assert asyncio.run(run(endpoint.base_url, 10)) == os.getpid()
        assert asyncio.run(run(endpoint.base_url, 900_000)) not in (os.getpid(), None)


@pytest.mark.parametrize(
    ("template", "fault"),
    [("{{ 'a' * 50000000 }}", "limit: episode_size"), ("{{ 1 + 'a' }}", "TypeError")],
    ids=["text", "error"],
)
def test_a_chat_template_that_fails_is_a_model_error(tmp_path: Path, template: str, fault: str) -> None:
    chat = ChatFormat(load_tokenizer(write_tokenizer(tmp_path, template)), "stranger")
    with pytest.raises(ModelError, match=f"template of stranger .*{fault}"):
        chat.prompt(ASKED)


def test_a_pattern_of_a_tokenizer_that_takes_too_much_is_a_model_error(tmp_path: Path) -> None:
    """The library's own limit is a panic of its Rust code, which is no Exception."""
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": steps}))
    chat = ChatFormat(load_tokenizer(tmp_path), "stranger")
    for _ in range(2):
        with pytest.raises(ModelError, match="retry-limit"):
            chat.prompt([{"role": "user", "content": "a" * 100_000 + "c"}])
        assert chat.prompt(ASKED).ids


ENDLESS = "task: modulo_grid, config: {size_x: 60000, size_y: 60000}"


def test_a_data_set_that_computes_past_its_deadline_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.integrations.reasoning_gym.tasks.DRAW_SECONDS", 0.5)
    write_spec(tmp_path, data="{reasoning_gym: {" + ENDLESS + "}}")
    with pytest.raises(
        DataError, match=r"modulo_grid makes no task with these options: it took longer than 0\.5"
    ):
        rg.load(tmp_path / "x.yaml").tasks("train", limit=1)


@pytest.mark.parametrize(
    "options",
    [
        ENDLESS,
        "task: count_primes, config: {max_n: 400000000}",
    ],
    ids=["bit by bit", "at once"],
)
def test_a_data_set_that_takes_gigabytes_is_a_fault(tmp_path: Path, options: str) -> None:
    write_spec(tmp_path, data="{reasoning_gym: {" + options + "}}")
    done, most = run_measured(tmp_path, "preview", "x.yaml")
    assert (done.returncode, "limit: call_memory" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert most < CALL_MEMORY.most + BESIDES
