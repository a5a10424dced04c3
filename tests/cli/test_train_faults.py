"""What goes wrong with a run is named, and loses nothing that was finished."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import BASE_MODEL, Running, running
from tests.local.conftest import make_model
from tests.trainings import SMALL, assert_same, metrics, start, train_command, wait_for_lines

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_a_full_disk_at_a_checkpoint_is_named_and_the_last_good_one_stays_usable(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with running(BASE_MODEL, state_dir=tmp_path / "weights", threads=1) as service:
        process = start(out, "solver_judge", *SMALL, service=service)
        wait_for_lines(out, 4, process)
        limits = resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        noted = process.communicate(timeout=120)[1]
        assert process.returncode == 1
        assert "cannot write the checkpoint" in noted and "Traceback" not in noted
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, limits)
        train_command(out, "--resume", service=service)
    assert_same(metrics(out), metrics(whole))


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["data.train={countdown: {count: 3}}"], "3 tasks, which do not fill a batch of 4", 2),
        (["data.train=null"], "has no training data", 2),
        (["--model", "openai:x"], "a model of openai cannot be trained", 2),
        (["roles.judge.model=openai:x"], "judge has a model of its own", 2),
        (["roles.judge.sampling={temperature: 0.5}"], "learns from what the policy itself says", 2),
        (["roles.solver.trainable=false", "roles.judge.trainable=false"], "there is nothing to train", 2),
        (["--model", "tinker:Qwen/Qwen3-8B"], "TINKER_API_KEY is not set", 2),
    ],
)
def test_what_cannot_be_trained_is_said_at_once(
    words: list[str], said: str, code: int, tmp_path: Path
) -> None:
    _, noted = train_command(tmp_path / "run", "solver_judge", *SMALL, *words, code=code)
    assert said in noted


def test_a_service_that_is_not_there_is_named(tmp_path: Path) -> None:
    nowhere = Running("http://127.0.0.1:9", "", "tml-any", 0)
    _, noted = train_command(tmp_path / "run", "solver_judge", *SMALL, service=nowhere, code=1)
    assert "No Tinker service answers at http://127.0.0.1:9" in noted


def test_a_teacher_of_another_vocabulary_is_refused(service: Running, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other")
    teacher = f"roles.judge.signal={{reverse_kl: {{teacher: {{provider: local, name: '{other}'}}}}}}"
    _, noted = train_command(
        tmp_path / "run", "solver_judge_distill", *SMALL, teacher, service=service, code=2
    )
    assert "the teacher of judge has another vocabulary" in noted


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
