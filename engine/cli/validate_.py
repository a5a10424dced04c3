"""`rolegraph validate SPEC…`: every fault of every spec, and no model."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli import options


@click.command("validate")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC… [KEY.PATH=VALUE…]")
@click.option(
    "--backend",
    type=options.backends,
    help="Also say what this backend of rLLM cannot do, or would do in silence.",
)
@options.imports
@options.allow
def command(
    specs: tuple[str, ...], backend: str | None, imports: tuple[Path, ...], allow: tuple[str, ...]
) -> int:
    """Check specs and show every fault, each with its file, line and column.

    Overrides apply to each spec; with --backend, those that begin with `rllm.` or `++` are for rLLM.
    Exit code 0 when all are valid, 2 when one is not.
    """
    import rolegraph as rg

    names = [name for name in specs if "=" not in name]
    overrides = [name for name in specs if "=" in name]
    if not names:
        raise click.UsageError("no spec named")
    faulty = 0
    for name in names:
        try:
            compiled = rg.check(name, *overrides, imports=imports, allow=allow, backend=backend)
            read = {split: len(list(data.rows(None))) for split, data in compiled.files().items()}
        except rg.UserError as error:
            click.echo(rg.printable(f"error: {error}\n"), err=True)
            faulty += 1
            continue
        for diagnostic in compiled.diagnostics:
            click.echo(f"{diagnostic}\n", err=True)
        plan = compiled.plan
        if plan is None:
            faulty += 1
            count = sum(diagnostic.severity == "error" for diagnostic in compiled.diagnostics)
            click.echo(f"{name}: {count} {'fault' if count == 1 else 'faults'}")
        else:
            roles = ", ".join(f"{role.name} × {role.count}" for role in plan.roles)
            rows = [f"{count:,} {split} tasks read" for split, count in read.items()]
            said = [roles, str(compiled.size), *rows, f"hash {plan.hash}"]
            click.echo(f"{name}: valid ({'; '.join(said)})")
    return 2 if faulty else 0
