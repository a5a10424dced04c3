"""Where weights lie on disk: checkpoints by their paths, adapters and what they are of. Knows no torch."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.shipped import model_folder

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
OPTIMIZER = "optimizer.pt"
"""The optimizer's state, beside a checkpoint's weights."""
EXPIRES = "expires"
"""When a service deletes the checkpoint; there only where it does."""
_PATH = re.compile(r"tinker://(?P<run>[\w.:-]+)/(?P<kind>(?:sampler_|external_)?weights)/(?P<name>[\w.-]+)")


def folder_of(path: str, under: Path) -> Path | None:
    """The folder of a checkpoint; None where that is no checkpoint's path.

    A run's name is of words between colons, which not every file system takes. Earlier versions did not care.
    """
    parts = _PATH.fullmatch(path)
    if parts is None or {parts["run"], parts["name"]} & {".", ".."}:
        return None
    runs = parts["run"], parts["run"].replace(":", "_")
    before, now = (under / run / parts["kind"] / parts["name"] for run in runs)
    return before if before.is_dir() else now


def base_of(folder: Path) -> Path | None:
    """The model that the folder's adapter is of; None where it holds no adapter. Raises UsageError."""
    file = folder / ADAPTER_CONFIG
    try:
        config: Any = read_json(file)
        base = model_folder(str(config["base_model_name_or_path"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is not an adapter's config: {error}") from error
    if not base.is_dir():
        raise UsageError(
            f"{folder} is an adapter of {base}, which is not here; write where its model is into {file}, "
            "at base_model_name_or_path"
        )
    return base


def digest(folder: Path) -> str:
    """Hex digest of the weights of a model folder, wherever it lies; an adapter's covers its base's.

    Raises OSError.
    """
    whole = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin")):
        with file.open("rb") as weights:
            whole.update(hashlib.file_digest(weights, "sha256").digest())
    if (base := base_of(folder)) is not None:
        whole.update(digest(base).encode())
    return whole.hexdigest()


def bring(path: str, source: Path, target: Path) -> None:
    """Copy a checkpoint's weights from one service's folder to another's, unless they are there.

    Raises UsageError where there are none, WorldError where the disk does not take them.
    """
    there, here = folder_of(path, source), folder_of(path, target)
    if there is None or here is None or not there.is_dir():
        raise UsageError(f"{source} does not hold the weights {path}")
    if here.exists():
        return
    try:
        part = here.with_name(f".part-{here.name}")
        shutil.copytree(there, part, ignore=shutil.ignore_patterns(OPTIMIZER, EXPIRES), dirs_exist_ok=True)
        part.rename(here)
    except OSError as error:
        raise WorldError(f"cannot copy the weights {path} to {target}: {error.strerror}") from error
