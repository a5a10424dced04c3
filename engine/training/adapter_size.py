"""How large the adapter of a model is, read off the heads of its files: no torch, no weights."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.spec import Lora

BYTES = 16
"""For each parameter: the weight, its gradient and Adam's two moments, each in four bytes."""
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
NO_LAYER = ("embed", "norm", "wte", "wpe")
"""In the names of matrices that are not of linear layers."""


def adapter_parameters(folder: Path, lora: Lora) -> int | None:
    """The parameters of an adapter: rank x (in + out) of each linear layer; None where that cannot be read.

    A layer that is smaller than the rank has less. Tied embeddings give the logits, too.
    """
    shapes = _shapes(folder)
    if not shapes:
        return None
    total = 0
    for name, (rows, columns) in shapes.items():
        if name.startswith("lm_head"):
            wanted = lora.unembed
        elif any(word in name for word in NO_LAYER):
            continue
        else:
            wanted = lora.attention if ATTENTION.search(name) else lora.mlp
        if wanted:
            total += min(lora.rank, rows, columns) * (rows + columns)
    return total


def _shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """The matrices of a model folder, by the layer's name."""
    shapes: dict[str, tuple[int, int]] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb") as opened:
                (length,) = struct.unpack("<Q", opened.read(8))
                head: dict[str, Any] = json.loads(opened.read(length))
            for name, tensor in head.items():
                shape = tensor.get("shape", ())
                if name.endswith(".weight") and len(shape) == 2:
                    shapes[name.removesuffix(".weight")] = (shape[0], shape[1])
                if name.endswith("embed_tokens.weight") and _tied(folder):
                    shapes["lm_head"] = (shape[0], shape[1])
    except (OSError, ValueError, struct.error, AttributeError):
        return {}
    return shapes


def _tied(folder: Path) -> bool:
    return bool(read_json(folder / "config.json").get("tie_word_embeddings"))
