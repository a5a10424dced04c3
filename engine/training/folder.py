"""A training run's folder: what it is of, a line of metrics for each step, episodes, and its checkpoints.

Files appear whole (written beside, then renamed) or grow by whole lines, so a run that is killed at any
moment can be taken up again from what is here.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.compile.plan import Plan
from engine.errors import DataError, UsageError, WorldError
from engine.records import Episode
from engine.records.store import SPEC, episode_line, write_whole
from engine.training.policies import Saved

RUN, METRICS, CHECKPOINTS, EPISODES, WEIGHTS = (
    "run.json",
    "metrics.jsonl",
    "checkpoints.jsonl",
    "episodes",
    "weights",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place to go on from: after `step` batches, `version` of which changed the weights."""

    step: int
    version: int
    state: str
    sampler: str
    best: bool = False
    """Whether its validation was the best so far."""
    validation: Mapping[str, float] = field(default_factory=dict[str, float])


class TrainingFolder:
    """The folder of one training run. Everything raises WorldError where the disk does not take it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / WEIGHTS
        """Where a service started for the run keeps its checkpoints."""

    # beginning and going on

    def check_new(self) -> None:
        """Raises UsageError where there is a run already."""
        if (self.path / RUN).exists():
            raise UsageError(
                f"{self.path} already holds a run; go on with --resume, or choose another folder with --out"
            )

    def begin(self, plan: Plan, about: Mapping[str, Any]) -> None:
        """Start a run in a new folder."""
        self._made(self.path / EPISODES)
        write_whole(self.path / SPEC, plan.resolved.encode())
        about = {"name": plan.name, "hash": plan.hash, "templates": _templates(plan), **about}
        write_whole(self.path / RUN, json.dumps(about, indent=1).encode())

    def about(self) -> dict[str, Any]:
        """What `begin` wrote; raises UsageError where no run was begun."""
        try:
            return json.loads((self.path / RUN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{self.path} holds no training run: there is no {RUN} in it") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / RUN} cannot be read: {error}") from error

    def check_same(self, plan: Plan) -> None:
        """Raises UsageError, showing the difference, where the run was begun with another spec."""
        about = self.about()
        if about["hash"] == plan.hash:
            return
        was = (self.path / SPEC).read_text(encoding="utf-8")
        parts = [_difference("spec", was, plan.resolved)]
        now = _templates(plan)
        old: Mapping[str, str] = about.get("templates", {})
        parts += [_difference(name, old.get(name, ""), now.get(name, "")) for name in {**old, **now}]
        shown = "\n".join(part for part in parts if part)
        shown = shown or "The spec and its templates are the same; the code of what they name has changed."
        raise UsageError(
            f"{self.path} was begun with another spec, and a run goes on only as it began:\n{shown}\n"
            "Put it back to go on, or begin a new run with --out"
        )

    def rewind(self) -> Checkpoint | None:
        """Drop what came after the last checkpoint and return it; None begins at the beginning."""
        found = self.checkpoints()
        last = found[-1] if found else None
        step = last.step if last else 0
        kept = [line for line in self.metrics() if line["step"] <= step] if last else []
        write_whole(self.path / METRICS, b"".join(json.dumps(line).encode() + b"\n" for line in kept))
        whole = [asdict(checkpoint) for checkpoint in found]  # less a line that the kill cut off
        write_whole(self.path / CHECKPOINTS, b"".join(json.dumps(line).encode() + b"\n" for line in whole))
        for file in (self.path / EPISODES).glob("*.jsonl"):
            number = re.fullmatch(r"(?:train|validation)-(\d+)\.jsonl", file.name)
            if number is None or int(number[1]) > step:
                file.unlink(missing_ok=True)
        return last

    # what a step leaves

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """One line; on disk when this returns."""
        self._append(self.path / METRICS, metrics)

    def write_episodes(self, kind: str, step: int, episodes: Iterable[Episode]) -> None:
        """The episodes of one step, `train` or `validation`."""
        write_whole(self.episodes_file(kind, step), b"".join(map(episode_line, episodes)))

    def episodes_file(self, kind: str, step: int) -> Path:
        """Where the episodes of one step are."""
        return self.path / EPISODES / f"{kind}-{step:06d}.jsonl"

    def add_checkpoint(
        self, step: int, version: int, saved: Saved, *, best: bool, validation: Mapping[str, float]
    ) -> None:
        """Note a checkpoint that is safe."""
        found = Checkpoint(step, version, saved.state, saved.sampler, best, validation)
        self._append(self.path / CHECKPOINTS, asdict(found))

    def metrics(self) -> list[dict[str, float]]:
        """The lines so far; a last one that is cut off is passed over."""
        return _lines(self.path / METRICS)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints so far, oldest first."""
        try:
            return [Checkpoint(**line) for line in _lines(self.path / CHECKPOINTS)]
        except TypeError as error:
            raise DataError(f"{self.path / CHECKPOINTS} is not a list of checkpoints: {error}") from error

    def best(self) -> Checkpoint:
        """The best checkpoint, else the last; raises UsageError where there is none."""
        found = self.checkpoints()
        if not found:
            raise UsageError(f"{self.path} has no checkpoint yet")
        return next((one for one in reversed(found) if one.best), found[-1])

    def write(self, name: str, value: object) -> None:
        """Another file of the run, as JSON."""
        write_whole(self.path / name, json.dumps(value, indent=1).encode())

    # the disk

    def _append(self, file: Path, value: Mapping[str, Any]) -> None:
        data = json.dumps(dict(value), allow_nan=False).encode() + b"\n"
        try:
            with file.open("ab", buffering=0) as out:
                size = out.tell()
                if out.write(data) != len(data):
                    out.truncate(size)
                    raise OSError(28, "No space left on device")
                os.fsync(out.fileno())
        except OSError as error:
            raise WorldError(f"cannot write to {file}: {error.strerror}") from error

    def _made(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot make the folder {folder}: {error.strerror}") from error


def newest(runs: Path, name: str | None = None) -> Path:
    """The training run in `runs` (of the spec of that name) that was begun last; raises UsageError."""
    found = [file.parent for file in runs.glob("*/run.json")]
    if name is not None:
        found = [folder for folder in found if TrainingFolder(folder).about()["name"] == name]
    if not found:
        what = f"training run of {name}" if name else "training run"
        raise UsageError(f"there is no {what} in {runs}/ to go on with; name its folder with --out")
    return max(found, key=lambda folder: (folder / RUN).stat().st_mtime)


def _lines(file: Path) -> list[Any]:
    if not file.exists():
        return []
    found: list[Any] = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{file}:{number}: not JSON: {error}") from error
    return found


def _templates(plan: Plan) -> dict[str, str]:
    """Every template of a plan by a name that a person knows it by."""
    found: dict[str, str] = {}
    for role in plan.roles:
        demonstration = role.signal.demonstration if role.signal else None
        parts = {"prompt": role.prompt, "system": role.system, "demonstration": demonstration}
        found |= {f"the {part} of {role.name}": t.source for part, t in parts.items() if t is not None}
    return found


def _difference(name: str, was: str, now: str) -> str:
    names = f"{name}, as begun", f"{name}, now"
    return "\n".join(difflib.unified_diff(was.splitlines(), now.splitlines(), *names, n=1, lineterm=""))
