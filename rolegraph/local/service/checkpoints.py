"""Checkpoints on disk, by their `tinker://RUN/KIND/NAME` paths.

A checkpoint is a folder with an adapter in PEFT's form (`adapter_model.safetensors`, `adapter_config.json`),
`meta.json` (a `CheckpointEntry`) and, for a training state, `optimizer.safetensors`. Folders appear and
disappear as a whole: a checkpoint is written in a staging folder and then renamed into place. An expired
checkpoint is deleted when it is used next, when checkpoints are listed, or when another checkpoint with an
expiry is saved.
Several services may share one state folder.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, cast

from pydantic import BaseModel, Field
from safetensors.torch import save_file
from torch import Tensor

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.records.staging import staging_folder, sweep
from rolegraph.engine.records.weights import ADAPTER_WEIGHTS, META, OPTIMIZER, checkpoint_folder, digest
from rolegraph.local.launcher import model_name
from rolegraph.local.limits import CHECKPOINT_SECONDS
from rolegraph.local.service.adapters import write_adapter
from rolegraph.local.service.errors import NotFoundError, RequestError
from rolegraph.local.service.lora import LoraShape
from rolegraph.local.service.tensors import read_tensors, safetensors_errors

Kind = Literal["weights", "sampler_weights", "external_weights"]
"""A training state, weights to sample from, or weights to download."""
NEW = "checkpoint"
"""Subfolder of a staging folder that is to be renamed into place."""
FINISH_SECONDS = 4.0
"""Seconds that a service takes at most to finish a checkpoint; less than the launcher waits for its exit."""
_PORTABLE = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[\w.-]{0,127}[\w-]", re.ASCII | re.IGNORECASE)
"""A file name that every file system accepts."""


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """Shape, weights and, if requested, optimizer state of a loaded checkpoint."""

    shape: LoraShape
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """Options for saving a checkpoint."""

    ttl_seconds: int | None = None
    """Seconds until the checkpoint is deleted; None to keep it."""
    user_metadata: Mapping[str, str] | None = None
    listed: bool = True
    overwrite: bool = True
    """True to replace a checkpoint of the same path."""


PLAIN = SaveOptions()
"""The default options."""


class CheckpointEntry(BaseModel):
    """Description of a checkpoint; all fields but the size are in its `meta.json`."""

    path: Annotated[str, Field(pattern=r"^tinker://[^/]+/(sampler_|external_)?weights/[^/]+$")]
    shape: LoraShape
    base_model: str
    """The base model's name."""
    base_digest: str
    """Digest of the base model's weights."""
    created: datetime
    expires: datetime | None = None
    size: int = 0
    """Bytes of all files together."""
    user_metadata: Mapping[str, str] | None = None
    listed: bool = True

    @property
    def run(self) -> str:
        """Name of the training run."""
        return self.path.split("/")[2]

    @property
    def kind(self) -> Kind:
        """Kind by the checkpoint's path: `weights` to resume training, `sampler_weights`, or
        `external_weights`."""
        return cast("Kind", self.path.split("/")[3])

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.split("/")[4]

    @property
    def is_expired(self) -> bool:
        """True once the checkpoint's expiry has passed."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    def write(self, folder: Path) -> None:
        """Write `meta.json` into the checkpoint's folder, replacing one there. Raises OSError."""
        new_file = folder / f".{META}"
        new_file.write_text(self.model_dump_json(exclude={"size"}), encoding="utf-8")
        new_file.replace(folder / META)


