"""`rolegraph graph SPEC`: the roles of a spec as a picture."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options

FORMS = ("mmd", "md", "dot", "svg", "png")


@click.command("graph")
@options.source()
@options.path(
    "--out",
    "out",
    "FILE",
    f"File of the picture, in the form of its ending: .{', .'.join(FORMS)}. Default: Mermaid, to standard "
    "output.",
)
@click.option("--format", "form", type=click.Choice(FORMS), help="The form, where the ending is another.")
def command(source: rg.Source, out: Path | None, form: str | None) -> int:
    """Draw the roles of SPEC: what each needs, by which join and of which round, loops, tools, conditions,
    and policies by colour.

    \b
    rolegraph graph debate                      Mermaid, for Markdown
    rolegraph graph debate --out debate.svg
    """
    drawn = rg.graph(rg.open_source(source))
    if out is not None:
        click.echo(str(drawn.save(out, form)))
    elif form == "png":
        raise rg.UsageError("a PNG cannot be printed; give --out FILE.png")
    else:
        click.echo(drawn.as_bytes(form or "mmd").decode().rstrip())
    return 0
