"""Model card of exported weights, in the form that model hubs read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rolegraph.engine.records import MAIN, Checkpoint, Control, RunInfo
from rolegraph.engine.shipped import templates_in
from rolegraph.engine.spec.yaml_source import parse_yaml
from rolegraph.engine.spec.yaml_text import dump_yaml

_DATA_CHARACTERS = 500
"""Largest length of `data` in the table of facts; longer data is in the spec below the table."""


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
    """Return the model card of exported weights as Markdown.

    Args:
        info: Settings of the training.
        checkpoint: Checkpoint of the exported weights.
        spec: Text of the resolved spec.
        policy: Name of the exported policy.
        base: Name or path of the base model.
        digest: Digest of the base model's weights.
        merged: True if the adapter is merged into the base model.
        before: Metrics of the validation before training; None without such a validation.
        controls: Reference values to compare the trained workflow with.
    """
    base_name = Path(base).name if Path(base).is_absolute() else base
    front_matter = {
        "base_model": base_name,
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["rolegraph", "reinforcement-learning", *([] if merged else ["lora"])],
    }
    data = parse_yaml(spec, "spec.yaml").data.get("data")
    is_short = bool(data) and len(str(data)) <= _DATA_CHARACTERS  # YAML of a megabyte would take seconds
    shown_data = dump_yaml(data, one_line=True, ascii_only=True) if is_short else ""
    trained_roles = [
        f"{name} ({role.estimator or role.loss})"
        for name, role in info.roles.items()
        if role.trainable and policy in (role.policies or (MAIN,))
    ]
    facts = {
        "spec": f"{_line(info.name)}, hash {_code(info.hash)}",
        "policy": _line(policy),
        "base": f"{_line(base_name)}, whose weights have the digest {_code(digest)}",
        "data": _code(shown_data) if is_short else "",
        "trained roles": _line(", ".join(trained_roles)),
        "steps": f"{checkpoint.step} of {info.steps}" if info.steps else str(checkpoint.step),
        "seed": str(info.seed),
    }
    metrics_before = {name.removeprefix("validation/"): value for name, value in (before or {}).items()}
    metrics_after = {name.removeprefix("validation/"): value for name, value in checkpoint.validation.items()}
    metric_rows = [
        (
            _line(name),
            f"{metrics_before[name]:.3f}" if name in metrics_before else "–",
            f"{value:.3f}",
            f"{metrics_after[f'n/{name}']:.0f}" if f"n/{name}" in metrics_after else "–",
        )
        for name, value in metrics_after.items()
        if "/" not in name or name.startswith(("reward/", "answers/"))
    ]
    control_rows = [
        (_line(row.name), _line(row.figure), f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]", str(row.n))
        for row in controls
    ]
    template = templates_in(Path(__file__).parent).get_template("card.md.j2")
    return template.render(
        code=_code,
        fenced=_fenced,
        line=_line,
        python=json.dumps,
        info=info,
        checkpoint=checkpoint,
        spec=spec,
        what=f"The weights of {_code(base_name)} with a LoRA adapter in them"
        if merged
        else f"A LoRA adapter of {_code(base_name)}",
        base=base_name,
        merged=merged,
        head=dump_yaml(front_matter, ascii_only=True),
        facts=[(name, fact) for name, fact in facts.items() if fact],
        figures=metric_rows,
        controls=control_rows,
    )


def _line(text: str) -> str:
    """Return a text on one line, with characters of Markdown and HTML escaped."""
    return re.sub(r"[\\`*\[\]<>]", r"\\\g<0>", " ".join(text.split()))


def _code(text: str) -> str:
    """Return a text as inline code of Markdown, whatever backticks it has."""
    fence = _fence(text, "`")
    return f"{fence} {' '.join(text.split())} {fence}" if "`" in text else f"`{' '.join(text.split())}`"


def _fenced(text: str, language: str) -> str:
    """Return a text as a fenced code block of Markdown, whatever backticks it has."""
    fence = _fence(text, "````")
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _fence(text: str, least: str) -> str:
    """Return a row of at least `least` backticks that is longer than any such row in the text."""
    return max([least, *(f"{backticks}`" for backticks in re.findall("`+", text))], key=len)
