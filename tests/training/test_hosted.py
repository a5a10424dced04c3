"""Rehearsal of a hosted service: a small training of two policies through each of its refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rolegraph.engine.records import FailureName, RunFolder, read_episodes
from rolegraph.engine.records.weights import ADAPTER_WEIGHTS, checkpoint_folder
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.hosted import FROM_NOW_ON, KEY, RENEWED, Fault, Hosted, hosted
from tests.trainings import train

pytestmark = pytest.mark.service
safetensors: Any = pytest.importorskip("safetensors.numpy")
TRAINING = (
    "solver_judge",
    "policies={solve: {}, judge: {}}",
    "roles.solver.policy=solve",
    "roles.judge.policy=judge",
    "model={provider: tinker, concurrency: 1}",  # one call at a time, so that the n-th is the same call
    "train.batch_size=1",
    "train.rollouts=2",
    "train.steps=2",
    "train.learning_rate=0.002",
    "train.checkpoint_every=1",
    "train.validation={every: 0, tasks: 1, rollouts: 1}",
    "sampling.max_tokens=24",
)
SEED = 3
"""Seed with which both steps train both policies."""
SAMPLES = 12
"""Number of the call in the second step at which most faults begin: a validation has 3, and a step 6."""
ALMOST = 1e-3
"""Largest distance of equal weights, by their norm: the service's batches differ in rounding."""
NO_PAUSE = {"billing_exception_max_pause_duration_sec": 0}


class Trained(NamedTuple):
    """Answers that a training sampled, and its adapters."""

    tokens: list[tuple[str, str, Sequence[int], Sequence[int]]]
    """Episode, role and token ids of each answer of its steps."""
    weights: np.ndarray[tuple[int], np.dtype[np.float32]]
    """All adapters, flattened."""

    def is_that_of(self, other: Trained) -> bool:
        """Return True if the tokens are equal, and the weights but for rounding."""
        distance = np.linalg.norm(self.weights - other.weights)
        return self.tokens == other.tokens and bool(distance <= ALMOST * np.linalg.norm(other.weights))


def trained(folder: Path, state_dir: Path) -> Trained:
    """Read a training that is done."""
    run = RunFolder(folder)
    last = run.last_checkpoint()
    assert last is not None and last.step == 2
    tensors: list[np.ndarray[Any, Any]] = []
    for _, saved in sorted(last.policies.items()):
        at = checkpoint_folder(saved.sampler, state_dir)
        assert at is not None
        adapter = safetensors.load_file(at / ADAPTER_WEIGHTS)
        tensors += [adapter[name].ravel() for name in sorted(adapter)]
    episodes = [it for _, file in run.episodes_files("train") for it in read_episodes(file)]
    trajectories = [(it.id, trajectory) for it in episodes for trajectory in it.trajectories]
    assert not [it for _, it in trajectories if it.failure and it.failure.name == FailureName.MODEL_ERROR]
    steps = [(id, it.name, step) for id, it in trajectories for step in it.steps]
    tokens = [(id, name, step.prompt_ids, step.response_ids) for id, name, step in steps]
    return Trained(tokens, np.concatenate(tensors))


