"""Tests of shell completion for bash, zsh and fish."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from rolegraph.cli.main import cli
from tests.cli.conftest import ENVIRONMENT

Offered = Callable[..., list[str]]
VARIABLE = "_ROLEGRAPH_COMPLETE"


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registries: None) -> Offered:
    def complete(shell: str, *words: str) -> list[str]:
        """Return a shell's completions of the last word of a command line."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COMP_WORDS", " ".join(("rolegraph", *words)))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        known = get_completion_class(shell)
        assert known is not None
        return known(cli, {}, "rolegraph", VARIABLE).complete().splitlines()

    return complete


def bare(lines: list[str]) -> list[str]:
    return [line.partition(",")[2] for line in lines]


def test_bash_is_told_the_specs_shipped_and_in_files(offered: Offered, tmp_path: Path) -> None:
    (tmp_path / "solve_mine.yaml").touch()
    (tmp_path / "solve_mine.txt").touch()
    found = bare(offered("bash", "run", "solve"))
    assert {"solver_judge ", "solver_only ", "solve_mine.yaml "} <= {*found}
    assert not any(".txt" in word for word in found)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("run", "solver_judge", "roles."), ["roles.solver.", "roles.judge."]),
        (("run", "solver_judge", "roles.solver.co"), ["roles.solver.count="]),
        (("train", "solver_judge", "train.lora.r"), ["train.lora.rank="]),
        (("run", "solver_judge", "mod"), ["model.", "model="]),
        (("validate", "solver_judge", "roles.judge.parser", "=", "ch"), ["choice "]),
        (("run", "solver_judge", "roles.solver.estimator", "="), ["grpo ", "reinforce "]),
        (("run", "solver_judge", "roles.judge.needs", "=", "s"), ["solver "]),
        (("run", "solver_judge", "train.lora.mlp", "="), ["true ", "false "]),
        (("run", "solver_judge", "train.schedule", "=", "l"), ["linear "]),
        (("run", "solver_judge", "--model", "re"), ["replay:"]),
        (("list", "parsers", "ta"), ["tag "]),
    ],
    ids=" ".join,
)
def test_bash_is_told_keys_names_and_the_vocabulary(
    offered: Offered, words: tuple[str, ...], some: list[str]
) -> None:
    found = bare(offered("bash", *words))
    assert {*some} <= {*found}
    last = "" if words[-1] == "=" else words[-1]
    assert all(word.startswith(last) for word in found)


def test_fish_and_zsh_have_the_whole_word_and_what_it_means(offered: Offered) -> None:
    (fish,) = offered("fish", "run", "solver_judge", "roles.judge.parser=ch")
    assert fish.startswith("plain\nroles.judge.parser=choice") or "roles.judge.parser=choice" in fish
    found = offered("zsh", "run", "solver_judge", "roles.solver.cou")
    assert found[:2] == ["plain", "roles.solver.count="]
    assert "instances" in found[2]


def test_a_run_is_offered_where_one_is_asked_for(offered: Offered, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "two" / "run.json").touch()
    assert bare(offered("bash", "export", "runs/")) == ["runs/two "]


def test_a_spec_that_cannot_be_read_has_no_names(offered: Offered) -> None:
    assert offered("bash", "run", "missing.yaml", "roles.") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_installed_command_writes_each_shells_script(shell: str) -> None:
    """Request the script from a new process, as a shell does, and check the name of its function."""
    code = "from rolegraph.cli.main import cli; cli.main(prog_name='rolegraph')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **ENVIRONMENT, VARIABLE: f"{shell}_source"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_rolegraph_completion" in done.stdout, done.stderr
    assert f"{VARIABLE}={shell}_complete" in done.stdout
