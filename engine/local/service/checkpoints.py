"""Checkpoints on disk, by their `tinker://RUN/KIND/NAME` paths.

A checkpoint is a folder: an adapter as PEFT has it (`adapter_model.safetensors`, `adapter_config.json`),
`meta.json` (its path and shape, its base model's name and a digest of that model's weights) and, for a
training state, `optimizer.pt`. It appears and goes whole or not at all. Those of the form before, with the
adapter in `adapter.safetensors` and no digest, are read too.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rolegraph.engine.limits.service import CHECKPOINT_SECONDS
from rolegraph.engine.local.launcher import model_name
from rolegraph.engine.local.service.adapters import write_adapter
from rolegraph.engine.local.service.parts import NEW, StagingDirs
from rolegraph.engine.local.service.policy import LoraShape
from rolegraph.engine.local.service.sealing import seal
from rolegraph.engine.local.service.trainer import NotFoundError, RequestError
from rolegraph.engine.local.weights import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    EXPIRES,
    OPTIMIZER,
    digest,
    folder_of,
)

Kind = Literal["weights", "sampler_weights", "external_weights"]
"""A training state; weights to sample from; weights for others to read."""
_KINDS: Mapping[str, Kind] = {kind: kind for kind in get_args(Kind)}
_PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[\w.-]{0,127}[\w-]", re.ASCII | re.IGNORECASE)
"""A name that every file system takes."""
_META = "meta.json"
_WEIGHTS_BEFORE = "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """What a checkpoint holds."""

    shape: LoraShape
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """What a client asks of a checkpoint besides its weights."""

    ttl_seconds: int | None = None
    """How long it is kept; None for as long as nobody deletes it."""
    user_metadata: Mapping[str, str] | None = None
    listed: bool = True
    recipients: Sequence[str] = ()
    """Public keys, of age or SSH, whose owners alone can read it; none for a checkpoint that all can read."""


PLAIN = SaveOptions()
"""Nothing besides."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """What is known of a checkpoint without reading its weights."""

    path: str
    run: str
    kind: Kind
    name: str
    shape: LoraShape
    base_model: str
    created: datetime
    expires: datetime | None
    size: int
    """Bytes."""
    user_metadata: Mapping[str, str] | None
    listed: bool


def checkpoint_path(run: str, kind: Kind, name: str) -> str:
    """What clients know a checkpoint by."""
    return f"tinker://{run}/{kind}/{name}"


class CheckpointStore:
    """The checkpoints under one folder, all of the model in `model_dir`, which clients call `base_model`."""

    def __init__(self, folder: Path, base_model: str, model_dir: Path) -> None:
        self._folder, self._base_model, self._model_dir = folder, base_model, model_dir
        self._parts = StagingDirs(folder)
        self._parts.sweep(self._rescue)

    @cached_property
    def _digest(self) -> str:
        return digest(self._model_dir)

    def save(
        self,
        path: str,
        shape: LoraShape,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any] | None = None,
        terms: SaveOptions = PLAIN,
    ) -> str:
        """Write a checkpoint, replacing one of that path, and return the path. Raises Refused."""
        target = self._where(path)
        if not _PLAIN.fullmatch(target.name):
            raise RequestError(
                f"{target.name!r} names no checkpoint: expected up to 128 letters, digits, dots, dashes and "
                "underscores, no dot at the end, and no name that an operating system keeps for itself"
            )
        expires = _end(terms.ttl_seconds)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._parts.part() as part:
                whole = part / NEW
                whole.mkdir()
                write_adapter(whole, weights, shape.rank, model_name(self._model_dir))
                if optimizer is not None:
                    torch.save(optimizer, whole / OPTIMIZER)
                if terms.recipients:
                    seal(whole, terms.recipients)
                meta = {
                    "path": path,
                    "shape": asdict(shape),
                    "base_model": self._base_model,
                    "base_digest": self._digest,
                    "created": datetime.now(UTC).isoformat(),
                    "user_metadata": terms.user_metadata,
                    "listed": terms.listed,
                }
                (whole / _META).write_text(json.dumps(meta), encoding="utf-8")
                if expires is not None:
                    (whole / EXPIRES).write_text(expires.isoformat(), encoding="utf-8")
                if target.exists():
                    target.rename(part / "replaced")
                whole.rename(target)
        except OSError as error:
            raise RequestError(f"cannot write the checkpoint {path}: {error.strerror}") from error
        self._note_end(path, expires)
        return path

    def remove(self, path: str) -> None:
        """Delete a checkpoint, if it is there."""
        where = self._where(path)
        try:
            with self._parts.part() as part:
                where.rename(part / "removed")
            for folder in (where.parent, where.parent.parent):
                folder.rmdir()
        except OSError:  # it was not there, or another still is in the run's folder
            pass
        self._note_end(path, None)

    def _rescue(self, part: Path) -> None:
        """A checkpoint that was written, and whose service was killed before it was in its place."""
        with contextlib.suppress(OSError, ValueError, KeyError, RequestError):
            target = self._where(str(json.loads((part / NEW / _META).read_bytes())["path"]))
            if (part / "replaced").exists() and not target.exists():
                (part / NEW).rename(target)

    def holds(self, path: str) -> bool:
        """Whether there is a checkpoint of that path. Raises Refused where it is no path."""
        return self._where(path).is_dir()

    def delete(self, path: str) -> None:
        """Delete a checkpoint. Raises Refused where it is not there, or cannot be deleted."""
        where = self._there(path)
        self.remove(path)
        if where.is_dir():
            raise RequestError(f"cannot delete the checkpoint {path}: its folder does not take it")

    def keep_for(self, path: str, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire, counting from now; None for never. Raises Refused."""
        where, expires = self._there(path), _end(ttl_seconds)
        try:
            if expires is None:
                (where / EXPIRES).unlink(missing_ok=True)
            else:
                new = where / f".{EXPIRES}"
                new.write_text(expires.isoformat(), encoding="utf-8")
                new.replace(where / EXPIRES)
        except OSError as error:
            raise RequestError(f"cannot write into the checkpoint {path}: {error.strerror}") from error
        self._note_end(path, expires)

    def expired(self) -> list[str]:
        """The checkpoints that are past their time and still there."""
        now = datetime.now(UTC)
        return [path for path, end in self._ends.items() if end <= now]

    @cached_property
    def _ends(self) -> dict[str, datetime]:
        """When those end that do."""
        return {entry.path: entry.expires for entry in self._all() if entry.expires is not None}

    def _note_end(self, path: str, end: datetime | None) -> None:
        self._ends.pop(path, None)
        if end is not None:
            self._ends[path] = end

    # what there is

    def entries(self) -> list[CheckpointEntry]:
        """The checkpoints that clients have asked for by name and that have not expired, the newest first."""
        now = datetime.now(UTC)
        found = [one for one in self._all() if one.listed and (one.expires is None or one.expires > now)]
        return sorted(found, key=lambda entry: entry.created, reverse=True)

    def entry(self, path: str) -> CheckpointEntry:
        """What is known of a checkpoint. Raises Refused."""
        return _entry(self._there(path), path)

    def files(self, path: str) -> dict[str, Path]:
        """What others read of a checkpoint, by name. Raises Refused."""
        ours = (_META, EXPIRES, OPTIMIZER)
        found = self._there(path).iterdir()
        return {file.name: file for file in sorted(found) if file.name not in ours and file.name[0] != "."}

    def _all(self) -> Iterator[CheckpointEntry]:
        for meta in self._folder.glob(f"[!.]*/*/*/{_META}"):
            run, kind = meta.parent.parent.parent.name, meta.parent.parent.name
            if kind in _KINDS:
                try:
                    yield _entry(meta.parent, checkpoint_path(run, _KINDS[kind], meta.parent.name))
                except RequestError:  # it is being deleted, or broken: whoever asks for it is told
                    continue

    def load(self, path: str, *, optimizer: bool) -> CheckpointContents:
        """Read a checkpoint. Raises Refused where it is missing, broken or of another base model."""
        where = self._there(path)
        if where.parent.name == "external_weights":
            raise RequestError(f"{path} is for others to read; name tinker://RUN/weights/NAME here")
        try:
            meta = json.loads((where / _META).read_text(encoding="utf-8"))
            weights = load_file(_weights_file(where))
            state: dict[str, Any] | None = None
            if optimizer:
                if not (where / OPTIMIZER).is_file():
                    raise RequestError(f"{path} holds no optimizer state; load it without")
                state = torch.load(where / OPTIMIZER, weights_only=True)
            shape = LoraShape(**meta["shape"])
            self._check_base(path, meta["base_model"], meta.get("base_digest"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error
        return CheckpointContents(shape, weights, state)

    def _check_base(self, path: str, name: str, weights: str | None) -> None:
        """A checkpoint is of weights, wherever they lie; one of the form before knows but a name."""
        same = name == self._base_model
        if same if weights is None else weights == self._digest:
            return
        other = "one with other weights" if same else repr(self._base_model)
        raise RequestError(f"{path} is of the model {name!r}; {other} is served here")

    def _there(self, path: str) -> Path:
        where = self._where(path)
        if not where.is_dir():
            raise NotFoundError(f"there is no checkpoint {path}")
        return where

    def _where(self, path: str) -> Path:
        folder = folder_of(path, self._folder)
        if folder is None:
            raise RequestError(f"{path!r} is not a checkpoint's path; expected tinker://RUN/weights/NAME")
        return folder


def base_name(path: str, under: Path) -> str:
    """What the model of a checkpoint under a folder is called, or where it was. Raises Refused."""
    folder = folder_of(path, under)
    if folder is None or not folder.is_dir():
        raise NotFoundError(f"there is no checkpoint {path} in {under}")
    try:
        if (folder / ADAPTER_CONFIG).is_file():
            return json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))["base_model_name_or_path"]
        return json.loads((folder / _META).read_text("utf-8"))["base_model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error


def _weights_file(checkpoint: Path) -> Path:
    before = checkpoint / _WEIGHTS_BEFORE
    return before if before.is_file() else checkpoint / ADAPTER_WEIGHTS


def _entry(folder: Path, path: str) -> CheckpointEntry:
    """What is known of the checkpoint in a folder, which goes by `path` unless it says otherwise itself."""
    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        path = meta.get("path", path)
        run, kind, name = path.removeprefix("tinker://").split("/")
        ends = folder / EXPIRES
        created = datetime.fromtimestamp((folder / _META).stat().st_mtime, UTC)
        return CheckpointEntry(
            path,
            run,
            _KINDS[kind],
            name,
            LoraShape(**meta["shape"]),
            meta["base_model"],
            datetime.fromisoformat(meta["created"]) if "created" in meta else created,
            datetime.fromisoformat(ends.read_text("utf-8")) if ends.is_file() else None,
            sum(file.stat().st_size for file in folder.iterdir()),
            meta.get("user_metadata"),
            meta.get("listed", True),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error


def _end(ttl_seconds: int | None) -> datetime | None:
    """When a checkpoint ends that is kept for so long from now. Raises Refused."""
    if ttl_seconds is None:
        return None
    if not 0 < ttl_seconds <= CHECKPOINT_SECONDS.most:
        raise RequestError(f"ttl_seconds is {ttl_seconds}; expected 1 to {CHECKPOINT_SECONDS}, or none")
    return datetime.now(UTC) + timedelta(seconds=ttl_seconds)
