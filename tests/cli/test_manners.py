"""Tests of the command's output: JSON, --quiet, colour, the log and suggested next commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolegraph.cli.main import VERBS
from rolegraph.cli.terminal import Interrupted, run_until_done
from tests.cli.conftest import Command

FAULTY = """
rolegraph: 2
name: faulty
data: {train: countdown}
roles:
  solver: {prompt: hi, parser: tagg}
"""


@pytest.fixture
def words(recording: Path) -> tuple[str, ...]:
    return ("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "out")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "solver_judge", "--limit", "1", "--model", "replay:none.jsonl", "--out", "0" * 300),
        ("view", "0" * 5_000),
        ("compare", "0" * 5_000),
        ("validate", "solver_judge", "--import", f"{'0' * 5_000}.py"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_no_file_can_have_is_a_mistake_and_no_fault_of_ours(
    rolegraph: Command, words: tuple[str, ...]
) -> None:
    done = rolegraph(*words)
    assert done.returncode == 2
    assert "error:" in done.stderr and "internal" not in done.stderr and len(done.stderr) < 1_000


def test_a_run_as_a_document(rolegraph: Command, words: tuple[str, ...]) -> None:
    done = rolegraph(*words, "--json", "--fail-under", "correct=2")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert set(document) == {
        "folder", "episodes", "wanted", "seconds", "figures", "n", "roles", "under", "log", "next"
    }  # fmt: skip
    assert (document["folder"], document["episodes"], document["wanted"]) == ("out", 10, 10)
    assert document["figures"]["judge_acc"] == 1
    assert document["roles"]["solver"]["trajectories"] == 20
    assert document["roles"]["judge"]["failures"] == {}
    assert document["under"]["correct"]["floor"] == 2
    assert "right" in done.stderr and "error: correct is 1.000, under 2" in done.stderr


def test_a_quiet_run_says_nothing_but_what_is_wrong(rolegraph: Command, words: tuple[str, ...]) -> None:
    done = rolegraph(*words, "--quiet", "--fail-under", "correct=2")
    assert (done.stdout, done.stderr) == ("", "error: correct is 1.000, under 2\n")


def test_quiet_and_a_document_go_together(rolegraph: Command, words: tuple[str, ...]) -> None:
    done = rolegraph(*words, "-q", "--json")
    assert json.loads(done.stdout)["episodes"] == 10
    assert done.stderr == ""


def test_specs_as_a_document(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(FAULTY)
    done = rolegraph("validate", "--json", "solver_judge", "faulty.yaml", "missing")
    assert done.returncode == 2
    valid, faulty, missing = json.loads(done.stdout)["specs"]
    assert (valid["valid"], valid["calls"], valid["chain"]) == (True, 3, 2)
    assert valid["roles"] == {"solver": 2, "judge": 1}
    assert not faulty["valid"]
    (found,) = (d for d in faulty["diagnostics"] if "tagg" in d["message"])
    assert (found["severity"], found["place"]["line"], found["hint"]) == ("error", 6, "did you mean 'tag'?")
    assert "missing" in missing["error"]
    assert "faulty.yaml:6:" in done.stderr


def test_a_quiet_validation_shows_faults_alone(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(FAULTY)
    assert rolegraph("validate", "-q", "solver_judge").stdout == ""
    done = rolegraph("validate", "-q", "faulty.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'tag'?" in done.stderr


def test_colour_is_what_the_environment_says(rolegraph: Command) -> None:
    assert "\x1b[1m" in rolegraph("list", "signals", FORCE_COLOR="1").stdout
    assert "\x1b[" not in rolegraph("list", "signals").stdout
    assert "\x1b[" not in rolegraph("list", "signals", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_a_table_has_colour_where_it_is_asked_for(rolegraph: Command, words: tuple[str, ...]) -> None:
    low = (*words[:-1], "one", "--fail-under", "correct=2")
    assert "\x1b[31m" in rolegraph(*low, FORCE_COLOR="1").stderr
    plain = rolegraph(*words[:-1], "two", "--fail-under", "correct=2", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[31m" not in plain.stderr


def test_a_run_leaves_a_log_of_what_went_on_and_of_each_kind_of_failure_once(
    rolegraph: Command, words: tuple[str, ...], tmp_path: Path
) -> None:
    rolegraph(*words)
    log = (tmp_path / "out" / "log.txt").read_text("utf-8").splitlines()
    assert " INFO rolegraph run solver_judge --limit 10 " in log[0]
    (failed,) = (line for line in log if "WARNING" in line)
    assert "solver 2: malformed_output: no <answer>" in failed
    done = re.search(r" INFO done: 10 episodes, (\d+) failures", log[-1])
    assert done and int(done[1]) > 1


def test_the_log_says_how_a_run_went_wrong_and_nothing_secret(rolegraph: Command, tmp_path: Path) -> None:
    url = "http://me:secret@127.0.0.1:9"
    done = rolegraph("run", "solver_judge", "--base-url", url, "--out", "out", TINKER_API_KEY="tml-x")
    assert done.returncode == 1
    log = (tmp_path / "out" / "log.txt").read_text("utf-8")
    assert "Traceback" in log and "No Tinker service answers" in log
    assert "secret" not in log and "tml-x" not in log


def test_the_next_command_is_said_as_it_is_typed(rolegraph: Command, recording: Path) -> None:
    assert "next: rolegraph run solver_judge\n" in rolegraph("validate", "solver_judge").stdout
    words = ("solver_judge", "roles.solver.count=3", "--allow", "python")
    assert f"next: rolegraph run {' '.join(words)}\n" in rolegraph("validate", *words).stdout
    words = ("run", "solver_judge", "--limit", "11", "--out", "out")
    broken = rolegraph(*words, "--model", f"replay:{recording}")
    assert "next: rolegraph run --resume --retry-failed --out out\n" in broken.stdout


@pytest.mark.parametrize(
    ("word", "named"),
    [("trian", "rolegraph train"), ("Train", "rolegraph train"), ("zzz", "rolegraph --help")],
)
def test_an_unknown_command_names_the_nearest_one(rolegraph: Command, word: str, named: str) -> None:
    done = rolegraph(word)
    assert done.returncode == 2
    assert named in done.stderr and done.stderr.count("\n") == 1


def test_help_lists_each_command_once_under_its_purpose(rolegraph: Command) -> None:
    sections = rolegraph("--help").stdout.split("\n\n")
    listed = {section.splitlines()[0]: section.splitlines()[1:] for section in sections}
    assert listed.keys() >= {"Author:", "Run:", "Train:", "Look:", "Share:"}
    named = [line.split()[0] for title, lines in listed.items() if title != "Options:" for line in lines]
    assert all(named.count(verb) == 1 for verb in VERBS)


def test_a_signal_before_the_first_call_ends_the_command_as_one_after_it(
    forked: Command, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    done = forked("run", "solver_judge", "--import", "own.py", "--allow", "python", "--out", "out")
    assert done.returncode == 143 and done.stderr.strip().startswith("interrupted")


def test_a_signal_in_an_import_ends_the_command() -> None:
    program = """
import signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "rich.progress":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGTERM)
from rolegraph.cli.main import main
sys.meta_path.insert(0, Finder())
sys.argv = ["rolegraph", "run", "solver_judge", "--limit", "1"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (143, "interrupted")


def test_a_signal_at_the_end_of_the_work_is_not_lost() -> None:
    async def ending() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as ended:
        run_until_done(ending())
    assert ended.value.exit_code == 130
