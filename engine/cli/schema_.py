"""`rolegraph schema`: the JSON Schema of the language, for an editor."""

from __future__ import annotations

import json
from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options


@click.command("schema")
@options.imports_option
@options.path("--out", "out", "FILE", "File of the schema. Default: standard output.")
def command(imports: tuple[Path, ...], out: Path | None) -> int:
    """Write the JSON Schema of a spec, so that an editor completes and checks it while you type.

    \b
    rolegraph schema --out rolegraph.schema.json
    then, as a spec's first line:
    # yaml-language-server: $schema=rolegraph.schema.json
    """
    text = json.dumps(rg.json_schema(imports), indent=1, ensure_ascii=False)
    if out is None:
        click.echo(text)
        return 0
    try:
        out.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise rg.UsageError(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"wrote {out}; a spec's first line: # yaml-language-server: $schema={out}")
    return 0
