"""`rolegraph report RUN`: a training's folder as one page, and curves of several as one picture."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options


@click.command("report")
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN [RUN…]", type=click.Path(path_type=Path, file_okay=False)
)
@options.path("--picture", "picture", "FILE", "Also draw the learning curves of all runs: .svg or .png.")
@options.repeated("--figure", "figures", "NAME", "A figure of the picture. Default: the spec's metrics.")
def command(runs: tuple[Path, ...], picture: Path | None, figures: tuple[str, ...]) -> None:
    """Write report.html into each RUN, the folder of a training, and print its path.

    The page needs no network: it opens from disk, and can be sent as one file.
    """
    if figures and picture is None:
        raise rg.UsageError("--figure needs --picture FILE")
    for page in rg.report(*runs, picture=picture, figures=figures):
        click.echo(str(page))
    if picture is not None:
        click.echo(str(picture))
