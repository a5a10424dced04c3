"""Layout of weights on disk: folders of checkpoints by their paths, and adapters. Does not import torch."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import UsageError, WorldError, did_you_mean, first_line
from rolegraph.engine.records.confined import below, check, write_whole
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.shipped import (
    HUB_NAMES,
    MODELS,
    fetched_folder,
    fetched_models,
    model_folder,
    name_of_fetched,
)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
"""File of the optimizer's state, beside a checkpoint's weights."""
META = "meta.json"
"""File with the description of a checkpoint."""
_HEADER_BYTES = 100_000_000
"""Largest header of a safetensors file, by its format."""
_PATH = re.compile(r"tinker://(?P<run>[\w.:-]+)/(?P<kind>(?:sampler_|external_)?weights)/(?P<name>[\w.-]+)")


def checkpoint_folder(path: str, root: Path) -> Path | None:
    """Return the folder of a checkpoint below `root`; None if `path` is not a `tinker://RUN/KIND/NAME` path.

    Colons in a run's name become underscores, since not every file system accepts colons.
    """
    path_match = _PATH.fullmatch(path)
    if path_match is None or {path_match["run"], path_match["name"]} & {".", ".."}:
        return None
    return root / path_match["run"].replace(":", "_") / path_match["kind"] / path_match["name"]


def base_name(path: str, root: Path) -> str:
    """Return the name or folder of the base model that a checkpoint below `root` names.

    Raises:
        UsageError: There is no such checkpoint, or its config is damaged.
    """
    folder = checkpoint_folder(path, root)
    try:
        config: Any = read_json((folder or root) / ADAPTER_CONFIG)
        return str(config["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"there is no checkpoint {path} in {root}: {first_line(error)}") from error


def base_of_adapter(folder: Path) -> Path | None:
    """Return the folder of an adapter's base model; None if `folder` is not an adapter's.

    Raises:
        UsageError: The adapter's config is broken, or its model is not on this machine or an adapter.
    """
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
            f"{folder} is an adapter of {base}, which is not here: {missing_model(base)}; or write where its "
            f"model is into {file}, at base_model_name_or_path"
        )
    if (base / ADAPTER_CONFIG).exists():
        raise UsageError(
            f"{folder} is an adapter of {base}, which is an adapter itself; merge that one first"
        )
    return base


def missing_model(folder: Path) -> str:
    """Return the message for a model folder that does not exist, with the command that fetches the model."""
    if (name := name_of_fetched(folder)) is not None:
        return f"the model {name} is not on this machine; get it: rolegraph fetch {shlex.quote(name)}"
    name = str(folder)[:200]
    if folder.suffix.lower() == ".gguf":
        return f"{name} is no model folder; make one of the file: rolegraph fetch {shlex.quote(name)}"
    if "/" in name and fetched_folder(name) is not None:
        return f"there is no model folder {name}; if it is a model of the hub: rolegraph fetch {name}"
    fetched_names = [name_of_fetched(folder) or "" for folder in fetched_models().glob("[!.]*")]
    hint = did_you_mean(name, [*MODELS, *HUB_NAMES, *fetched_names], "local:{}")
    return f"there is no model folder {name}" + (f"; {hint}" if hint else "")


def complete_config(folder: Path) -> None:
    """Add the names of the adapted layers to an adapter's config that lacks them: PEFT does not infer them.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: A file is not part of an adapter.
    """
    file = folder / ADAPTER_CONFIG
    config: Any = read_json(file)
    if config.get("target_modules"):
        return
    with (folder / ADAPTER_WEIGHTS).open("rb") as weights:
        size = min(int.from_bytes(weights.read(8), "little"), _HEADER_BYTES)
        names: dict[str, Any] = json.loads(weights.read(size))
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name}
    write_whole(file, json.dumps({**config, "target_modules": sorted(layers)}, indent=2).encode())


def digest(folder: Path) -> str:
    """Return the SHA-256 hex digest of a model folder's weights; an adapter's digest covers its base model's
    as well.

    Raises:
        OSError: A weights file cannot be read.
    """
    whole_digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as weights:
            whole_digest.update(hashlib.file_digest(weights, "sha256").digest())
    if (base := base_of_adapter(folder)) is not None:
        whole_digest.update(digest(base).encode())
    return whole_digest.hexdigest()


def copy_weights(path: str, source: Path, target: Path) -> None:
    """Copy a checkpoint's weights from one service's state folder to another's, unless they are already
    there.

    Raises:
        UsageError: `source` does not hold the checkpoint.
        WorldError: The files cannot be written.
    """
    origin, target_folder = checkpoint_folder(path, source), checkpoint_folder(path, target)
    if origin is None or target_folder is None or not origin.is_dir():
        raise UsageError(f"{source} does not hold the weights {path}")
    if target_folder.exists():
        return
    check([*below(origin), *below(target)])  # what is linked there would be copied, or written
    try:
        part_folder = target_folder.with_name(f".part-{target_folder.name}")
        shutil.rmtree(part_folder, ignore_errors=True)  # a killed command may have left it
        shutil.copytree(origin, part_folder, ignore=shutil.ignore_patterns(OPTIMIZER))
        if (part_folder / META).exists():
            meta = read_json(part_folder / META)
            (part_folder / META).write_text(json.dumps({**meta, "expires": None}), "utf-8")
        part_folder.rename(target_folder)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{origin / META} does not describe a checkpoint: {first_line(error)}") from error
    except OSError as error:
        raise WorldError(f"cannot copy the weights {path} to {target}: {error.strerror}") from error
