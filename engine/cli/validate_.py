"""`rolegraph validate SPEC…`: every fault of every spec, and no model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, flags, speaking


@click.command("validate")
@click.argument(
    "specs", nargs=-1, required=True, metavar="SPEC… [KEY.PATH=VALUE…]", shell_complete=completion.specs
)
@click.option(
    "--backend",
    type=options.backends,
    help="Also say what this backend of rLLM cannot do, or would do in silence.",
)
@options.imports
@options.allow
@speaking
def command(
    specs: tuple[str, ...],
    backend: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Check specs, and tests of specs, and show every fault, each with its file, line and column.

    Overrides apply to each spec; with --backend, those that begin with `rllm.` or `++` are for rLLM.
    Exit code 0 when all are valid, 2 when one is not.
    """
    import rolegraph as rg

    names = [name for name in specs if "=" not in name]
    overrides = [name for name in specs if "=" in name]
    if not names:
        raise click.UsageError("no spec named")
    output = OutputOptions(quiet, as_json)
    rows = [_checked(name, output, overrides, imports, allow, backend) for name in names]
    valid = [str(row["spec"]) for row in rows if row["valid"]]
    runnable = [name for name in valid if not rg.is_tests_file(name)]
    words = [*overrides, *flags(imports, allow)]
    following = [f"rolegraph run {shlex.join([name, *words])}" for name in runnable[:1]]
    if len(names) == 1:
        output.next(*following)
    output.document({"specs": rows, "next": following})
    return 0 if len(valid) == len(names) else 2


def _checked(
    name: str,
    output: OutputOptions,
    overrides: Sequence[str],
    imports: Sequence[Path],
    allow: Sequence[str],
    backend: str | None,
) -> dict[str, Any]:
    """Says what is to be said of a spec; the same for a program."""
    import rolegraph as rg

    try:
        if rg.is_tests_file(name):
            rg.check_tests(name)
            output.line(f"{name}: valid (tests of a spec)")
            return {"spec": name, "valid": True, "diagnostics": []}
        compiled = rg.check(name, *overrides, imports=imports, allow=allow, backend=backend)
        read = {split: sum(1 for _ in data.rows(None)) for split, data in compiled.files().items()}
    except rg.UserError as error:
        click.echo(rg.printable(f"error: {error}\n"), err=True)
        return {"spec": name, "valid": False, "error": str(error), "diagnostics": []}
    for diagnostic in compiled.diagnostics:
        click.echo(f"{diagnostic}\n", err=True)
    row: dict[str, Any] = {
        "spec": name,
        "valid": compiled.plan is not None,
        "diagnostics": [asdict(diagnostic) for diagnostic in compiled.diagnostics],
    }
    if (plan := compiled.plan) is None:
        count = sum(diagnostic.severity == "error" for diagnostic in compiled.diagnostics)
        output.line(f"{name}: {count} {'fault' if count == 1 else 'faults'}")
        return row
    roles = ", ".join(f"{role.name} × {role.count}" for role in plan.roles)
    tasks = [f"{count:,} {split} tasks read" for split, count in read.items()]
    said = [roles, str(compiled.size), *tasks, f"hash {plan.hash}"]
    output.line(f"{name}: valid ({'; '.join(said)})")
    size = compiled.size
    return {
        **row,
        "roles": {role.name: role.count for role in plan.roles},
        "calls": size and size.calls,
        "chain": size and size.chain,
        "tasks": read,
        "hash": plan.hash,
    }