class CheckpointStore:
    """The checkpoints below a state folder, for the model in the folder `model_dir` with the name
    `base_model`."""

    def __init__(self, folder: Path, base_model: str, model_dir: Path) -> None:
        self._folder, self._base_model, self._model_dir = folder, base_model, model_dir
        self._writing = Lock()
        self.move_to(folder)

    def move_to(self, folder: Path) -> None:
        """Switch the store to the checkpoints below another folder; no file is moved."""
        self._folder = folder
        sweep(folder, self._rescue)

    @cached_property
    def _digest(self) -> str:
        return digest(self._model_dir)

    def save(
        self,
        path: str,
        shape: LoraShape,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor] | None = None,
        options: SaveOptions = PLAIN,
    ) -> None:
        """Write a checkpoint; the optimizer's state only if its kind is `weights`.

        Raises:
            RequestError: The path, name or expiry is not valid, or the files cannot be written.
        """
        target = self._folder_of(path)
        if not _PORTABLE.fullmatch(target.name):
            raise RequestError(
                f"{target.name!r} names no checkpoint: expected up to 128 letters, digits, dots, dashes and "
                "underscores, no dot at the end, and no name that an operating system keeps for itself"
            )
        entry = CheckpointEntry(
            path=path,
            shape=shape,
            base_model=self._base_model,
            base_digest=self._digest,
            created=datetime.now(UTC),
            expires=_expiry(options.ttl_seconds),
            user_metadata=options.user_metadata,
            listed=options.listed,
        )
        if entry.expires is not None:
            self.entries()  # deletes what has expired
        if not options.overwrite:
            with suppress(NotFoundError):
                self.entry(path)
                raise RequestError(
                    f"there is a checkpoint {path}; overwrite it (overwrite=True), or delete it"
                )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._writing, staging_folder(self._folder) as staging:
                new_folder = staging / NEW
                new_folder.mkdir()
                write_adapter(new_folder, weights, shape.rank, model_name(self._model_dir))
                if optimizer is not None and entry.kind == "weights":
                    with safetensors_errors():
                        save_file(dict(optimizer), new_folder / OPTIMIZER)
                entry.write(new_folder)
                if target.exists():
                    target.rename(staging / "replaced")
                new_folder.rename(target)
        except OSError as error:
            raise RequestError(f"cannot write the checkpoint {path}: {error.strerror}") from error

    def finish_writing(self) -> None:
        """Wait until a checkpoint that is being written is complete, before the process exits."""
        if self._writing.acquire(timeout=FINISH_SECONDS):
            self._writing.release()

    def remove(self, path: str) -> None:
        """Delete a checkpoint, if it exists."""
        folder = self._folder_of(path)
        try:
            with self._writing, staging_folder(self._folder) as staging:
                folder.rename(staging / "removed")
            for parent in folder.parents[:2]:
                parent.rmdir()
        except OSError:  # it did not exist, or the run has other checkpoints
            pass

    def _rescue(self, staging: Path) -> None:
        """Complete the replacement of a checkpoint whose writer was killed after it removed the old
        folder."""
        with suppress(OSError, ValueError, TypeError):
            target = self._folder_of(_read_entry(staging / NEW).path)
            if (staging / "replaced").exists() and not target.exists():
                (staging / NEW).rename(target)

    def delete(self, path: str) -> None:
        """Delete a checkpoint; raises NotFoundError if it does not exist, RequestError if its files cannot be
        deleted."""
        folder = self._existing(path)
        self.remove(path)
        if folder.is_dir():
            raise RequestError(f"cannot delete the checkpoint {path}: no permission to change its folder")

    def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        """Set a checkpoint to expire in `ttl_seconds`, or never (None), in its `meta.json`. Raises
        RequestError."""
        entry = self.entry(path).model_copy(update={"expires": _expiry(ttl_seconds)})
        try:
            entry.write(self._folder_of(path))
        except OSError as error:
            raise RequestError(f"cannot write into the checkpoint {path}: {error.strerror}") from error

    def entry(self, path: str) -> CheckpointEntry:
        """Return the description of a checkpoint. Raises NotFoundError, or RequestError if it is broken."""
        folder = self._existing(path)
        try:
            entry = _read_entry(folder)
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(f"the checkpoint {path} cannot be read: {first_line(error)}") from error
        if entry.is_expired:
            self.remove(path)
            raise NotFoundError(f"there is no checkpoint {path}; it has expired")
        return entry

    def entries(self) -> list[CheckpointEntry]:
        """Delete the checkpoints that have expired; return the listed ones, the newest first."""
        entries: list[CheckpointEntry] = []
        for entry in self._all():
            if entry.is_expired:
                self.remove(entry.path)
            elif entry.listed:
                entries.append(entry)
        return sorted(entries, key=lambda entry: entry.created, reverse=True)

    def files(self, path: str) -> dict[str, Path]:
        """Return the files of a checkpoint that can be downloaded, by name. Raises NotFoundError."""
        return {
            file.name: file
            for file in sorted(_inside(self._existing(path)))
            if file.name not in (META, OPTIMIZER) and file.name[0] != "."
        }

    def _all(self) -> Iterator[CheckpointEntry]:
        runs = (run for run in _inside(self._folder) if run.name[0] != ".")
        for folder in (folder for run in runs for kind in _inside(run) for folder in _inside(kind)):
            # A checkpoint that is deleted meanwhile, or broken, is left out: `load` reports it.
            with suppress(OSError, ValueError, TypeError):
                yield _read_entry(folder)

    def loadable(self, path: str) -> CheckpointEntry:
        """Return the description of a checkpoint for the base model, without reading its weights.

        Raises:
            NotFoundError: There is no such checkpoint.
            RequestError: It is unreadable, of another base model, or external.
        """
        entry = self.entry(path)
        if entry.kind == "external_weights":
            raise RequestError(f"{path} can only be downloaded; name tinker://RUN/weights/NAME here")
        if entry.base_digest != self._digest:
            is_same_name = entry.base_model == self._base_model
            expected = "a model of that name with other weights" if is_same_name else repr(self._base_model)
            fix = "" if is_same_name else f"; choose its model: --model local:{entry.base_model}"
            raise RequestError(
                f"{path} belongs to the model {entry.base_model!r}, but this service serves {expected}{fix}"
            )
        return entry

    def load(self, path: str, *, optimizer: bool) -> CheckpointContents:
        """Load a checkpoint, with its optimizer's state if `optimizer` is set.

        Raises:
            NotFoundError: There is no such checkpoint.
            RequestError: It is unreadable, of another base model, external, or lacks the optimizer's state.
        """
        entry, folder = self.loadable(path), self._folder_of(path)
        if optimizer and not (folder / OPTIMIZER).is_file():
            is_old = (folder / "optimizer.pt").is_file()
            hint = "; the version of Rolegraph that wrote its optimizer.pt can resume it" if is_old else ""
            raise RequestError(f"{path} holds no optimizer state ({OPTIMIZER}); load it without{hint}")
        try:
            weights = read_tensors([folder / ADAPTER_WEIGHTS])
            state = read_tensors([folder / OPTIMIZER]) if optimizer else None
        except UsageError as error:
            raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error
        return CheckpointContents(entry.shape, weights, state)

    def _existing(self, path: str) -> Path:
        folder = self._folder_of(path)
        if not folder.is_dir():
            raise NotFoundError(f"there is no checkpoint {path}")
        return folder

    def _folder_of(self, path: str) -> Path:
        folder = checkpoint_folder(path, self._folder)
        if folder is None:
            raise RequestError(f"{path!r} is not a checkpoint's path; expected tinker://RUN/weights/NAME")
        return folder


def _inside(folder: Path) -> list[Path]:
    """Return the entries of a folder, empty if the folder was deleted meanwhile; `Path.glob` would raise."""
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _read_entry(folder: Path) -> CheckpointEntry:
    """Read the description of the checkpoint in a folder. Raises OSError, ValueError or TypeError."""
    size = sum(file.stat().st_size for file in folder.iterdir())
    return CheckpointEntry.model_validate({**read_json(folder / META), "size": size})


def _expiry(ttl_seconds: int | None) -> datetime | None:
    """Return the time `ttl_seconds` from now; None for None. Raises RequestError if it is out of range."""
    if ttl_seconds is None:
        return None
    if not 0 < ttl_seconds <= CHECKPOINT_SECONDS.most:
        raise RequestError(f"ttl_seconds is {ttl_seconds}; expected 1 to {CHECKPOINT_SECONDS}, or none")
    return datetime.now(UTC) + timedelta(seconds=ttl_seconds)
