"""A checkpoint to folders that stand by themselves: an adapter in PEFT's form, or weights with it in them.

Imports torch; nothing else does so early.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError
from rolegraph.engine.local.launcher import model_name
from rolegraph.engine.local.service.adapters import load_model, write_adapter
from rolegraph.engine.local.service.checkpoints import CheckpointStore, base_name
from rolegraph.engine.local.service.trainer import RequestError
from rolegraph.engine.local.weights import base_of
from rolegraph.engine.shipped import model_folder


def export_adapter(path: str, under: Path, out: Path, base: Path | None = None) -> Path:
    """Write the adapter of a checkpoint into a folder, and return its model's.

    `under` is where a service kept its checkpoints. The model is looked for where it was, or is `base`.
    Raises UsageError where either is missing, or the checkpoint is of other weights; OSError.
    """
    try:
        name = base_name(path, under)
        folder = base or model_folder(name)
        if not folder.is_dir():
            raise UsageError(
                f"{path} is of the model {name}, which is not here; say where with --model local:FOLDER"
            )
        found = CheckpointStore(under, name, folder).load(path, optimizer=False)
    except RequestError as error:
        raise UsageError(str(error)) from error
    write_adapter(out, found.weights, found.shape.rank, model_name(folder))
    return folder


def export_merged(adapter: Path, out: Path) -> None:
    """Write the model of an adapter's folder with the adapter in its weights, which keep their type.

    Its config is its base's as it was written, but that embeddings are untied whose one use the adapter has
    changed. Raises UsageError and OSError.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = load_model(adapter)
    model.save_pretrained(out)
    base = adapter
    while (below := base_of(base)) is not None:
        base = below
    config: dict[str, Any] = json.loads((base / "config.json").read_text("utf-8"))
    if not model.config.tie_word_embeddings:
        config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
