"""Options of rLLM for `train --trainer rllm`, `eject` and `validate --backend`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import Door

_OVERRIDES = "Overrides that begin with `rllm.` or `++` change rLLM's config."


def _backend(meaning: str) -> options.Decorator[Callable[..., Any]]:
    return options.text("--backend", "[tinker|verl|fireworks|MODULE:CLASS]", meaning)


def _with_script(
    command: Callable[..., Any],
    *,
    backend: str | None,
    seed: int,
    out: Path | None,
    force: bool,
    **words: Any,
) -> Any:
    if out is not None and not force:
        api.check_replaceable(out)
    write_script = partial(_write_script, backend=backend, seed=seed, out=out)
    if out is not None:
        return command(chosen={"out": write_script, **words.pop("chosen", {})}, **words)
    return command(default=write_script, **words)


def _write_script(source: api.Source, *, backend: str | None, seed: int, out: Path | None) -> None:
    """Write the script of a training to `out`, or print it if `out` is None."""
    from rolegraph.integrations.rllm.launch import prepare, script

    job = prepare(source, backend, seed=seed)
    for warning in job.warnings:
        click.echo(f"{warning}\n", err=True)
    if out is None:
        click.echo(script(job), nl=False)
        return
    api.write_output(out, script(job).encode(), "py")
    click.echo(f"wrote {out}; run it with: python {out}")


def _of_training(command: Callable[..., Any]) -> Callable[..., Any]:
    command = options.flag("--print-config", "Print rLLM's config and stop.")(command)
    meaning = "GPUs of 80 GB on one machine, for verl: sets parallelism, memory, offload, context."
    command = options.count("--gpus", None, meaning)(command)
    return _backend(f"rLLM's backend, or a class of your own. {_OVERRIDES}")(command)


DOOR = Door(
    options={
        "train": _of_training,
        "validate": _backend(f"Also show which keys this backend of rLLM cannot obey. {_OVERRIDES}"),
        "eject": options.bundle(
            _with_script,
            _backend("rLLM's backend, or a class of your own. Default: tinker."),
            options.seed("Seed of the order of the data."),
            options.path("--out", "out", "FILE.py", "Script for rLLM. Default: standard output."),
            options.force,
        ),
    }
)
