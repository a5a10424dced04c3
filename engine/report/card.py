"""Model card of exported weights, in the form that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rolegraph.engine.records import MAIN, Checkpoint, Control, RunInfo

_HERE = Path(__file__).parent


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
    was = {name.removeprefix("validation/"): value for name, value in (before or {}).items()}
    figures = {name.removeprefix("validation/"): value for name, value in checkpoint.validation.items()}
    markdown = Environment(
        loader=FileSystemLoader(_HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    return markdown.get_template("card.md.j2").render(
        info=info,
        checkpoint=checkpoint,
        spec=spec,
        base=shown,
        merged=merged,
        head=yaml.safe_dump(head, sort_keys=False),
        facts=[(name, fact) for name, fact in facts.items() if fact],
        figures=[
            (name, f"{was[name]:.3f}" if name in was else "–", f"{v:.3f}")
            for name, v in figures.items()
            if "/" not in name or name.startswith("reward/")
        ],
        controls=[
            (row.name, row.figure, f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]", str(row.n))
            for row in controls
        ],
    )
