"""`rolegraph report RUN`: a training run's folder as one page, and curves of several as one picture."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN [RUN…]", type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="Also draw the learning curves of all the runs in one picture.",
)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="What the picture shows; may be given again. Default: the spec's metrics.",
)
def command(runs: tuple[Path, ...], picture: Path | None, figures: tuple[str, ...]) -> None:
    """Write report.html into each RUN, the folder of a training run, and print its path.

    The page needs no network: it opens from disk, and can be sent as one file.
    """
    import rolegraph as rg

    if figures and picture is None:
        raise rg.UsageError("--figure says what --picture shows; give --picture FILE.svg too")
    for page in rg.report(*runs, picture=picture, figures=figures):
        click.echo(str(page))
    if picture is not None:
        click.echo(str(picture))
