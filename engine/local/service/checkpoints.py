"""Checkpoints on disk, by their `tinker://RUN/KIND/NAME` paths.

A checkpoint is a folder with an adapter in PEFT's form (`adapter_model.safetensors`, `adapter_config.json`),
`meta.json` (path, shape, name of the base model and digest of that model's weights) and, for a training
state, `optimizer.pt`. Folders appear and disappear as a whole. Checkpoints of version 0.1, with the adapter
in `adapter.safetensors` and no digest, can be loaded too.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
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
from rolegraph.engine.local.service.errors import NotFoundError, RequestError
from rolegraph.engine.local.service.local_model import LoraShape
from rolegraph.engine.local.service.staging import NEW, StagingDirs
from rolegraph.engine.local.weights import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    EXPIRES,
    OPTIMIZER,
    checkpoint_folder,
    digest,
)

Kind = Literal["weights", "sampler_weights", "external_weights"]
"""A training state, weights to sample from, or weights to download."""
_KINDS: Mapping[str, Kind] = {kind: kind for kind in get_args(Kind)}
_PORTABLE = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[\w.-]{0,127}[\w-]", re.ASCII | re.IGNORECASE)
"""A file name that every file system accepts."""
_META = "meta.json"
_WEIGHTS_0_1 = "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """Shape, weights and, if requested, optimizer state of a loaded checkpoint."""

    shape: LoraShape
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """Options of a checkpoint that is saved."""

    ttl_seconds: int | None = None
    """Seconds until the checkpoint is deleted; None to keep it."""
    user_metadata: Mapping[str, str] | None = None
    listed: bool = True


PLAIN = SaveOptions()
"""The default options."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """Description of a checkpoint, from its folder without the weights."""

    path: str
    run: str
    kind: Kind
    name: str
    shape: LoraShape
    base_model: str
    created: datetime
    expires: datetime | None
    size: int
    """Bytes of all files together."""
    user_metadata: Mapping[str, str] | None
    listed: bool


def checkpoint_path(run: str, kind: Kind, name: str) -> str:
    """Return the path by which clients name a checkpoint."""
    return f"tinker://{run}/{kind}/{name}"


class CheckpointStore:
    """The checkpoints below a state folder, of the model in `model_dir`, whose name is `base_model`."""

    def __init__(self, folder: Path, base_model: str, model_dir: Path) -> None:
        self._folder, self._base_model, self._model_dir = folder, base_model, model_dir
        self._staging = StagingDirs(folder)
        self._staging.sweep(self._rescue)

    @cached_property
    def _digest(self) -> str:
        return digest(self._model_dir)

    def save(
        self,
        path: str,
        shape: LoraShape,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any] | None = None,
        options: SaveOptions = PLAIN,
    ) -> str:
        """Write a checkpoint, replacing one of the same path, and return the path.

        Raises:
            RequestError: the path, name or expiry is not valid, or the files cannot be written.
        """
        target = self._folder_of(path)
        if not _PORTABLE.fullmatch(target.name):
            raise RequestError(
                f"{target.name!r} names no checkpoint: expected up to 128 letters, digits, dots, dashes and "
                "underscores, no dot at the end, and no name that an operating system keeps for itself"
            )
        expires = _expiry(options.ttl_seconds)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._staging.create() as staging:
                whole = staging / NEW
                whole.mkdir()
                write_adapter(whole, weights, shape.rank, model_name(self._model_dir))
                if optimizer is not None:
                    torch.save(optimizer, whole / OPTIMIZER)
                meta = {
                    "path": path,
                    "shape": asdict(shape),
                    "base_model": self._base_model,
                    "base_digest": self._digest,
                    "created": datetime.now(UTC).isoformat(),
                    "user_metadata": options.user_metadata,
                    "listed": options.listed,
                }
                (whole / _META).write_text(json.dumps(meta), encoding="utf-8")
                if expires is not None:
                    (whole / EXPIRES).write_text(expires.isoformat(), encoding="utf-8")
                if target.exists():
                    target.rename(staging / "replaced")
                whole.rename(target)
        except OSError as error:
            raise RequestError(f"cannot write the checkpoint {path}: {error.strerror}") from error
        self._record_expiry(path, expires)
        return path

    def remove(self, path: str) -> None:
        """Delete a checkpoint, if it exists."""
        folder = self._folder_of(path)
        try:
            with self._staging.create() as staging:
                folder.rename(staging / "removed")
            for parent in folder.parents[:2]:
                parent.rmdir()
        except OSError:  # it did not exist, or the run has other checkpoints
            pass
        self._record_expiry(path, None)

    def _rescue(self, staging: Path) -> None:
        """Move a checkpoint into place whose service was killed after removing the one that it replaces."""
        with contextlib.suppress(OSError, ValueError, KeyError, RequestError):
            target = self._folder_of(str(json.loads((staging / NEW / _META).read_bytes())["path"]))
            if (staging / "replaced").exists() and not target.exists():
                (staging / NEW).rename(target)

    def holds(self, path: str) -> bool:
        """Return True if a checkpoint exists. Raises RequestError if the path is not valid."""
        return self._folder_of(path).is_dir()

    def delete(self, path: str) -> None:
        """Delete a checkpoint. Raises NotFoundError, or RequestError if its files cannot be deleted."""
        folder = self._existing(path)
        self.remove(path)
        if folder.is_dir():
            raise RequestError(f"cannot delete the checkpoint {path}: no permission to change its folder")

    def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire in `ttl_seconds`, or never (None). Raises RequestError."""
        folder, expires = self._existing(path), _expiry(ttl_seconds)
        try:
            if expires is None:
                (folder / EXPIRES).unlink(missing_ok=True)
            else:
                new = folder / f".{EXPIRES}"
                new.write_text(expires.isoformat(), encoding="utf-8")
                new.replace(folder / EXPIRES)
        except OSError as error:
            raise RequestError(f"cannot write into the checkpoint {path}: {error.strerror}") from error
        self._record_expiry(path, expires)

    def expired(self) -> list[str]:
        """Return the paths of expired checkpoints that still exist."""
        now = datetime.now(UTC)
        return [path for path, end in self._expiries.items() if end <= now]

    @cached_property
    def _expiries(self) -> dict[str, datetime]:
        """Times at which checkpoints expire, by path: read once, so that no request scans the folder."""
        return {entry.path: entry.expires for entry in self._all() if entry.expires is not None}

    def _record_expiry(self, path: str, end: datetime | None) -> None:
        self._expiries.pop(path, None)
        if end is not None:
            self._expiries[path] = end

    def entries(self) -> list[CheckpointEntry]:
        """Return the listed checkpoints that have not expired, the newest first."""
        now = datetime.now(UTC)
        found = [one for one in self._all() if one.listed and (one.expires is None or one.expires > now)]
        return sorted(found, key=lambda entry: entry.created, reverse=True)

    def files(self, path: str) -> dict[str, Path]:
        """Return the files of a checkpoint that can be downloaded, by name. Raises NotFoundError."""
        internal = (_META, EXPIRES, OPTIMIZER)
        found = sorted(self._existing(path).iterdir())
        return {file.name: file for file in found if file.name not in internal and file.name[0] != "."}

    def _all(self) -> Iterator[CheckpointEntry]:
        for meta in self._folder.glob(f"[!.]*/*/*/{_META}"):
            run, kind = meta.parent.parent.parent.name, meta.parent.parent.name
            if kind in _KINDS:
                try:
                    yield _entry(meta.parent, checkpoint_path(run, _KINDS[kind], meta.parent.name))
                except RequestError:  # deleted meanwhile, or broken: `load` reports it
                    continue

    def load(self, path: str, *, optimizer: bool) -> CheckpointContents:
        """Load a checkpoint, with its optimizer's state if `optimizer` is set.

        Raises:
            NotFoundError: there is no such checkpoint.
            RequestError: it is unreadable, of another base model, external, or lacks the optimizer's state.
        """
        folder = self._existing(path)
        if folder.parent.name == "external_weights":
            raise RequestError(f"{path} can only be downloaded; name tinker://RUN/weights/NAME here")
        try:
            meta = json.loads((folder / _META).read_text(encoding="utf-8"))
            weights = load_file(_weights_file(folder))
            state: dict[str, Any] | None = None
            if optimizer:
                if not (folder / OPTIMIZER).is_file():
                    raise RequestError(f"{path} holds no optimizer state; load it without")
                state = torch.load(folder / OPTIMIZER, weights_only=True)
            shape = LoraShape(**meta["shape"])
            self._check_base(path, meta["base_model"], meta.get("base_digest"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error
        return CheckpointContents(shape, weights, state)

    def _check_base(self, path: str, name: str, weights: str | None) -> None:
        """Compare the base model by the digest of its weights; of version 0.1 there is only a name."""
        same = name == self._base_model
        if same if weights is None else weights == self._digest:
            return
        other = "one with other weights" if same else repr(self._base_model)
        raise RequestError(f"{path} is of the model {name!r}; {other} is served here")

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


def base_model_of(path: str, root: Path) -> str:
    """Return the name or folder of the base model of a checkpoint below `root`. Raises RequestError."""
    folder = checkpoint_folder(path, root)
    if folder is None or not folder.is_dir():
        raise NotFoundError(f"there is no checkpoint {path} in {root}")
    try:
        if (folder / ADAPTER_CONFIG).is_file():
            return json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))["base_model_name_or_path"]
        return json.loads((folder / _META).read_text("utf-8"))["base_model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"the checkpoint {path} cannot be read: {error}") from error


def _weights_file(checkpoint: Path) -> Path:
    old = checkpoint / _WEIGHTS_0_1
    return old if old.is_file() else checkpoint / ADAPTER_WEIGHTS


def _entry(folder: Path, path: str) -> CheckpointEntry:
    """Describe the checkpoint in a folder; `path` stands in where its meta.json lacks the path."""
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


def _expiry(ttl_seconds: int | None) -> datetime | None:
    """Return the time `ttl_seconds` from now; None for None. Raises RequestError if it is out of range."""
    if ttl_seconds is None:
        return None
    if not 0 < ttl_seconds <= CHECKPOINT_SECONDS.most:
        raise RequestError(f"ttl_seconds is {ttl_seconds}; expected 1 to {CHECKPOINT_SECONDS}, or none")
    return datetime.now(UTC) + timedelta(seconds=ttl_seconds)
