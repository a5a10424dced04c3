"""Runs on a Ray cluster of three nodes, which are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph import api
from tests.models.edges import Endpoint, chat_answer, serving
from tests.waiting import soon

pytest.importorskip("ray", reason="needs Ray: pip install 'rolegraph[ray]'")

from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.ray,
    # Ray itself leaves sockets and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TASKS, ROLLOUTS = 40, 3
SLOTS = 4
KEY = "sk-of-this-run-0815"


class LivingCluster:
    """A head without CPUs, and nodes that tests may kill."""

    def __init__(self) -> None:
        # A killed node is noticed after seconds, not after half a minute.
        checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
        self.cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": checks},
        )
        self.nodes: list[Any] = []
        self.fill()

    def fill(self) -> None:
        while len(self.nodes) < 3:
            self.nodes.append(self.cluster.add_node(num_cpus=1))

    def kill_node(self) -> None:
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def living() -> Iterator[LivingCluster]:
    living = LivingCluster()
    yield living
    living.cluster.shutdown()


@pytest.fixture
def address(living: LivingCluster) -> str:
    living.fill()
    return living.cluster.address


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """Serve a model that takes 50 ms, and whose answer follows from the prompt and the seed."""

    async def answer(body: dict[str, Any]) -> Response:
        await asyncio.sleep(0.05)
        said = sha256(f"{body['messages'][-1]['content']} {body['seed']}".encode()).digest()
        return chat_answer(f"<answer>{said[0] % 3}</answer>")

    with serving(answer) as endpoint:
        yield endpoint


@pytest.fixture
def flow(endpoint: Endpoint) -> rg.Workflow:
    return rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)


def job(flow: rg.Workflow, out: Path) -> rg.RunJob:
    return rg.RunJob.create(flow, limit=TASKS, rollouts=ROLLOUTS, seed=7, out=out)


def without_times(folder: Path) -> dict[tuple[str, int], str]:
    """Return the line of each episode without its times; fails where an episode stands twice."""
    lines: dict[tuple[str, int], str] = {}
    text = (folder / "episodes.jsonl").read_text()
    for episode, line in zip(rg.read_episodes(folder / "episodes.jsonl"), text.splitlines(), strict=True):
        key = episode.task_id, episode.rollout
        assert key not in lines
        lines[key] = re.sub(r'"(\w+_at|seconds|started)": ?[\d.e-]+', r'"\1": 0', line)
    return lines


@pytest.fixture(scope="module")
def here(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """Make the episodes in this process."""
    folder = tmp_path_factory.mktemp("here") / "run"
    flow = rg.load("solver_judge", model="openai:tiny", base_url=endpoint.base_url)
    asyncio.run(job(flow, folder).run())
    return without_times(folder)


def test_three_nodes_make_the_episodes_of_one_machine(
    flow: rg.Workflow, address: str, here: dict[tuple[str, int], str], tmp_path: Path
) -> None:
    events: list[api.Event] = []
    result = asyncio.run(job(flow, tmp_path / "run").run(events.append, concurrency=SLOTS, on=address))
    assert without_times(result.folder) == here
    assert len(here) == TASKS * ROLLOUTS
    (notice,) = (e.text for e in events if isinstance(e, api.Note) and e.kind == "notice")
    assert notice.startswith("Ray: 12 episodes in flight, 4 on each node")
    calls = Counter(type(event).__name__ for event in events)
    assert calls["CallDone"] == 3 * TASKS * ROLLOUTS
    assert calls["EpisodeDone"] == TASKS * ROLLOUTS


def test_a_node_that_is_killed_costs_no_episode_and_repeats_none(
    flow: rg.Workflow,
    living: LivingCluster,
    address: str,
    here: dict[tuple[str, int], str],
    tmp_path: Path,
) -> None:
    done, warnings = 0, list[str]()

    def observe(event: api.Event) -> None:
        nonlocal done
        done += isinstance(event, api.EpisodeDone)
        if done == 20 and len(living.nodes) == 3:
            living.kill_node()
        if isinstance(event, api.Note) and event.kind == "warning":
            warnings.append(event.text)

    result = asyncio.run(job(flow, tmp_path / "run").run(observe, concurrency=SLOTS, on=address))
    assert len(living.nodes) == 2
    assert without_times(result.folder) == here
    assert any("has died" in text for text in warnings)


def test_a_command_that_is_killed_goes_on_with_the_missing_episodes(
    endpoint: Endpoint, address: str, here: dict[tuple[str, int], str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    source = ("solver_judge", "--model", "openai:tiny", "--base-url", endpoint.base_url)
    settings = ("--limit", str(TASKS), "--rollouts", str(ROLLOUTS), "--seed", "7")
    cluster = ("--on", address, "--concurrency", str(SLOTS), "--out", str(out))
    words = (sys.executable, "-m", "rolegraph", "run")
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    with subprocess.Popen(
        [*words, *source, *settings, *cluster],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as command:
        file = out / "episodes.jsonl"
        assert soon(lambda: file.exists() and file.read_bytes().count(b"\n") >= 20)
        command.send_signal(signal.SIGKILL)
    assert file.read_bytes().count(b"\n") < TASKS * ROLLOUTS
    resumed = subprocess.run(
        [*words, "--resume", *cluster, *source[1:]], env=environment, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    assert without_times(out) == here
    assert f"{TASKS * ROLLOUTS} in all" in resumed.stdout

    assert f"Bearer {KEY}" in endpoint.keys
    written = [out / "log.txt", *Path("/tmp/ray/session_latest").resolve().rglob("*")]
    assert not [f for f in written if f.is_file() and KEY.encode() in f.read_bytes()]


def test_the_error_of_a_worker_is_that_of_one_machine(address: str, tmp_path: Path) -> None:
    flow = rg.load("solver_judge", model="openai:tiny", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(rg.WorldError, match=r"Nothing answers at http://127\.0\.0\.1:9/v1"):
        asyncio.run(job(flow, tmp_path / "run").run(on=address))


def test_workers_import_nothing_from_the_working_folder(
    flow: rg.Workflow, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "httpx.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    result = asyncio.run(rg.run_async(flow, limit=2, out="run", on=address))
    assert result.figures["episodes"] == 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_named(flow: rg.Workflow, address: str, tmp_path: Path) -> None:
    with pytest.raises(rg.WorldError, match=f"no Ray cluster answers at {address}"):
        asyncio.run(job(flow, tmp_path / "run").run(on=address))


def test_an_address_that_is_none_is_refused(flow: rg.Workflow, tmp_path: Path) -> None:
    with pytest.raises(rg.UsageError, match="'slurm' is no cluster; expected ray, ray://HOST:PORT"):
        asyncio.run(job(flow, tmp_path / "run").run(on="slurm"))


SMALL = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.steps=3",
    "train.validation={every: 3, tasks: 2, rollouts: 1}",
)


def trained(out: Path, *overrides: str, on: str | None, observe: rg.Observer | None = None) -> Path:
    training = rg.TrainingJob.create(rg.load("solver_judge", *SMALL, *overrides), out=out, seed=3)
    return asyncio.run(training.run(observe, rollouts_on=on)).folder


def sampled(folder: Path) -> list[list[tuple[object, ...]]]:
    """Return uid, reward, tokens and versions of each trajectory in each file, in the order of uids."""
    files = sorted((folder / "episodes").glob("*[0-9].jsonl"))
    return [
        sorted(
            (t.uid, t.reward, *((step.response_ids, step.weight_version) for step in t.steps))
            for episode in rg.read_episodes(file)
            for t in episode.trajectories
        )
        for file in files
    ]


def versions(folder: Path) -> list[set[int | None]]:
    """Return the versions of the weights that sampled each step's training episodes."""
    files = sorted((folder / "episodes").glob("train-*[0-9].jsonl"))
    return [
        {step.weight_version for e in rg.read_episodes(file) for t in e.trajectories for step in t.steps}
        for file in files
    ]


