"""Checkpoints on disk, by their `tinker://RUN/KIND/NAME` paths.

A checkpoint is a folder: an adapter as PEFT has it (`adapter_model.safetensors`, `adapter_config.json`),
`meta.json` (its path and shape, its base model's name and a digest of that model's weights) and, for a
training state, `optimizer.pt`. It appears whole or not at all. Those of the form before, with the adapter
in `adapter.safetensors` and no digest, are read too.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.local.launcher import model_name
from engine.local.service.adapters import write_adapter
from engine.local.service.policy import LoraShape
from engine.local.service.trainer import Missing, Refused
from engine.local.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, OPTIMIZER, digest, folder_of

Kind = Literal["weights", "sampler_weights"]
_PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[\w.-]{0,127}[\w-]", re.ASCII | re.IGNORECASE)
"""A name that every file system takes."""
_META = "meta.json"
_WEIGHTS_BEFORE = "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds."""

    shape: LoraShape
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


def checkpoint_path(run: str, kind: Kind, name: str) -> str:
    """What clients know a checkpoint by."""
    return f"tinker://{run}/{kind}/{name}"


class Checkpoints:
    """The checkpoints under one folder, all of the model in `model_dir`, which clients call `base_model`."""

    def __init__(self, folder: Path, base_model: str, model_dir: Path) -> None:
        self._folder, self._base_model, self._model_dir = folder, base_model, model_dir

    @cached_property
    def _digest(self) -> str:
        return digest(self._model_dir)

    def save(
        self,
        path: str,
        shape: LoraShape,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any] | None = None,
    ) -> str:
        """Write a checkpoint, replacing one of that path, and return the path. Raises Refused."""
        target = self._where(path)
        if not _PLAIN.fullmatch(target.name):
            raise Refused(
                f"{target.name!r} names no checkpoint: expected up to 128 letters, digits, dots, dashes and "
                "underscores, no dot at the end, and no name that an operating system keeps for itself"
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".part-") as part:
                whole = Path(part) / "checkpoint"
                whole.mkdir()
                write_adapter(whole, weights, shape.rank, model_name(self._model_dir))
                if optimizer is not None:
                    torch.save(optimizer, whole / OPTIMIZER)
                meta = {
                    "path": path,
                    "shape": asdict(shape),
                    "base_model": self._base_model,
                    "base_digest": self._digest,
                }
                (whole / _META).write_text(json.dumps(meta), encoding="utf-8")
                if target.exists():
                    target.rename(Path(part) / "replaced")
                whole.rename(target)
        except OSError as error:
            raise Refused(f"cannot write the checkpoint {path}: {error.strerror}") from error
        return path

    def remove(self, path: str) -> None:
        """Delete a checkpoint."""
        shutil.rmtree(self._where(path), ignore_errors=True)

    def load(self, path: str, *, optimizer: bool) -> Checkpoint:
        """Read a checkpoint. Raises Refused where it is missing, broken or of another base model."""
        where = self._where(path)
        if not where.is_dir():
            raise Missing(f"there is no checkpoint {path}")
        try:
            meta = json.loads((where / _META).read_text(encoding="utf-8"))
            weights = load_file(_weights_file(where))
            state: dict[str, Any] | None = None
            if optimizer:
                if not (where / OPTIMIZER).is_file():
                    raise Refused(f"{path} holds no optimizer state; load it without")
                state = torch.load(where / OPTIMIZER, weights_only=True)
            shape = LoraShape(**meta["shape"])
            self._check_base(path, meta["base_model"], meta.get("base_digest"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"the checkpoint {path} cannot be read: {error}") from error
        return Checkpoint(shape, weights, state)

    def _check_base(self, path: str, name: str, weights: str | None) -> None:
        """A checkpoint is of weights, wherever they lie; one of the form before knows but a name."""
        same = name == self._base_model
        if same if weights is None else weights == self._digest:
            return
        other = "one with other weights" if same else repr(self._base_model)
        raise Refused(f"{path} is of the model {name!r}; {other} is served here")

    def _where(self, path: str) -> Path:
        folder = folder_of(path, self._folder)
        if folder is None:
            raise Refused(f"{path!r} is not a checkpoint's path; expected tinker://RUN/weights/NAME")
        return folder


def base_name(path: str, under: Path) -> str:
    """What the model of a checkpoint under a folder is called, or where it was. Raises Refused."""
    folder = folder_of(path, under)
    if folder is None or not folder.is_dir():
        raise Missing(f"there is no checkpoint {path} in {under}")
    try:
        if (folder / ADAPTER_CONFIG).is_file():
            return json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))["base_model_name_or_path"]
        return json.loads((folder / _META).read_text("utf-8"))["base_model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"the checkpoint {path} cannot be read: {error}") from error


def _weights_file(checkpoint: Path) -> Path:
    before = checkpoint / _WEIGHTS_BEFORE
    return before if before.is_file() else checkpoint / ADAPTER_WEIGHTS
