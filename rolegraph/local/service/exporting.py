"""Export of checkpoints: to an adapter folder in PEFT's form, or to a model with the adapter merged in."""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.confined import below, check
from rolegraph.engine.records.weights import base_name, base_of_adapter, checkpoint_folder
from rolegraph.engine.shipped import hub_name, model_folder
from rolegraph.local.launcher import model_name
from rolegraph.local.service.adapters import check_adapter, load_model, write_adapter
from rolegraph.local.service.checkpoints import CheckpointStore
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.tensors import safetensors_errors


def export_adapter(path: str, state_dir: Path, out: Path, base: Path | None = None) -> Path:
    """Write the adapter of a checkpoint into a folder and return the folder of its base model.

    Args:
        path: The checkpoint's `tinker://` path.
        state_dir: The folder in which a service kept the checkpoint.
        out: An existing folder for the adapter's files.
        base: The base model's folder; by default the folder that the checkpoint names.

    Raises:
        UsageError: The checkpoint or its model is missing, or the checkpoint belongs to other weights or has
            tensors that do not fit.
        OSError: A file cannot be written.
    """
    check(below(state_dir))
    try:
        name = base_name(path, state_dir)
        folder = base or model_folder(name)
        if not folder.is_dir():
            raise UsageError(
                f"{path} belongs to the model {name}, which is not here; name it by --model local:FOLDER"
            )
        checkpoint = CheckpointStore(state_dir, name, folder).load(path, optimizer=False)
    except RequestError as error:
        raise UsageError(str(error)) from error
    check_adapter(checkpoint_folder(path, state_dir) or state_dir, folder)
    write_adapter(out, checkpoint.weights, checkpoint.shape.rank, hub_name(folder) or model_name(folder))
    return folder


def export_merged(adapter: Path, out: Path) -> None:
    """Merge an adapter folder into its base model and write the model to a folder, in the same dtype.

    The config is the base model's file, except that embeddings are untied if the adapter changes only one of
    their two uses.

    Raises:
        UsageError: The adapter or its base model cannot be loaded.
        OSError: A file cannot be written.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = load_model(adapter)
    with safetensors_errors():
        model.save_pretrained(out)
    base_folder = base_of_adapter(adapter) or adapter
    config: dict[str, Any] = json.loads((base_folder / "config.json").read_text("utf-8"))
    if not model.config.tie_word_embeddings:
        config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
