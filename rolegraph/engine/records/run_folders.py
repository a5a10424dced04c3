"""Runs and trainings among others: the newest of a folder, and the training that saved given weights."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.folder import INFO, PolicyPath, RunFolder
from rolegraph.engine.records.info import MAIN, Checkpoint, Kind, SavedPolicy
from rolegraph.engine.records.weights import checkpoint_folder

RUNS = Path("runs")
"""Default folder of runs, where the training that saved a `tinker://` path is sought."""


def newest(runs: Path, name: str | None = None, kind: Kind = "train") -> RunFolder:
    """Return the newest run or training in `runs`, of the spec `name` if it is given.

    Raises:
        UsageError: `runs` has no such folder.
    """
    folders: list[tuple[datetime, Path]] = []
    for file in runs.glob(f"*/{INFO}"):
        info = RunFolder(file.parent).info()
        if info.kind == kind and name in (None, info.name):
            changed_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            folders.append((info.started or changed_at, file.parent))
    if not folders:
        run = "training run" if kind == "train" else "run"
        noun = f"{run} of {name}" if name else run
        raise UsageError(f"there is no {noun} in {runs}/ to resume; name its folder with --out")
    return RunFolder(max(folders)[1])


class SavedWeights(NamedTuple):
    """Weights of one policy that a training saved."""

    run: RunFolder
    checkpoint: Checkpoint
    policy: str
    paths: SavedPolicy

    @property
    def are_here(self) -> bool:
        """True if the training's folder holds the weights."""
        folder = checkpoint_folder(self.paths.sampler, self.run.weights)
        return folder is not None and folder.is_dir()


def saved_weights(checkpoint: str) -> SavedWeights | None:
    """Find the training that saved weights.

    Args:
        checkpoint: Folder of a training (`FOLDER#POLICY` for one of several policies), which means its best
            weights, or a `tinker://` path of a `checkpoints.jsonl` in `runs/`.

    Returns:
        The weights; None for a path that no training in `runs/` saved.

    Raises:
        UsageError: The folder is not a training's, or has no such weights.
        DataError: The file with the path is damaged.
    """
    if (training := PolicyPath.parse(checkpoint)) is not None:
        run = RunFolder(Path(training.folder))
        paths, best_checkpoint = run.best_of(training.policy), run.best()
        only = next(iter(best_checkpoint.policies)) if len(best_checkpoint.policies) == 1 else MAIN
        return SavedWeights(run, best_checkpoint, training.policy or only, paths)
    files = chain(RUNS.glob("*/checkpoints.jsonl"), RUNS.glob("*/*/checkpoints.jsonl"))  # also of sweeps
    for run in (RunFolder(file.parent) for file in files if checkpoint.encode() in file.read_bytes()):
        for step in run.checkpoints():
            for policy, paths in step.policies.items():
                if checkpoint in (paths.state, paths.sampler):
                    return SavedWeights(run, step, policy, paths)
    return None
