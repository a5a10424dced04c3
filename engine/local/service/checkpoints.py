"""Checkpoints on disk, by their `tinker://RUN/KIND/NAME` paths.

A checkpoint is a folder: `adapter.safetensors`, `meta.json` (the adapter's shape and the base model's name)
and, for a training state, `optimizer.pt`. It appears whole or not at all.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.local.service.policy import LoraShape
from engine.local.service.trainer import Missing, Refused
from engine.local.weights import OPTIMIZER, folder_of

Kind = Literal["weights", "sampler_weights"]


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
    """The checkpoints under one folder, all of one base model."""

    def __init__(self, folder: Path, base_model: str) -> None:
        self._folder, self._base_model = folder, base_model

    def save(
        self,
        path: str,
        shape: LoraShape,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any] | None = None,
    ) -> str:
        """Write a checkpoint, replacing one of that path, and return the path. Raises Refused."""
        target = self._where(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".part-") as part:
                whole = Path(part) / "checkpoint"
                whole.mkdir()
                save_file(dict(weights), whole / "adapter.safetensors")
                if optimizer is not None:
                    torch.save(optimizer, whole / OPTIMIZER)
                meta = {"shape": asdict(shape), "base_model": self._base_model}
                (whole / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
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
            meta = json.loads((where / "meta.json").read_text(encoding="utf-8"))
            weights = load_file(where / "adapter.safetensors")
            state: dict[str, Any] | None = None
            if optimizer:
                if not (where / OPTIMIZER).is_file():
                    raise Refused(f"{path} holds no optimizer state; load it without")
                state = torch.load(where / OPTIMIZER, weights_only=True)
            shape = LoraShape(**meta["shape"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"the checkpoint {path} cannot be read: {error}") from error
        if meta["base_model"] != self._base_model:
            raise Refused(f"{path} is of the model {meta['base_model']!r}, not {self._base_model!r}")
        return Checkpoint(shape, weights, state)

    def _where(self, path: str) -> Path:
        folder = folder_of(path, self._folder)
        if folder is None:
            raise Refused(f"{path!r} is not a checkpoint's path; expected tinker://RUN/weights/NAME")
        return folder
