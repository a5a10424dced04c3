"""`rolegraph export`: trained weights as a folder that peft, transformers and model servers load."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.local.weights import ADAPTER_CONFIG, checkpoint_folder, digest
from rolegraph.engine.records import MAIN, PolicyPath, RunFolder
from rolegraph.engine.shipped import MODELS
from rolegraph.running import blocking

TOKENIZER = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
"""The files of a model folder that say how its tokens and chats are written."""


async def export_async(
    checkpoint: str | Path,
    out: str | Path | None = None,
    *,
    policy: str | None = None,
    merged: bool = False,
    model: str | Path | None = None,
    base_url: str | None = None,
) -> Path:
    """Write trained weights to a folder, with tokenizer, chat template and model card; where it is.

    `checkpoint` is a training's folder, for the best weights of a `policy` (also `FOLDER#POLICY`; by default
    `main` or the only one), or the tinker:// path of some. They are an adapter in PEFT's form, or, `merged`,
    a whole model for transformers, vLLM and others; the folder can be run as `local:FOLDER`. The default
    `out` is `adapter` or `merged` in the training's folder. `model` is the folder of the model that they are
    of, where that is no longer where it was; `base_url` is the service that holds weights which are not on
    this machine. Raises UsageError and WorldError.
    """
    run = saved = None
    place = Path(out) if out else None
    if (of_training := PolicyPath.parse(str(checkpoint))) is not None:
        run, policy = RunFolder(Path(of_training.folder)), policy or of_training.policy
        run.training()  # raises where it is none
        saved = run.best_of(policy)
        place = place or run.path / _name(policy, merged=merged)
    if place is None:
        raise UsageError(f"say where {checkpoint} is to go: there is no folder of its training")
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise UsageError(f"{place} is there already; move it away, or choose another folder with --out")
    base = None if model is None else Path(model)
    if base is not None and not base.is_dir():
        raise UsageError(f"there is no model folder {base}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".part-") as part:
            adapter = Path(part) / "adapter"
            adapter.mkdir()
            held = run and saved and checkpoint_folder(saved.sampler, run.weights)
            if run is not None and saved is not None and held and held.is_dir():
                from rolegraph.engine.local.service.exporting import (
                    export_adapter,  # torch takes seconds to import
                )

                base = await asyncio.to_thread(export_adapter, saved.sampler, run.weights, adapter, base)
            else:
                path = str(checkpoint) if saved is None else saved.state
                url = base_url or (run.training().base_url if run else None)
                base = await _downloaded(path, adapter, base, url, whole=merged)
            whole = adapter
            if merged:
                from rolegraph.engine.local.service.exporting import export_merged

                whole = Path(part) / "merged"
                await asyncio.to_thread(export_merged, adapter, whole)
            _copy(base, whole, *TOKENIZER, *(["generation_config.json"] if merged else []))
            if run is not None and saved is not None:
                card = _card(run, policy, adapter, base=base, merged=merged)
                (whole / "README.md").write_text(card, encoding="utf-8")
            for file in whole.iterdir():
                file.chmod(0o644)  # safetensors keeps its own from others, such as a server's user
            if place.exists():
                place.rmdir()
            whole.rename(place)
    except WorldError:
        raise
    except OSError as error:
        raise WorldError(f"cannot write {place}: {error.strerror or error}") from error
    return place


export = blocking(export_async)


def _name(policy: str | None, *, merged: bool) -> str:
    kind = "merged" if merged else "adapter"
    return f"{kind}-{policy}" if policy else kind


async def _downloaded(path: str, folder: Path, base: Path | None, url: str | None, *, whole: bool) -> Path:
    """Brings a service's weights into a folder; returns that of their model."""
    from rolegraph.engine.models.download import download_adapter
    from rolegraph.engine.models.tinker_open import hub_name

    # Our own trainings save both under one name, and only those that can be trained on leave a service.
    name = await download_adapter(path.replace("/sampler_weights/", "/weights/"), folder, url)
    known = MODELS.get(name) or Path(hub_name(name))
    base = base or (known if known.is_dir() else await asyncio.to_thread(_from_hub, str(known), whole=whole))
    config = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
    config["base_model_name_or_path"] = str(base) if whole or known.is_dir() else str(known)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return base


def _from_hub(name: str, *, whole: bool) -> Path:
    """A model from the hub: all of it, or what says how its tokens are written."""
    import huggingface_hub

    download = cast("Callable[..., str]", cast("Any", huggingface_hub).snapshot_download)
    try:
        wanted = ["*.json", "*.safetensors", *TOKENIZER] if whole else [*TOKENIZER]
        return Path(download(name, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises many things, all of which mean that it is not here
        raise WorldError(
            f"the model hub did not give {name} ({first_line(error)}); say where a copy of it is with "
            "--model local:FOLDER"
        ) from error


def _copy(source: Path, target: Path, *patterns: str) -> None:
    for file in {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}:
        shutil.copy(file, target / file.name)


def _card(run: RunFolder, policy: str | None, adapter: Path, *, base: Path, merged: bool) -> str:
    from rolegraph.engine.report.card import model_card

    named = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8"))["base_model_name_or_path"]
    best = run.best()
    return model_card(
        run.training(),
        best,
        run.spec(),
        policy=policy or (next(iter(best.policies)) if len(best.policies) == 1 else MAIN),
        base=named,
        digest=digest(base),
        merged=merged,
        before=next((line for line in run.metrics() if line["step"] == 0), None),
        controls=run.controls(),
    )
