"""`tinker://` paths of a training's `checkpoints.jsonl`, as the command takes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.trainings import STEP, key

pytest.importorskip("torch", reason="needs the extra `local`")
FEW = ("--limit", "2", "--rollouts", "1")


@pytest.fixture
def at_service(whole: Path, tmp_path: Path) -> RunFolder:
    """Return a training in `runs/` whose weights are at the service that trained it."""
    return RunFolder(shutil.copytree(whole, tmp_path / "runs" / "served"))


@pytest.fixture
def here(whole: Path, state_dir: Path, tmp_path: Path) -> RunFolder:
    """Return a training in `runs/` that holds its weights, as one with the local service does."""
    run = RunFolder(shutil.copytree(whole, tmp_path / "runs" / "here"))
    first = run.checkpoints()[0].policies["main"].state.removeprefix("tinker://").replace(":", "_")
    name = first.partition("/")[0]
    # Snapshots of a live session come and go.
    shutil.copytree(state_dir / name, run.weights / name, ignore=shutil.ignore_patterns("snapshot-*"))
    return run


def texts(folder: Path) -> list[str]:
    """Return the answers of a run, by task; episodes are written in the order in which they end."""
    episodes = sorted(read_episodes(folder / "episodes.jsonl"), key=lambda episode: episode.task_id)
    return [step.model_response for e in episodes for t in e.trajectories for step in t.steps]


def test_a_path_of_weights_in_a_folder_is_a_model_wherever_its_service_is(
    here: RunFolder, rolegraph: Command, tmp_path: Path
) -> None:
    first, best = here.checkpoints()[0].policies["main"], here.best_of(None)
    assert first != best
    for name, model in {"first": first.state, "sampler": first.sampler, "best": best.sampler}.items():
        done = rolegraph("run", "solver_judge", "--model", model, *FEW, "--out", name)
        assert done.returncode == 0, done.stderr
    assert texts(tmp_path / "first") == texts(tmp_path / "sampler") != texts(tmp_path / "best")
    words = ("train", "solver_judge", f"policies.main.checkpoint={first.sampler}", *STEP, "--out", "onward")
    done = rolegraph(*words)
    assert done.returncode == 0, done.stderr


def test_a_path_of_a_service_is_asked_there(
    at_service: RunFolder, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    first = at_service.checkpoints()[0].policies["main"]
    for words in (
        ("run", "solver_judge", "--model", first.state, *FEW, "--out", "out"),
        ("eval", "solver_judge", "--checkpoint", first.state, "--tasks", "1", "--rollouts", "1"),
        ("export", first.sampler),
    ):
        done = rolegraph(*words, **key(service))
        assert done.returncode == 0, done.stderr
    assert texts(tmp_path / "out")
    step = at_service.checkpoints()[0].step
    assert f"| steps | {step} of" in (at_service.path / f"adapter-main-{step}" / "README.md").read_text()
    done = rolegraph("eval", "two_policies", "--checkpoint", first.state)
    assert done.returncode == 2
    assert (
        "trains solver, judge" in done.stderr and "give the folder of a training, runs/served" in done.stderr
    )


@pytest.mark.parametrize(
    "words",
    [("run", "solver_judge", *FEW, "--model"), ("eval", "solver_judge", "--checkpoint"), ("export",)],
    ids=lambda words: words[0],
)
def test_a_path_that_the_named_service_does_not_have_is_told_with_the_service_that_has_it(
    at_service: RunFolder, service: LocalService, rolegraph: Command, words: tuple[str, ...]
) -> None:
    file, out = at_service.checkpoints_file, ("--out", "out")
    file.write_text(file.read_text().replace("step-", "gone-"))
    path = at_service.checkpoints()[0].policies["main"].state
    done = rolegraph(*words, path, *out, "--base-url", service.base_url, **key(service))
    assert done.returncode == 2
    assert f"runs/served was trained at {service.base_url}: name that service with" in done.stderr
    at_service.path.rename(at_service.path.parents[1] / "elsewhere")
    done = rolegraph(*words, path, *out, TINKER_API_KEY="")
    assert done.returncode == 2
    assert "No training in runs/ saved these weights: name the folder of their training" in done.stderr
