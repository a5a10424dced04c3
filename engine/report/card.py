"""Model card of exported weights, in the form that model hubs read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from rolegraph.engine.records import MAIN, Checkpoint, Control, RunInfo

_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{base}")  # or the folder where it is
model = PeftModel.from_pretrained(base, "FOLDER")  # this one
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
"""
_MERGED = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")  # this one
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
"""


def model_card(
    info: RunInfo,
    checkpoint: Checkpoint,
    spec: str,
    *,
    policy: str,
    base: str,
    digest: str,
    merged: bool,
    before: Mapping[str, float] | None,
    controls: tuple[Control, ...] = (),
) -> str:
    """Return the model card as Markdown.

    Args:
        info: Settings of the training.
        checkpoint: Checkpoint of the exported weights.
        spec: Text of the resolved spec.
        policy: Name of the exported policy.
        base: Name or path of the base model.
        digest: Digest of the base model's weights.
        merged: Whether the adapter is merged into the base model.
        before: Figures of the validation before training; None where there was none.
        controls: Reference figures.
    """
    shown = Path(base).name if Path(base).is_absolute() else base
    head = {
        "base_model": shown,
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["rolegraph", "reinforcement-learning", *([] if merged else ["lora"])],
    }
    kind = (
        f"The weights of `{shown}` with a LoRA adapter in them" if merged else f"A LoRA adapter of `{shown}`"
    )
    written: Any = yaml.safe_load(spec)
    data: object = cast("dict[str, Any]", written).get("data") if isinstance(written, dict) else None
    trained = [
        f"{name} ({role.estimator or 'no estimator'})"
        for name, role in info.roles.items()
        if role.trainable and policy in (role.policies or (MAIN,))
    ]
    facts = {
        "spec": f"{info.name}, hash `{info.hash}`",
        "policy": policy,
        "base": f"{shown}, whose weights have the digest `{digest}`",
        "data": f"`{yaml.safe_dump(data, default_flow_style=True, width=10_000).strip()}`" if data else "",
        "trained roles": ", ".join(trained),
        "steps": f"{checkpoint.step} of {info.steps}" if info.steps else str(checkpoint.step),
        "seed": str(info.seed),
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {info.name}, step {checkpoint.step}",
        f"{kind.format(shown)}, trained by Rolegraph {info.version} for the workflow below.",
        _table(("what", ""), [(name, fact) for name, fact in facts.items() if fact]),
    ]
    figures = {name.removeprefix("validation/"): value for name, value in checkpoint.validation.items()}
    if figures:
        was = {name: (before or {}).get(f"validation/{name}", math.nan) for name in figures}
        rows = [(name, f"{was[name]:.3f}", f"{value:.3f}") for name, value in figures.items()]
        parts += ["## Validation", _table(("figure", "before training", "these weights"), rows)]
    if controls:
        rows = [
            (row.name, row.figure, f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]", str(row.n))
            for row in controls
        ]
        parts += [
            "On the same validation tasks, at the end of the training, with 95 % intervals:",
            _table(("workflow", "figure", "mean", "tasks"), rows),
        ]
    fence = "`" * 4
    parts += ["## Use", f"{fence}python\n{(_MERGED if merged else _ADAPTER).format(base=shown)}{fence}"]
    parts.append(f"`rolegraph run {info.name} --model local:FOLDER` runs them in the workflow.")
    parts += ["## The spec", f"{fence}yaml\n{spec.strip()}\n{fence}"]
    for name, text in info.templates.items():
        parts += [f"### {name[0].upper()}{name[1:]}", f"{fence}jinja\n{text.rstrip()}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