def test_a_training_on_three_nodes_is_that_of_one_machine(address: str, tmp_path: Path) -> None:
    here, there = trained(tmp_path / "a", on=None), trained(tmp_path / "b", on=address)
    assert versions(there) == [{0}, {1}, {2}]
    # The log-probabilities depend on what else is in the service's batch, in their last digits.
    assert sampled(there) == sampled(here)
    # Weights that only the rollouts needed are gone.
    assert not [*there.rglob("rollouts-*")]


def test_a_node_that_is_killed_during_a_training_costs_no_episode(
    living: LivingCluster, address: str, tmp_path: Path
) -> None:
    def observe(event: api.Event) -> None:
        if isinstance(event, api.StepLogged) and event.step == 1 and len(living.nodes) == 3:
            living.kill_node()

    folder = trained(tmp_path / "run", "train.staleness=1", on=address, observe=observe)
    assert len(living.nodes) == 2
    assert versions(folder) == [{0}, {0}, {1}]
    # Two greedy validations, three steps, two validations.
    assert [len({uid for uid, *_ in file}) for file in sampled(folder)] == [6, 6, 12, 12, 12, 6, 6]
    assert [len(file) for file in sampled(folder)] == [6, 6, 12, 12, 12, 6, 6]
    assert not [*folder.rglob("rollouts-*")]


def test_a_server_for_samples_goes_with_rollouts_of_this_process(address: str, tmp_path: Path) -> None:
    sample_from = "train.sample_from={provider: vllm, name: m, base_url: 'http://127.0.0.1:9'}"
    with pytest.raises(rg.UsageError, match=r"train\.sample_from"):
        trained(tmp_path / "run", sample_from, on=address)
