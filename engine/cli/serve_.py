"""`rolegraph serve`: a local model folder behind the Tinker API."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("serve")
@click.option(
    "--model",
    "model_dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A Hugging Face causal model folder. Default: the shipped base model.",
)
@click.option("--name", metavar="NAME", help="The name that clients ask for. Default: the folder's name.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; at another address than loopback others can reach it.",
)
@click.option("--port", default=8377, show_default=True, metavar="N", help="0 takes a free port.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where checkpoints are kept. Default: a temporary folder.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Threads for the model. Default: all cores."
)
def command(
    model_dir: Path | None,
    name: str | None,
    host: str,
    port: int,
    state_dir: Path | None,
    threads: int | None,
) -> None:
    """Serve a local model folder over the Tinker API, to sample from and to train.

    Clients must send its key: the one in the environment variable ROLEGRAPH_SERVE_KEY, or else one that is
    made and printed.
    """
    import rolegraph as rg

    rg.serve(
        model_dir or rg.BASE_MODEL,
        host=host,
        port=port,
        name=name,
        api_key=os.environ.get("ROLEGRAPH_SERVE_KEY"),
        state_dir=state_dir,
        threads=threads,
    )
