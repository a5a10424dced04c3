"""Tests of `next:` lines that a shell runs as they are printed, and of commands that were interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from rolegraph.engine.records import RunFolder, read_episodes
from tests.cli.conftest import ENVIRONMENT
from tests.cli.printed import done, printed, shell, write_spec
from tests.integrations.gepa.test_optimizing import SPEC as SUMS
from tests.models.edges import chat_answer, serving

ROWS = 6


class HeldEndpoint:
    """Rule of an endpoint that answers `free` requests, then none until it is released."""

    def __init__(self, free: int) -> None:
        self._free, self._asked = free, 0
        self.is_held, self.released = threading.Event(), threading.Event()

    def wait_for(self, process: subprocess.Popen[str]) -> None:
        """Wait until a process asks for an answer that is held."""
        while not self.is_held.wait(0.05):
            assert process.poll() is None, process.communicate()[1]

    async def __call__(self, body: dict[str, Any]) -> Response:
        self._asked += 1
        if self._asked > self._free:
            self.is_held.set()
            await asyncio.to_thread(self.released.wait)
        return chat_answer("```jinja\n{{ task.question }} <answer>\n```<answer>1</answer>")


def rows(folder: Path) -> None:
    """Write the rows of the spec's data."""
    made = [{"id": f"q{number}", "question": f"{number}?", "answer": "1"} for number in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in made))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_spec(tmp_path, "exact_match")
    rows(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given_again", ["", "--import 'own code.py' --allow python"])
def test_an_interrupted_run_goes_on_by_the_command_that_it_prints(folder: Path, given_again: str) -> None:
    held = HeldEndpoint(2)
    (folder / "own code.py").write_text("")
    with serving(held) as endpoint:
        where = f"--base-url {endpoint.base_url} --out 'a run' --concurrency 1"
        process = shell(f"rolegraph run own.yaml {given_again} {where}", folder)
        held.wait_for(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        assert process.returncode == 130
        held.released.set()
        kept = len([*read_episodes(RunFolder(folder / "a run").episodes)])
        assert kept < ROWS
        (again,) = printed(output)
        assert again.endswith(given_again)
        done(again, folder)
    assert len([*read_episodes(RunFolder(folder / "a run").episodes)]) == ROWS


def test_an_interrupted_optimization_goes_on_by_the_command_that_it_prints(folder: Path) -> None:
    pytest.importorskip("gepa", reason="needs the extra `optimize`")
    held = HeldEndpoint(3)
    (folder / "own.yaml").write_text(SUMS)
    rows = [{"question": f"{number} + 1?", "answer": "1", "note": "n"} for number in range(ROWS)]
    for name in ("train", "validation"):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with serving(held) as endpoint:
        where = f"--base-url {endpoint.base_url} --budget 24 --tasks 3 --out 'an optimization'"
        process = shell(f"rolegraph optimize own.yaml {where} --concurrency 1", folder)
        held.wait_for(process)
        process.send_signal(signal.SIGINT)
        output, noted = process.communicate()
        assert process.returncode == 130, noted
        held.released.set()
        (again,) = printed(output)
        run, *_ = printed(done(again, folder))
        assert run.startswith("rolegraph run ")
        done(run, folder)


def test_the_page_of_failed_answers_is_served_by_the_command_that_a_run_prints(folder: Path) -> None:
    with serving(lambda body: chat_answer("no form")) as endpoint:
        output = done(f"rolegraph run own.yaml --base-url {endpoint.base_url} --out 'a run'", folder)
    preview, view = printed(output)
    assert "1?" in done(preview, folder) or "question" in done(preview, folder)
    process = shell(view, folder)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with httpx.Client(trust_env=False) as client:
        page = client.get(address)
    assert page.status_code == 200 and f"{ROWS} episodes" in page.text
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


def test_a_listed_item_is_shown_by_the_command_that_the_list_prints(tmp_path: Path) -> None:
    process = shell("rolegraph list rewards", tmp_path)
    _, noted = process.communicate()
    (command,) = printed(noted)
    assert "roles.ROLE.reward" in done(command, tmp_path)


@pytest.mark.service
def test_a_new_folder_is_previewed_and_run_by_the_commands_that_new_prints(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    runtime = str(tmp_path_factory.mktemp("r"))  # short: a socket's path has a limit
    environment = {
        **ENVIRONMENT,
        "XDG_RUNTIME_DIR": runtime,
        "XDG_CONFIG_HOME": runtime,
        "ROLEGRAPH_WARM": "0",
    }
    output = done("rolegraph new 'a folder/mine' --from solver_only", tmp_path, environment)
    enter, *commands = printed(output)
    verbs = [line.split()[1] for line in commands]
    assert (enter, verbs) == ("cd 'a folder/mine'", ["test", "preview", "run"])
    for command in commands:
        output = done(f"{enter}\n{command}", tmp_path, environment)
    (command,) = printed(output)
    assert command.split()[:2] == ["rolegraph", "train"]
    (run,) = (tmp_path / "a folder" / "mine" / "runs").iterdir()
    assert len([*read_episodes(RunFolder(run).episodes)]) == 10
