"""Tests of errors during a training: their messages, and the finished work that is kept."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph import api

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.errors import WorldError
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.local.conftest import make_model
from tests.trainings import SMALL, assert_same, at, key, metrics, train

pytestmark = pytest.mark.service


def test_a_full_disk_at_a_checkpoint_is_named_and_the_last_good_one_stays_usable(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out, disk = tmp_path / "run", resource.RLIMIT_FSIZE

    def fill_up(event: api.Event) -> None:
        if isinstance(event, api.StepLogged) and event.step == 4:  # the checkpoint of step 4 is next
            resource.prlimit(service.pid, disk, (50_000, resource.RLIM_INFINITY))

    try:
        with pytest.raises(WorldError, match="cannot write the checkpoint"):
            train(out, "solver_judge", *SMALL, service=service, observe=fill_up)
    finally:
        resource.prlimit(service.pid, disk, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    again = rolegraph("train", "--resume", "--out", str(out), **key(service))
    assert again.returncode == 0, again.stderr
    assert_same(metrics(out), metrics(whole))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.train={countdown: {count: 3}}"], "3 tasks, which do not fill a batch of 4"),
        (["data.train=null"], "has no training data"),
        (["model=openai:x"], "a model of openai cannot be trained"),
        (["roles.judge.model=openai:x"], "judge has a model of its own"),
        (["roles.judge.sampling={temperature: 0.5}"], "learns from samples of the policy itself"),
        (["roles.solver.estimator=null", "roles.judge.estimator=null"], "there is nothing to train"),
        (["model=tinker:Qwen/Qwen3-8B"], "TINKER_API_KEY is not set"),
    ],
)
def test_what_cannot_be_trained_is_said_at_once(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(api.UserError, match=said):
        rg.train(rg.load("solver_judge", *SMALL, *words), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_says_so_too(rolegraph: Command) -> None:
    done = rolegraph("train", "solver_judge", *SMALL, "--model", "openai:x")
    assert done.returncode == 2
    assert "a model of openai cannot be trained" in done.stderr


NOWHERE = "http://127.0.0.1:9"


def test_a_service_that_is_not_there_is_named(rolegraph: Command) -> None:
    done = rolegraph("train", "solver_judge", *SMALL, "--base-url", NOWHERE, TINKER_API_KEY="tml-any")
    assert done.returncode == 1
    assert f"No Tinker service answers at {NOWHERE}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_teacher_of_another_vocabulary_is_refused(service: LocalService, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other")
    teacher = f"roles.judge.signal={{reverse_kl: {{teacher: {{provider: local, name: '{other}'}}}}}}"
    with pytest.raises(api.UserError, match="the teacher of judge has another vocabulary"):
        train(tmp_path / "run", "solver_judge_distill", *SMALL, teacher, service=service)


def test_a_refused_key_is_named(service: LocalService, rolegraph: Command) -> None:
    words = ("train", "solver_judge", *SMALL, "--base-url", service.base_url)
    done = rolegraph(*words, TINKER_API_KEY="tml-wrong")
    assert done.returncode == 2
    assert "refuses the key in TINKER_API_KEY" in done.stderr
    assert "tml-wrong" not in done.stdout + done.stderr


def test_a_teacher_that_is_down_is_named_before_anything_is_trained(
    service: LocalService, tmp_path: Path
) -> None:
    at = f"provider: tinker, name: t, base_url: '{NOWHERE}'"
    teacher = f"roles.judge.signal={{reverse_kl: {{teacher: {{{at}}}}}}}"
    with pytest.raises(WorldError, match=f"No Tinker service answers at {NOWHERE}"):
        train(tmp_path / "run", "solver_judge_distill", *SMALL, teacher, service=service)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_reward_that_always_raises_stops_a_training_unless_it_is_told_to_keep_going(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    failing = ("train.steps=1", "roles.solver.reward=action + 1")
    words = ("train", "solver_judge", *SMALL, *failing, *at(service))
    stopped = rolegraph(*words, "--out", "stopped", **key(service))
    assert stopped.returncode == 2
    for word in ("every answer of solver failed", "reward_error", "--keep-going"):
        assert word in " ".join(stopped.stderr.split())
    assert "best weights" not in stopped.stdout and not (tmp_path / "stopped" / "checkpoints.jsonl").exists()
    done = rolegraph(*words, "--out", "done", "--keep-going", **key(service))
    assert done.returncode == 0, done.stderr
    assert "every answer of solver failed" in " ".join(done.stderr.split())
    refused = rolegraph(*words, "--keep-going", "--trainer", "rllm")
    assert refused.returncode == 2 and "--keep-going" in refused.stderr
