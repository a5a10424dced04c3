"""Tests of commands in a folder whose files are named like project folders and standard modules.

Each command runs from an editable checkout and from a wheel. The user's modules write their names to
`imported.txt` and raise, so a test sees whether any process imported one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from rolegraph.engine.records import read_episodes
from tests.conftest import OUTSIDE

pytest.importorskip("torch", reason="needs the extra `local`")
pytestmark = pytest.mark.service
ROOT = Path(__file__).parent.parent

MODULES = ["engine", "specs", "types", "logging", "random", "tinker", "roles/__init__", "prompts/__init__"]
MODULES += ["tests/__init__", "records/__init__", "engine_/__init__"]
TRAP = """
import pathlib
with (pathlib.Path(__file__).parent / "imported.txt").open("a") as file:
    file.write(__name__ + "\\n")
raise RuntimeError("a module of the user's folder was imported: " + __name__)
"""
REWARDS = '''
import rolegraph as rg


@rg.reward("brief", timeout=20)
def brief(task, action):
    """Reward an action of at most 80 characters with 1. It runs in an isolated worker."""
    return float(len(str(action)) <= 80)
'''
SPEC = """
rolegraph: 2
name: own
data: {train: countdown, validation: countdown}
roles:
  solver:
    count: 2
    prompt: solver.j2
    parser: {tag: answer, default: none}
    reward: brief
    estimator: grpo
  counter:
    needs: [solver]
    run: {python: "print(len({{ solver | map(attribute='action') | list | tojson }}))"}
  player:
    prompt: "{{ self.observation }} Answer in <answer></answer>."
    parser: {tag: answer, default: "[pass]"}
    reward: env
    count: 2
    estimator: grpo
loops:
  play: {roles: player, env: {textarena: KuhnPoker-v0}, times: 2}
episode: {correct: all(player.right)}
sampling: {max_tokens: 32}
train: {rollouts: 2, batch_size: 2, steps: 1, learning_rate: 0.001, validation: {tasks: 2, rollouts: 1}}
"""
ALLOWED = ["--import", "rewards.py", "--allow", "python"]


class Installed(NamedTuple):
    """Installation of Rolegraph: the start of a command line, and environment variables for the command."""

    command: list[str]
    environment: Mapping[str, str]

    def run(self, folder: Path, *words: str) -> str:
        """Run `rolegraph WORDS` in a folder and return its standard output."""
        done = subprocess.run(
            [*self.command, *words],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from this checkout's sdist, install the wheel in `site`, and return the folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(source, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("rolegraph-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, archive], env=OUTSIDE, check=True)
    (file,) = folder.glob("rolegraph-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", file], check=True)
    return folder


@pytest.fixture(params=["checkout", "wheel"], scope="module")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """Yield the installation of this environment, or the wheel placed ahead of it on the path.

    The first command with a model starts a service, which stays for the others.
    """
    runtime = str(tmp_path_factory.mktemp("r"))  # short: a socket's path has a limit
    stays = {"XDG_RUNTIME_DIR": runtime, "ROLEGRAPH_WARM": "600", "CI": ""}
    environment = {**os.environ, **stays, "COLUMNS": "100", "TINKER_TELEMETRY": "0"}
    environment.pop("PYTHONPATH", None)
    command = [str(Path(sys.executable).with_name("rolegraph"))]
    if request.param == "wheel":
        site = request.getfixturevalue("wheel") / "site"
        command = [sys.executable, str(site / "bin" / "rolegraph")]
        environment["PYTHONPATH"] = str(site)
    found = Installed(command, environment)
    yield found
    found.run(Path(runtime), "serve", "--stop")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """Create a user's folder with modules that must not be imported, a spec and a file of rewards."""
    for name in MODULES:
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(TRAP)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "own.yaml").write_text(SPEC)
    return tmp_path


def imported(folder: Path) -> list[str]:
    """Return the names of the user's modules that any process has imported."""
    file = folder / "imported.txt"
    return file.read_text().split() if file.exists() else []


def test_the_wheel_has_one_top_level_package_with_all_its_files(wheel: Path) -> None:
    (file,) = wheel.glob("rolegraph-*.whl")
    names = zipfile.ZipFile(file).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rolegraph"}
    for folder in ("engine", "roles", "specs", "prompts"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        there = {str(path) for path in files if "__pycache__" not in path.parts}
        assert {f"rolegraph/{name}" for name in there} <= {*names}


def test_rolegraph_is_imported_beside_a_user_s_modules(installed: Installed, user: Path) -> None:
    code = "import rolegraph as rg; print(len(rg.load('solver_judge').plan.roles))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=user,
        env=installed.environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "2\n", done.stderr
    assert imported(user) == []


def test_a_run_uses_an_isolated_reward_the_sandbox_and_textarena(installed: Installed, user: Path) -> None:
    pytest.importorskip("textarena", reason="needs the extra `textarena`")
    pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")
    installed.run(user, "run", "own.yaml", *ALLOWED, "--limit", "2", "--out", "out")
    episodes = list(read_episodes(user / "out" / "episodes.jsonl"))
    assert len(episodes) == 2
    for episode in episodes:
        assert [
            t.failure.name for t in episode["solver"] if t.failure and t.failure.name == "reward_error"
        ] == []
        assert [t.reward for t in episode["solver"]] == [1.0, 1.0]
        assert episode["counter"][0].action.strip() == "2"
        assert {t.reward is not None for t in episode["player"]} == {True}
    assert imported(user) == []


def test_a_training_makes_a_step(installed: Installed, user: Path) -> None:
    words = ["loops.play.times=1", "roles.player.estimator=null"]
    installed.run(user, "train", "own.yaml", *words, *ALLOWED, "--out", "out")
    assert (user / "out" / "metrics.jsonl").exists()
    assert imported(user) == []


def test_the_service_answers(installed: Installed, user: Path) -> None:
    with subprocess.Popen(
        [*installed.command, "serve", "--port", "0"],
        cwd=user,
        env=installed.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            url = next(word for word in process.stdout.readline().split() if word.startswith("http"))
            with urlopen(f"{url}/api/v1/healthz") as response:
                assert response.status == 200
        finally:
            process.terminate()
    assert imported(user) == []


@pytest.mark.rllm
def test_rllm_s_trainer_makes_a_step(installed: Installed, user: Path) -> None:
    pytest.importorskip("rllm", reason="needs rLLM")
    words = ["train", "solver_judge", "--trainer", "rllm", "--backend", "tinker", "train.steps=1"]
    sizes = [
        "train.batch_size=2",
        "train.rollouts=2",
        "train.validation.tasks=2",
        "train.validation.rollouts=1",
    ]
    installed.run(user, *words, *sizes)
    assert imported(user) == []
