"""The folder of a run or training: paths of its files, and functions that write and read them.

Files are replaced by a rename or grow by complete lines, so that a run killed at any moment can be read and
resumed. This file knows no plan, model or service; the settings of a run come in as a `RunInfo`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter

from rolegraph.engine.errors import DataError, RolegraphError, UsageError, nearest, os_errors_as
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records import confined
from rolegraph.engine.records.confined import make_folder, write_whole
from rolegraph.engine.records.credit import CreditRow, parse_credit
from rolegraph.engine.records.data import DATA_FILE, UsedRows, check_data, write_data
from rolegraph.engine.records.episode import Episode, EpisodePart
from rolegraph.engine.records.episodes import (
    EPISODES,
    EpisodeFile,
    RoleIndexEntry,
    answers_in,
    common_failures,
    drop_damaged_episodes,
    figures,
    index_path,
    write_episodes,
)
from rolegraph.engine.records.files import read_bytes
from rolegraph.engine.records.info import (
    Checkpoint,
    Control,
    Kind,
    ResumeRecord,
    RunInfo,
    SavedPolicy,
)
from rolegraph.engine.records.jsonl import (
    JsonLine,
    JsonlWriter,
    drop_damaged,
    json_line,
    parse_json,
    read_jsonl,
    read_record,
    refuse,
    write_record,
)
from rolegraph.engine.records.ownership import FolderKind
from rolegraph.engine.records.plain import LARGEST, text_difference
from rolegraph.engine.secrets import without_secrets

T = TypeVar("T")
RUN_ONLY = "holds episodes of `rolegraph run`, which trains nothing"
"""End of the message for a folder of a run, if the folder of a training is needed."""
SPLITS: Sequence[EpisodePart] = ("validation", "train", "greedy")
"""Kinds of a training's episodes files, in the order in which files of one step are listed."""
_STEP_FILE = re.compile(rf"(?P<split>{'|'.join(SPLITS)})-(?P<step>\d{{1,12}})(?P<end>\.jsonl|\.index)")
_VALIDATION = "validation/"
INFO = "run.json"
"""Name of the file with the settings of a run."""
RUN = FolderKind(
    "a run",
    {INFO: RunInfo.model_validate},
    re.compile(r"episodes|credit|weights|adapters|validations|\w+-[0-9a-f]{16}"),
)
"""Kind of the folder of a run or a training; the pattern has the names of its subfolders, including those of
trackers."""
_LATER = ConfigDict(defer_build=True)  # importing this module need not build validators
_CONTROLS = TypeAdapter[tuple[Control, ...]](tuple[Control, ...], config=_LATER)
_METRICS = TypeAdapter[dict[str, Any]](dict[str, Any], config=_LATER)