@pytest.fixture
def proxy(service: LocalService) -> Iterator[Hosted]:
    with hosted(service) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def undisturbed(service: LocalService, state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train without a fault."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with hosted(service) as proxy:
        train(folder, *TRAINING, service=replace(service, base_url=proxy.base_url, api_key=KEY), seed=SEED)
    assert proxy.requests["optim_step"] == 4
    return trained(folder, state_dir)


LATER = {"retry-after": "0.2"}


@pytest.mark.parametrize(
    ("queue", "faults"),
    [
        (
            0,
            [
                Fault("asample", 5, 6, 429, "slow down"),
                Fault("optim_step", 1, 1, 429, "slow down"),
                Fault("forward_backward", 2, 3, 429, "slow down", LATER),
                Fault("asample", SAMPLES, SAMPLES, 402, "no card"),
                Fault("retrieve_future", 12, 12, 410, "the result is no longer kept"),
            ],
        ),
        (6, []),
    ],
    ids=["429, 402 for a while, a lost result", "queue"],
)
def test_a_training_waits_and_ends_with_the_same_weights(
    queue: int,
    faults: list[Fault],
    proxy: Hosted,
    undisturbed: Trained,
    state_dir: Path,
    tmp_path: Path,
    rolegraph: Command,
) -> None:
    proxy.queue, proxy.faults = queue, faults
    where = ("--base-url", proxy.base_url, "--out", "run")
    done = rolegraph("train", *TRAINING, *where, "--seed", str(SEED), TINKER_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert proxy.refused.total() == sum(it.last - it.first + 1 for it in faults)
    assert "Sampling is paused" in done.stderr if queue else "paused due to billing" in done.stderr
    assert trained(tmp_path / "run", state_dir).is_that_of(undisturbed)


def always(path: str, first: int, status: int, detail: str) -> dict[str, Any]:
    return {"faults": [Fault(path, first, FROM_NOW_ON, status, detail)]}


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"expires_after": ("retrieve_future", 2 * SAMPLES)}, 2, "refuses the key in TINKER_API_KEY"),
        (
            {"expires_after": ("asample", SAMPLES), "config": {"pjwt_auth_enabled": True}},
            2,
            "refuses the key in TINKER_API_KEY",
        ),
        (
            {"config": NO_PAUSE, **always("asample", SAMPLES, 402, "no card")},
            2,
            "until its billing .*no card",
        ),
        (always("asample", SAMPLES, 410, "it is over"), 1, "no longer has the session .*it is over"),
    ],
    ids=["key, result", "key, token", "402", "session"],
)
def test_a_training_stops_with_the_reason_and_resumes_to_the_same_weights(
    settings: dict[str, Any],
    code: int,
    message: str,
    proxy: Hosted,
    undisturbed: Trained,
    state_dir: Path,
    tmp_path: Path,
    rolegraph: Command,
) -> None:
    for name, value in settings.items():
        setattr(proxy, name, value)
    where = ("--base-url", proxy.base_url, "--out", "run")
    done = rolegraph("train", *TRAINING, *where, "--seed", str(SEED), TINKER_API_KEY=KEY)
    assert done.returncode == code and re.search(f"error: .*{message}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr and "--resume" in done.stdout + done.stderr
    proxy.faults, proxy.expires_after, proxy.keys = [], None, {RENEWED}
    done = rolegraph("train", "--resume", *where, TINKER_API_KEY=RENEWED)
    assert done.returncode == 0, done.stderr
    assert trained(tmp_path / "run", state_dir).is_that_of(undisturbed)


def test_a_training_whose_session_and_checkpoint_end_resumes_once_the_checkpoint_is_back(
    proxy: Hosted, undisturbed: Trained, state_dir: Path, tmp_path: Path, rolegraph: Command
) -> None:
    where = ("--base-url", proxy.base_url, "--out", "run")
    proxy.faults = [Fault("optim_step", 4, FROM_NOW_ON, 410, "it is over")]
    done = rolegraph("train", *TRAINING, *where, "--seed", str(SEED), TINKER_API_KEY=KEY)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search("error: .* cannot train on this batch: .*it is over", done.stderr), done.stderr
    proxy.faults = [
        Fault(path, 1, FROM_NOW_ON, 404, "it has expired") for path in ("load_weights", "weights_info")
    ]
    done = rolegraph("train", "--resume", *where, TINKER_API_KEY=KEY)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search("error: .* cannot resume from tinker://.*it has expired.*train again", done.stderr), (
        done.stderr
    )
    proxy.faults = []
    done = rolegraph("train", "--resume", *where, TINKER_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert trained(tmp_path / "run", state_dir).is_that_of(undisturbed)
