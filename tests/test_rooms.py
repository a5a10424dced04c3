"""Rooms and integrations whose folder was deleted: the command runs and trains, and no door is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rolegraph.engine.models.types import LocalService
from rolegraph.local.launcher import BASE_MODEL, running
from tests.trainings import STEP, at, key

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "doctor": ["doctor"],
    "local": ["fetch", "serve", "limits", "export"],
    "migrate": ["migrate"],
    "outlook": ["preview", "forecast"],
    "pages": ["graph", "view", "report", "compare"],
    "starter": ["new"],
    "integrations/gepa": ["optimize"],
}
"""Commands of each room, by its folder."""
WORDS = {
    "local": ["--fresh", "local[:FOLDER]"],
    "pages": ["--sft"],
    "integrations/opentelemetry": ["--otlp", "--otlp-share", "--otlp-content", "OpenTelemetry"],
    "integrations/ray": ["--on", "--rollouts-on", "Ray"],
    "integrations/rllm": ["--backend", "--gpus", "--print-config", "--trainer", "rllm", "rLLM", "rLLM's"],
    "integrations/litellm": ["litellm", "litellm:NAME"],
    "integrations/sglang": ["sglang", "sglang:NAME"],
    "integrations/skyrl": ["skyrl"],
    "integrations/tuft": ["tuft"],
    "integrations/trackers": ["--track", "tensorboard", "wandb", "mlflow", "trackio"],
    "integrations/verifiers": ["--verifiers", "verifiers"],
    "integrations/vllm": ["vllm", "vllm:NAME"],
}
"""Words of the help texts that only a room brings."""
ITEMS = {
    "sandbox": ["python", "tests"],
    "integrations/agent": ["agent"],
    "integrations/bm25s": ["search"],
    "integrations/mcp": ["mcp"],
    "integrations/openenv": ["openenv"],
    "integrations/reasoning_gym": ["reasoning_gym"],
    "integrations/rllm": ["rllm"],
    "integrations/textarena": ["textarena"],
    "integrations/verifiers": ["verifiers"],
}
"""Items of the vocabulary that only a room brings."""
ESSENTIAL = ("api", "cli", "engine", "integrations", "roles")
"""Packages without which nothing runs; the folders of specs and prompts hold no code."""
PACKAGE = ROOT / "rolegraph"
ROOMS = sorted(
    str(file.parent.relative_to(PACKAGE))
    for file in (*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("integrations/*/__init__.py"))
    if file.parent.name not in ESSENTIAL
)
PROGRAM = """
import json, os, sys
from contextlib import redirect_stdout
from io import StringIO
from click import Context
from click.shell_completion import ShellComplete
from rolegraph.cli.main import cli, run

words = json.loads(sys.argv[1])
helps, completed = {}, []
for name in ["", *cli.list_commands(Context(cli))]:
    text = StringIO()
    with redirect_stdout(text):
        assert run([*name.split(), "--help"]) == 0, name
    helps[name] = text.getvalue()
    if name:
        complete = ShellComplete(cli, {}, "rolegraph", "_ROLEGRAPH_COMPLETE")
        completed += [item.value for item in complete.get_completions([name], "--")]
lists = StringIO()
with redirect_stdout(lists):
    for kind in ("tools", "environments", "datasets", "rewards"):
        assert run(["list", kind]) == 0
codes = [run(line) for line in words]
texts = {"helps": helps, "completed": completed, "lists": lists.getvalue()}
print(json.dumps({**texts, "codes": codes}), flush=True)
os._exit(0)  # native threads of the SDK may abort in a teardown
"""


@pytest.fixture
def started() -> Iterator[Callable[[Path], LocalService]]:
    """Return a function that starts a service for a model folder, which ends with the test."""
    with ExitStack() as stack:
        yield lambda model: stack.enter_context(running(model, threads=1))


@pytest.mark.service
@pytest.mark.parametrize("room", ROOMS)
def test_a_spec_runs_and_trains_without_a_room_and_no_door_of_it_is_left(
    room: str, tmp_path: Path, service: LocalService, started: Callable[[Path], LocalService]
) -> None:
    package = tmp_path / "rolegraph"
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rolegraph", package, copy_function=os.link, ignore=caches)
    shutil.rmtree(package / room)
    if room == "local":  # the shipped model's tokenizer goes with the room
        model = shutil.copytree(BASE_MODEL, tmp_path / "model")
        service = started(model)
    lines = [
        ["export", "nowhere"],
        ["validate", "solver_judge"],
        ["run", "solver_judge", "--limit", "1", "--out", "run", *at(service)],
        ["train", "solver_judge", *STEP, "--out", "training", *at(service)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        env={**os.environ, **key(service), "PYTHONPATH": str(tmp_path), "COLUMNS": "300"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["codes"] == [2, 0, 0, 0], done.stderr
    shown = {word.strip(",.:;()[]`") for text in found["helps"].values() for word in text.split()}
    shown |= {*found["completed"]}
    assert not shown & {word.strip("[]") for word in WORDS.get(room, ())}
    assert not {*COMMANDS.get(room, ())} & {*found["helps"]}
    assert not {*ITEMS.get(room, ())} & {*found["lists"].split()}
    assert {name for other in COMMANDS if other != room for name in COMMANDS[other]} <= {*found["helps"]}
    assert (tmp_path / "run" / "episodes.jsonl").is_file()
    assert (tmp_path / "training" / "report.html").is_file() == (room != "pages")


def test_a_command_that_builds_on_a_missing_room_names_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rolegraph", tmp_path / "rolegraph", copy_function=os.link)
    shutil.rmtree(tmp_path / "rolegraph" / "pages")
    program = "import sys; from rolegraph.cli.main import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "preview", "solver_judge", "--html", "page.html"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: this needs rolegraph.pages, which is not installed",
    )
