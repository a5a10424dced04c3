"""`rolegraph export`: trained weights as a folder that other programs load."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rolegraph.api.jobs import blocking
from rolegraph.api.trusting import is_this_machine, typed_words
from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.records import PolicyPath, RunFolder, SavedWeights, saved_weights
from rolegraph.engine.records.ownership import NEW
from rolegraph.engine.records.staging import staged
from rolegraph.engine.records.weights import (
    ADAPTER_CONFIG,
    digest,
    missing_model,
)
from rolegraph.engine.shipped import MODELS, model_folder

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
"""Name patterns of a model folder's tokenizer and chat template files."""


async def export_async(
    checkpoint: str | Path,
    out: str | Path | None = None,
    *,
    policy: str | None = None,
    merged: bool = False,
    model: str | Path | None = None,
    base_url: str | None = None,
) -> Path:
    """Write trained weights to a folder, with tokenizer, chat template and model card.

    The folder can be run as `local:FOLDER`.

    Args:
        checkpoint: Folder of a training, for its best weights (also `FOLDER#POLICY`), or a `tinker://` path.
        out: The new folder; by default `adapter` or `merged` in the folder of the training that saved the
            weights.
        policy: Policy whose weights to write; by default `main`, or the only one.
        merged: True to write a whole model for transformers, vLLM and others, in place of an adapter in
            PEFT's form.
        model: Folder or name of the weights' base model, where it has moved.
        base_url: URL of the service that holds weights which are not on this machine.

    Returns:
        The new folder.

    Raises:
        UsageError: No such weights, `out` has files, or `out` is missing for a `tinker://` path that no
            training in `runs/` saved.
        WorldError: The service or the model hub does not answer, or the disk is full.
    """
    label: str | None = None
    if (policy_path := PolicyPath.parse(str(checkpoint))) is not None:
        policy_path = policy_path._replace(policy=policy or policy_path.policy)
        label = policy_path.policy
        RunFolder(Path(policy_path.folder)).training()  # raises for a folder of another kind
    if (saved_model := saved_weights(str(policy_path or checkpoint))) is not None:
        if policy_path is None:
            label = f"{saved_model.policy}-{saved_model.checkpoint.step}"
        kind = "merged" if merged else "adapter"
        out = out or saved_model.run.path / (f"{kind}-{label}" if label else kind)
    if out is None:
        raise UsageError(f"{checkpoint} has no training folder to export into; name a folder with --out")
    out_folder = Path(out)
    NEW.check(out_folder)
    base = None if model is None else model_folder(str(model))
    if base is not None and not base.is_dir():
        raise UsageError(missing_model(base))
    with staged(out_folder) as staged_folder:
        adapter = staged_folder.with_name(".adapter") if merged else staged_folder
        adapter.mkdir()
        if saved_model is not None and saved_model.are_here:
            # torch takes seconds to import
            from rolegraph.local.service.exporting import export_adapter

            path, weights = saved_model.paths.sampler, saved_model.run.weights
            base = await asyncio.to_thread(export_adapter, path, weights, adapter, base)
        else:
            path = str(checkpoint) if saved_model is None else saved_model.paths.state
            url = base_url or (_address(saved_model.run) if saved_model else None)
            base = await _downloaded(path, adapter, base, url, whole=merged)
        if merged:
            from rolegraph.local.service.exporting import export_merged

            await asyncio.to_thread(export_merged, adapter, staged_folder)
        for pattern in [*TOKENIZER, *(["generation_config.json"] if merged else [])]:
            for file in filter(Path.is_file, base.glob(pattern)):
                shutil.copy(file, staged_folder / file.name)
        if saved_model is not None:
            card = _card(saved_model, adapter, base=base, merged=merged)
            (staged_folder / "README.md").write_text(card, encoding="utf-8")
        for file in staged_folder.iterdir():
            file.chmod(0o644)  # safetensors writes files that only the owner can read
    return out_folder


export = blocking(export_async)


def _address(run: RunFolder) -> str | None:
    """Return the URL of the service that trained a run; None for the default.

    Raises UsageError for a URL of another machine that only the run's folder names: the key would be sent to
    it.
    """
    info = run.training()
    if info.base_url is not None and not is_this_machine(info.base_url):
        command_words = typed_words("export") or ["export", str(run.path)]
        raise UsageError(
            f"{run.path} names the service {info.base_url}, which would get your key, and anybody may have "
            "written that into the folder; if you want it, give it again:\n  "
            + shlex.join(["rolegraph", *command_words, "--base-url", info.base_url])
        )
    return info.base_url


async def _downloaded(path: str, folder: Path, base: Path | None, url: str | None, *, whole: bool) -> Path:
    """Download a service's weights into a folder; return the folder of their base model."""
    from rolegraph.engine.models.tokenizer import hub_name
    from rolegraph.local.downloading import download_adapter

    # Rolegraph saves both kinds under one name, and services only export weights that can be trained on.
    name = await download_adapter(path.replace("/sampler_weights/", "/weights/"), folder, url)
    model = MODELS.get(name) or Path(hub_name(name))
    base = base or (model if model.is_dir() else await asyncio.to_thread(_from_hub, str(model), whole=whole))
    config = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
    config["base_model_name_or_path"] = str(base) if whole or model.is_dir() else str(model)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return base


def _from_hub(name: str, *, whole: bool) -> Path:
    """Download a model from the hub, if not `whole` only its tokenizer files; return the model's folder."""
    import huggingface_hub

    download = cast("Callable[..., str]", cast("Any", huggingface_hub).snapshot_download)
    try:
        file_patterns = ["*.json", "*.safetensors", *TOKENIZER] if whole else [*TOKENIZER]
        return Path(download(name, allow_patterns=file_patterns))
    except Exception as error:  # the hub's client raises many types, all for a model that it cannot give
        raise WorldError(
            f"cannot download {name} from the model hub ({first_line(error)}); name a copy with "
            "--model local:FOLDER"
        ) from error


def _card(saved: SavedWeights, adapter: Path, *, base: Path, merged: bool) -> str:
    from rolegraph.local.card import model_card

    run = saved.run
    base_name = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8"))["base_model_name_or_path"]
    return model_card(
        run.training(),
        saved.checkpoint,
        run.spec(),
        policy=saved.policy,
        base=base_name,
        digest=digest(base),
        merged=merged,
        before=next((metrics_line for metrics_line in run.metrics() if metrics_line["step"] == 0), None),
        controls=run.controls(),
    )