class PolicyPath(NamedTuple):
    """The folder of a training and one of its policies, written `FOLDER#POLICY`, or `FOLDER` alone.

    A `#` is part of the folder's name if a folder of that name exists, or if another `#` follows.
    """

    folder: str
    policy: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a checkpoint as the user writes it; None for a URL, such as a `tinker://` path."""
        if "://" in text:
            return None
        folder, mark, policy = text.rpartition("#")
        if not mark or os.path.isdir(text):  # noqa: PTH112 - of a pathlib.Path, a name that is too long raises
            return cls(text)
        return cls(folder, policy or None)

    def __str__(self) -> str:
        return f"{self.folder}#{self.policy or ''}" if self.policy or "#" in self.folder else self.folder


class RunPart(NamedTuple):
    """File of recorded episodes: of a whole run, or of one training step."""

    path: Path
    split: str = ""
    """For a training: `train`, `validation` or `greedy`."""
    step: int = 0

    @property
    def name(self) -> str:
        """Name of the file without its ending, such as `train-000002`."""
        return self.path.stem


class RunFolder:
    """Folder of a run or training, by default `runs/NAME-TIME`.

    Every method that writes raises WorldError if the disk is full or the folder is not writable.

    Args:
        path: Path of the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """Path of the folder."""
        self.info_file = path / INFO
        """Settings and results, as a `RunInfo`."""
        self.spec_file = path / "spec.yaml"
        """Spec in one file, with `extends` and overrides applied."""
        self.data_file = path / DATA_FILE
        """Digests of the rows that the run uses."""
        self.episodes = path / EPISODES
        """For a run: its episodes, one a line."""
        self.steps = path / "episodes"
        """For a training: folder of its episodes, with an `episodes_file` for each step."""
        self.credit = path / "credit"
        """For a training: folder of its credit, with a `credit_file` for each step."""
        self.metrics_file = path / "metrics.jsonl"
        """For a training: metrics, one line for each step."""
        self.checkpoints_file = path / "checkpoints.jsonl"
        """For a training: checkpoints, one a line, oldest first."""
        self.controls_file = path / "controls.json"
        """For a training: reference values to compare with, a list of `Control`."""
        self.log = path / "log.txt"
        """Log with times."""
        self.report = path / "report.html"
        """For a training: the report."""
        self.validated = path / "validations"
        """For a training that other workflows validate: folder that holds a folder for each of them, by
        name."""
        self.weights = path / "weights"
        """Checkpoints of a local service that was started for the run."""
        self.adapters = path / "adapters"
        """Adapters that the server of `train.sample_from` loads."""

    # beginning and ending

    def written(self) -> Iterator[Path]:
        """Yield the paths that a run or a training writes, for `sole_writer` to check."""
        yield from (value for value in vars(self).values() if isinstance(value, Path) and value != self.path)
        yield index_path(self.episodes)
        for folder in (self.steps, self.credit, self.validated, self.weights, self.adapters):
            yield from confined.below(folder)

    def check_new(self, kind: Kind) -> None:
        """Raise UsageError if the folder holds a training, a run with an episode, or files of another
        origin."""
        RUN.check(self.path)
        present_kind = self.info().kind if self.info_file.exists() else None
        if present_kind == "train" or (self.episodes.exists() and self.episodes.stat().st_size):
            or_resume = "go on with --resume, or " if present_kind == kind else ""
            raise UsageError(f"{self.path} already holds a run; {or_resume}choose another folder with --out")

    def begin(self, info: RunInfo, spec: str, data: Sequence[UsedRows] = ()) -> None:
        """Create the folder with `run.json` (`info`, start time, version), `spec.yaml` and the rows'
        digests."""
        make_folder(self.path)
        if info.kind == "train":
            make_folder(self.steps)
        start = {"version": version("rolegraph"), "started": _now()}
        write_record(self.info_file, info.model_copy(update=start))  # first, because it marks the folder
        self._write_spec(spec)
        write_data(self.data_file, data, anew=True)

    def resume(
        self,
        command: str,
        spec: str,
        now: Mapping[str, object] | None = None,
        data: Sequence[UsedRows] = (),
    ) -> None:
        """Add a resumption to `run.json`, clear the run's end and metrics, and append the rows used now to
        `data.jsonl`.

        `now` holds fields of RunInfo that have changed. `spec` is written if a killed command did not write
        it.
        """
        if not self.spec_file.exists():
            self._write_spec(spec)
        write_data(self.data_file, data)
        info = self.info()
        resumptions = (*info.resumed, ResumeRecord(time=_now(), command=command))
        # A killed command has not said how long it took; a training has the time of its latest command.
        seconds = info.seconds if info.finished and info.kind == "run" else None
        self._update(resumed=resumptions, finished=None, figures={}, seconds=seconds, **(now or {}))

    def add_call(self, seconds: float, left_out: Mapping[str, Sequence[str]]) -> None:
        """Add the time of a command to that in `run.json`, and the request fields that servers refused.

        A time that a killed command left unknown stays unknown.
        """
        info = self.info()
        is_timed = info.seconds is not None or not info.resumed
        self._update(seconds=(info.seconds or 0.0) + seconds if is_timed else None)
        self.add_left_out(left_out)

    def add_left_out(self, left_out: Mapping[str, Sequence[str]]) -> None:
        """Add the request fields that servers refused, by model, to those in `run.json`."""
        if left_out:
            fields = {name: tuple(names) for name, names in left_out.items()}
            self._update(left_out={**self.info().left_out, **fields})

    def stop(self, step: int, reason: str) -> None:
        """Record in `run.json` that the training is complete after fewer steps than planned."""
        self._update(steps=step, stopped=reason)

    @contextmanager
    def ending(self) -> Generator[None]:
        """Record end time and figures in `run.json` when the block ends, also by an error; for a training
        also the block's duration."""
        start_time = monotonic()
        try:
            yield
        except BaseException:
            with suppress(RolegraphError):  # the user should see the error of the body
                self._end(monotonic() - start_time)
            raise
        self._end(monotonic() - start_time)

    def info(self) -> RunInfo:
        """Read `run.json`.

        Raises:
            UsageError: There is no `run.json`.
            DataError: `run.json` is damaged.
        """
        try:
            return read_record(self.info_file, RunInfo.model_validate, "a valid run file")
        except (FileNotFoundError, NotADirectoryError):
            if not self.path.exists():
                raise missing_run(self.path) from None
            missing_file = f"there is no {self.info_file.name} in it{self._model_instead()}"
            raise UsageError(f"{self.path} is not the folder of a run: {missing_file}") from None

    def is_whole(self) -> bool:
        """Return True if a training has its last step and the files that are written after it.

        Raises:
            UsageError: There is no `run.json`.
            DataError: `run.json` is damaged.
        """
        info = self.info()
        is_last = info.finished is not None and info.figures.get("step", 0) >= info.steps
        return is_last and self.report.exists()

    def _model_instead(self) -> str:
        """Return a hint if the folder holds a model instead of a run; else empty."""
        if not any(self.path.glob("*config.json")):
            return ""
        return (
            f". It holds a model: name it as one, local:{self.path} (training adds an adapter of its own to "
            "it), or name the folder of the training that it came from"
        )

    def training(self) -> RunInfo:
        """Read `run.json` of a training; raises the errors of `info`, and UsageError for the folder of
        `rolegraph run`."""
        info = self.info()
        if info.kind != "train":
            raise UsageError(f"{self.path} is not the folder of a training run: it {RUN_ONLY}")
        return info

    def spec(self) -> str:
        """Return the text of `spec.yaml`, empty if the file is missing; raises DataError if it is
        unreadable."""
        with os_errors_as(DataError, f"cannot read {self.spec_file}"):
            if not self.spec_file.exists():
                return ""
            return read_bytes(self.spec_file, WHOLE_FILE).decode("utf-8", "replace")

    def check_same(self, now: RunInfo, spec: str, data: Sequence[UsedRows] = ()) -> None:
        """Raise an error unless a resumed run has the spec, templates and rows that it was started with.

        Raises:
            UsageError: The spec or a row has changed; the message shows what differs.
            DataError: A file of the folder is damaged.
        """
        started_info = self.info()
        if started_info.hash == now.hash:
            return check_data(self.data_file, data)
        old, new_templates = started_info.templates, now.templates
        texts = {
            "spec": (self.spec(), without_secrets(spec)),
            **{name: (old.get(name, ""), new_templates.get(name, "")) for name in {**old, **new_templates}},
            "--allow": ("\n".join(started_info.allowed), "\n".join(now.allowed)),
        }
        diffs = (text_difference(*both, f"{n}, at the start", f"{n}, now") for n, both in texts.items())
        shown = "\n".join(filter(None, diffs))
        shown = shown or "The spec and its templates are the same; the code of what they name has changed."
        raise UsageError(
            f"{self.path} was started with another spec, and can be resumed only with the same one:\n"
            f"{shown}\nRestore the spec, or start a new run with --out"
        )

    def rewind(self) -> Checkpoint | None:
        """Delete metrics and episodes after the last checkpoint, and return that checkpoint; None without a
        checkpoint."""
        checkpoint = self.last_checkpoint()
        step, whole_steps = (checkpoint.step, checkpoint.whole_steps) if checkpoint else (0, -1)
        lines = _lines(self.metrics_file, _step_metrics, "a step's metrics")
        kept_lines = [line.text for line in lines if line.value["step"] <= whole_steps]
        write_whole(self.metrics_file, b"".join(kept_lines))
        for folder in (self, *self.validations()):
            for subfolder in (folder.steps, folder.credit):
                confined.remove_parts(subfolder)
            for match, file in folder._step_files():
                if int(match["step"]) > step:
                    confined.remove(file)
        return checkpoint

    def validations(self) -> list[RunFolder]:
        """Return the folders of the workflows that validate a training, in the spec's order.

        Empty if the training validates itself, or if `run.json` is missing.
        """
        if not self.info_file.exists():
            return []
        return [RunFolder(self.validated / name) for name in self.info().validations]

    @property
    def validation(self) -> RunFolder:
        """Folder with the episodes of the validation: of the first workflow that validates, else this
        folder."""
        return next(iter(self.validations()), self)

    def drop_damaged(self) -> list[Path]:
        """Rewrite episodes, metrics and checkpoints without their damaged lines; return the copies of the
        changed files.

        Raises:
            DataError: A file is unreadable.
            WorldError: A file cannot be written.
        """
        copies = (
            drop_damaged_episodes(self.episodes),
            drop_damaged(self.metrics_file, _step_metrics),
            drop_damaged(self.checkpoints_file, _checkpoint),
        )
        return [copy for copy in copies if copy is not None]

    # what a step leaves

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append a line to `metrics.jsonl`, and wait until it is on disk."""
        _add(self.metrics_file, json.dumps(dict(metrics), allow_nan=False).encode() + b"\n")

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Append a checkpoint to `checkpoints.jsonl`, or replace the line of the same step; its weights must
        be saved already."""
        checkpoints = self.checkpoints()
        other_checkpoints = [other for other in checkpoints if other.step != checkpoint.step]
        if len(other_checkpoints) < len(checkpoints):
            lines = (json_line(other.model_dump()) for other in (*other_checkpoints, checkpoint))
            write_whole(self.checkpoints_file, b"".join(lines))
        else:
            _add(self.checkpoints_file, json_line(checkpoint.model_dump()))

    def drop_checkpoints(self, keep: int) -> list[Checkpoint]:
        """Remove all checkpoints but the newest `keep` and the best from `checkpoints.jsonl`; return the
        removed ones."""
        checkpoints = self.checkpoints()
        best_checkpoint = self.best()
        keepers = [c for c in checkpoints[:-keep] if c.step == best_checkpoint.step] + checkpoints[-keep:]
        dropped_checkpoints = [c for c in checkpoints if c not in keepers]
        if dropped_checkpoints:
            write_whole(self.checkpoints_file, b"".join(json_line(c.model_dump()) for c in keepers))
        return dropped_checkpoints

    def drop_episodes(self, split: EpisodePart, before: int) -> None:
        """Delete the files of episodes of all steps before step `before`, of one split."""
        for match, file in self._step_files():
            if match["split"] == split and int(match["step"]) < before:
                confined.remove(file)

    def write_episodes(self, split: EpisodePart, step: int, episodes: Iterable[Episode]) -> None:
        """Write the episodes of a step to their file, which replaces an earlier one."""
        write_episodes(self.episodes_file(split, step), episodes)

    def write_credit(self, step: int, rows: Iterable[CreditRow]) -> None:
        """Write the rows of a step's credit to their file, which replaces an earlier one."""
        make_folder(self.credit)
        write_whole(self.credit_file(step), b"".join(json_line(row._asdict()) for row in rows))

    def credit_rows(
        self, step: int, broken: Callable[[DataError], object] = refuse
    ) -> list[CreditRow] | None:
        """Read the rows of a step's credit; None if there is no file, as in folders of earlier versions.

        Args:
            step: The step.
            broken: Function called for damaged lines, as for `read_jsonl`.

        Raises:
            DataError: The file is damaged or unreadable.
        """
        file = self.credit_file(step)
        if not file.exists():
            return None
        return [line.value for line in read_jsonl(file, parse_credit, "a row of credit", broken)]

    def write_controls(self, controls: Sequence[Control]) -> None:
        """Write the reference values of a training to `controls.json`."""
        write_whole(self.controls_file, json.dumps([row.model_dump() for row in controls], indent=1).encode())

    def episodes_file(self, split: EpisodePart, step: int) -> Path:
        """Return the path of the episodes of a step."""
        return self.steps / f"{split}-{step:06d}.jsonl"

    def credit_file(self, step: int) -> Path:
        """Return the path of the credit of a training step."""
        return self.credit / f"train-{step:06d}.jsonl"

    def episodes_files(self, split: EpisodePart) -> list[tuple[int, Path]]:
        """Return (step, path of the file) of each step with episodes, in order."""
        return sorted(
            (int(match["step"]), file)
            for match, file in self._step_files()
            if file.parent == self.steps and match["split"] == split and match["end"] == ".jsonl"
        )

    def compared_files(self, *, best: bool) -> list[tuple[str, Path]]:
        """Return (description, file) of each file of episodes that a comparison reads; empty if there is no
        file.

        A training has two, or one if they are the same: the last validation and that of the best checkpoint,
        which comes first if `best`.
        """
        if self.info().kind == "run":
            return [("episodes", self.episodes)] if self.episodes.exists() else []
        validations = dict(self.validation.episodes_files("validation"))
        best_steps = (c.step for c in reversed(self.checkpoints()) if c.best and c.step in validations)
        best_step, last_step = next(best_steps, None), max(validations, default=None)
        order = (best_step, last_step) if best else (last_step, best_step)
        steps = dict.fromkeys(step for step in order if step is not None)
        name = "validation, step"
        return [(f"{'best ' * (step == best_step)}{name} {step}", validations[step]) for step in steps]

    def parts(self) -> list[RunPart]:
        """Return the files of episodes; for a training, ordered by step, and within a step the validation
        first."""
        if self.info().kind == "run":
            return [RunPart(self.episodes)] if self.episodes.exists() else []
        files = [RunPart(path, split, step) for split in SPLITS for step, path in self.episodes_files(split)]
        return sorted(files, key=lambda part: part.step)

    def part(self, name: str) -> RunPart:
        """Return the file of episodes with a name, which need not exist; raises UsageError for a name of no
        such file."""
        kind = self.info().kind
        if kind == "run" and name == self.episodes.stem:
            return RunPart(self.episodes)
        match = _STEP_FILE.fullmatch(f"{name}.jsonl")
        if kind == "train" and match and match["end"] == ".jsonl":
            return RunPart(self.steps / f"{name}.jsonl", match["split"], int(match["step"]))
        raise UsageError(f"the run has no episodes called {name!r}")

    def common_failures(self) -> list[str]:
        """Return for each role that failed in training a line about its most frequent failure."""
        return common_failures(EpisodeFile(path) for _, path in self.episodes_files("train"))

    def answers(self) -> dict[str, RoleIndexEntry]:
        """Return a RoleIndexEntry for each role with its numbers of answers and failures in training, from
        the indexes."""
        files = (EpisodeFile(path) for _, path in self.episodes_files("train"))
        return answers_in(entry for file in files for entry in file.entries(lambda _: None))

    def metrics(self, broken: Callable[[DataError], object] = refuse) -> list[dict[str, float]]:
        """Read `metrics.jsonl`: a mapping for each step, with its number as `step`.

        `broken` is called for damaged lines, as for `read_jsonl`.
        """
        lines = _lines(self.metrics_file, _step_metrics, "a step's metrics", broken)
        return [line.value for line in lines]

    def checkpoints(self) -> list[Checkpoint]:
        """Read `checkpoints.jsonl`, oldest first; raises DataError for a broken line."""
        lines = _lines(self.checkpoints_file, _checkpoint, "a checkpoint")
        return [line.value for line in lines]

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None without a checkpoint."""
        return next(reversed(self.checkpoints()), None)

    def best(self) -> Checkpoint:
        """Return the best checkpoint; without a validated checkpoint, the last.

        Raises:
            UsageError: The training saved no checkpoint.
        """
        checkpoints = self.checkpoints()
        if not checkpoints:
            raise UsageError(f"{self.path} has no checkpoint yet{self._model_instead()}")
        return next((c for c in reversed(checkpoints) if c.best), checkpoints[-1])

    def best_of(self, policy: str | None) -> SavedPolicy:
        """Return the weights of a policy in the best checkpoint.

        Args:
            policy: Name of the policy; None takes the only policy, or `main` among several.

        Raises:
            UsageError: There is no checkpoint, or no such policy in it; the message lists its policies.
        """
        best_checkpoint = self.best()
        if (saved_policy := best_checkpoint.of(policy)) is None:
            names = ", ".join(best_checkpoint.policies)
            example_path = PolicyPath(str(self.path), next(iter(best_checkpoint.policies)))
            asked = f"no policy {policy!r}" if policy else "several policies"
            raise UsageError(f"{self.path} has {asked}; it trained {names}: name one, as in {example_path}")
        return saved_policy

    def weights_to_sample(self) -> str:
        """Return the `checkpoint` to write in a spec in order to sample from the best checkpoint.

        It is this folder if the folder holds the weights or there are several policies; else a path at the
        service.

        Raises:
            UsageError: The training saved no checkpoint.
        """
        best_checkpoint = self.best()
        if self.weights.is_dir() or len(best_checkpoint.policies) > 1:
            return str(self.path)
        (policy,) = best_checkpoint.policies.values()
        return policy.sampler

    def controls(self) -> tuple[Control, ...]:
        """Read the reference values of `controls.json`, such as the untrained model's; empty if the file is
        missing.

        Raises:
            DataError: The file is damaged.
        """
        try:
            return read_record(self.controls_file, _CONTROLS.validate_python, "a valid list of controls")
        except (FileNotFoundError, NotADirectoryError):
            return ()

    # behind it

    def _write_spec(self, spec: str) -> None:
        write_whole(self.spec_file, without_secrets(spec).encode())

    def _end(self, seconds: float) -> None:
        info = self.info()
        is_run = info.kind == "run"
        results = figures(EpisodeFile(self.episodes).entries()) if is_run else self._progress()
        self._update(finished=_now(), figures=results, seconds=info.seconds if is_run else seconds)

    def _progress(self) -> dict[str, float]:
        lines = self.metrics()
        validation_lines = [line for line in lines if any(name.startswith(_VALIDATION) for name in line)]
        last_line = validation_lines[-1] if validation_lines else {}
        best_validations = [checkpoint.validation for checkpoint in self.checkpoints() if checkpoint.best]
        best_validation = best_validations[-1] if best_validations else {}
        return {
            "step": max((line["step"] for line in lines), default=0.0),
            **{name: value for name, value in last_line.items() if name.startswith(_VALIDATION)},
            **{f"best/{name.removeprefix(_VALIDATION)}": value for name, value in best_validation.items()},
        }

    def _step_files(self) -> Iterator[tuple[re.Match[str], Path]]:
        for folder in (self.steps, self.credit):
            for file in folder.glob("*-*"):
                if match := _STEP_FILE.fullmatch(file.name):
                    yield match, file

    def _update(self, **fields: object) -> None:
        """Set fields of `run.json`, and write the file anew."""
        write_record(self.info_file, self.info().model_copy(update=fields))


def missing_run(path: Path) -> UsageError:
    """Return the error for the folder of a run that does not exist; it names the nearest one beside it or in
    `runs`."""
    files = chain.from_iterable(folder.glob(f"*/{INFO}") for folder in (Path("runs"), path.parent))
    by_name = {file.parent.name: file.parent for file in files}
    name = path.name if path.name in by_name else nearest(path.name, by_name)
    hint = f"did you mean {by_name[name]}?" if name else "give the folder of a run or a training"
    return UsageError(f"there is no folder {path}; {hint}")


def _now() -> datetime:
    return datetime.now(UTC)


def _add(file: Path, line: bytes) -> None:
    with JsonlWriter(file) as writer:
        writer.append(line, sync=True)


def _lines(
    file: Path,
    parse: Callable[[bytes], T],
    what: str,
    broken: Callable[[DataError], object] = refuse,
) -> Iterator[JsonLine[T]]:
    return read_jsonl(file, parse, what, broken) if file.exists() else iter(())


def _checkpoint(text: bytes) -> Checkpoint:
    checkpoint = Checkpoint.model_validate(parse_json(text))
    if not checkpoint.policies:
        raise ValueError("it has no policy")
    return checkpoint


def _step_metrics(text: bytes) -> dict[str, float]:
    """Parse a line of `metrics.jsonl`; return its finite numbers by name, raises KeyError without `step`."""
    metrics = {
        name: float(value)
        for name, value in _METRICS.validate_python(parse_json(text)).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    }
    _ = metrics["step"]  # raises KeyError
    return metrics
