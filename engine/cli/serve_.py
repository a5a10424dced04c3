"""`rolegraph serve`: a local model folder behind the Tinker API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import options


@click.command("serve")
@options.path(
    "--model", "model_dir", "FOLDER", "A Hugging Face causal model folder. Default: the shipped base model."
)
@options.text("--name", "NAME", "The model's name for clients. Default: the folder's name.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at; other machines reach any but a loopback address.",
)
@click.option("--port", default=8377, show_default=True, metavar="N", help="0 takes a free port.")
@options.path("--state-dir", "state_dir", "FOLDER", "Folder of checkpoints. Default: a temporary folder.")
@options.count("--threads", None, "Threads for the model. Default: all cores.")
@options.flag("--stop", "Free the models that stay loaded between commands, and exit.")
def command(model_dir: Path | None, stop: bool, **settings: Any) -> None:
    """Serve a local model folder over the Tinker API, to sample from and to train.

    Clients must send the service's key: the value of the environment variable ROLEGRAPH_SERVE_KEY, or a new
    key, which is printed.
    """
    if stop:
        ended, in_use = rg.stop_services()
        freed = f"{ended} loaded model{'' if ended == 1 else 's'} freed"
        click.echo(freed + (f", {in_use} in use by a command" if in_use else ""))
        return
    rg.serve(model_dir or rg.BASE_MODEL, api_key=os.environ.get("ROLEGRAPH_SERVE_KEY"), **settings)
