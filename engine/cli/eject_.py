"""`rolegraph eject SPEC`: the Python script that trains a spec with rLLM, without this command line."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph.engine.cli import completion, options


@click.command("eject")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@click.option("--backend", type=options.backends, default="tinker", show_default=True)
@options.model("What to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.imports
@options.allow
@options.seed("Of the order of the data.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="The script's file. Default: standard output.",
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    backend: str,
    model: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    seed: int,
    out: Path | None,
) -> int:
    """Write a script that trains SPEC as `rolegraph train SPEC --trainer rllm` does, to read and change."""
    from rolegraph import UsageError
    from rolegraph.engine.cli.rllm import show_warnings
    from rolegraph.rllm import prepare, script

    job = prepare(spec, overrides, backend, model=model, seed=seed, imports=imports, allow=allow)
    show_warnings(job)
    text = script(job)
    if out is None:
        click.echo(text, nl=False)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{out} is there already; move it away, or choose another --out") from None
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"wrote {out}; run it with: python {out}")
    return 0
