"""What goes wrong with a run is named, and loses nothing that was finished."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import rolegraph as rg

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from tests.local.conftest import make_model
from tests.trainings import SMALL, assert_same, metrics, start, train, train_command, wait_for_lines

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_a_full_disk_at_a_checkpoint_is_named_and_the_last_good_one_stays_usable(
    whole: Path, service: Running, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, "solver_judge", *SMALL, service=service)
    wait_for_lines(out, 3, process)
    limits = resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    try:
        noted = process.communicate(timeout=120)[1]
    finally:
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, limits)
    assert process.returncode == 1
    assert "cannot write the checkpoint" in noted and "Traceback" not in noted
    train_command(out, "--resume", service=service)
    assert_same(metrics(out), metrics(whole))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.train={countdown: {count: 3}}"], "3 tasks, which do not fill a batch of 4"),
        (["data.train=null"], "has no training data"),
        (["model=openai:x"], "a model of openai cannot be trained"),
        (["roles.judge.model=openai:x"], "judge has a model of its own"),
        (["roles.judge.sampling={temperature: 0.5}"], "learns from what the policy itself says"),
        (["roles.solver.trainable=false", "roles.judge.trainable=false"], "there is nothing to train"),
        (["model=tinker:Qwen/Qwen3-8B"], "TINKER_API_KEY is not set"),
    ],
)
def test_what_cannot_be_trained_is_said_at_once(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(rg.UserError, match=said):
        rg.train(rg.load("solver_judge", *SMALL, *words), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_says_so_too(tmp_path: Path) -> None:
    _, noted = train_command(tmp_path / "run", "solver_judge", *SMALL, "--model", "openai:x", code=2)
    assert "a model of openai cannot be trained" in noted


def test_a_service_that_is_not_there_is_named(tmp_path: Path) -> None:
    nowhere = Running("http://127.0.0.1:9", "", "tml-any", 0)
    _, noted = train_command(tmp_path / "run", "solver_judge", *SMALL, service=nowhere, code=1)
    assert "No Tinker service answers at http://127.0.0.1:9" in noted


def test_a_teacher_of_another_vocabulary_is_refused(service: Running, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other")
    teacher = f"roles.judge.signal={{reverse_kl: {{teacher: {{provider: local, name: '{other}'}}}}}}"
    with pytest.raises(rg.UserError, match="the teacher of judge has another vocabulary"):
        train(tmp_path / "run", "solver_judge_distill", *SMALL, teacher, service=service)


def test_a_refused_key_is_named(service: Running, tmp_path: Path) -> None:
    wrong = Running(service.base_url, service.model_name, "tml-wrong", service.pid)
    _, noted = train_command(tmp_path / "run", "solver_judge", *SMALL, service=wrong, code=2)
    assert "refuses the key in TINKER_API_KEY" in noted
    assert "tml-wrong" not in noted


def test_a_teacher_that_is_down_is_named_before_anything_is_trained(service: Running, tmp_path: Path) -> None:
    teacher = "roles.judge.signal={reverse_kl: {teacher: {provider: tinker, name: t, base_url: 'http://127.0.0.1:9'}}}"
    _, noted = train_command(
        tmp_path / "run", "solver_judge_distill", *SMALL, teacher, service=service, code=1
    )
    assert "No Tinker service answers at http://127.0.0.1:9" in noted
