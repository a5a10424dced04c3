"""`rolegraph graph SPEC`: its roles as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph.engine.cli import completion, options

FORMS = ("mmd", "md", "dot", "svg", "png")


@click.command("graph")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"Where to; its ending says the form: .{', .'.join(FORMS)}. Default: Mermaid, to standard output.",
)
@click.option("--format", "form", type=click.Choice(FORMS), help="The form, where no ending says it.")
@options.imports
@options.allow
def command(
    spec: str,
    overrides: tuple[str, ...],
    out: Path | None,
    form: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
) -> int:
    """Draw the roles of SPEC: what each needs, by which join and of which round, loops, tools, conditions,
    and policies by colour.

    \b
    rolegraph graph debate                      Mermaid, for Markdown
    rolegraph graph debate --out debate.svg
    """
    import rolegraph as rg

    drawn = rg.graph(rg.load(spec, *overrides, imports=imports, allow=allow))
    if out is not None:
        click.echo(str(drawn.save(out, form)))
    elif form == "png":
        raise rg.UsageError("a PNG is no text; give --out FILE.png")
    else:
        click.echo(drawn.as_bytes(form or "mmd").decode().rstrip())
    return 0
