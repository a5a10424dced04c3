"""`rolegraph validate SPEC…`: every fault of every spec, without a model."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions

_MONTY = "Monty, a subset of Python (docs/programs.md); full CPython with --allow python=docker:IMAGE"


@click.command("validate")
@click.argument(
    "specs", nargs=-1, required=True, metavar="SPEC… [KEY.PATH=VALUE…]", shell_complete=completion.specs
)
@options.backend("Also show which keys this backend of rLLM cannot obey, or would ignore.")
@options.imports_option
@options.allow_option
@options.output
def command(
    specs: tuple[str, ...],
    backend: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    output: OutputOptions,
) -> int:
    """Check specs, and tests of specs, and show every fault, each with its file, line and column.

    Overrides apply to each spec; with --backend, those that begin with `rllm.` or `++` are for rLLM.
    Exit code 0 when all are valid, 2 when one is not.
    """
    names = [name for name in specs if "=" not in name]
    overrides = [name for name in specs if "=" in name]
    if not names:
        raise click.UsageError("no spec named")
    options_of_all = rg.Source.of(None, *overrides, imports=imports, allow=allow)
    sources = [options.in_project(replace(options_of_all, spec=name)) for name in names]
    rows = [_check(source, output, backend) for source in sources]
    valid = [row for row in rows if row["valid"]]
    runnable = [
        replace(source, allow=(*source.allow, *row["withheld"]))
        for source, row in zip(sources, rows, strict=True)
        if row.get("runs")
    ]
    commands = [f"rolegraph run {shlex.join(source.arguments())}" for source in runnable[:1]]
    if len(names) == 1:
        output.next(*commands)
    output.document({"specs": rows, "next": commands})
    return 0 if len(valid) == len(names) else 2


def _check(source: rg.Source, output: OutputOptions, backend: str | None) -> dict[str, Any]:
    """Check one spec or tests file, print the result, and return its row of the document."""
    name = source.named_spec
    try:
        if rg.is_tests_file(name):
            rg.check_tests(name)
            output.line(f"{name}: valid (tests of a spec)")
            return {"spec": name, "valid": True, "diagnostics": []}
        result = rg.check_for(source, backend)
        tasks = {split: sum(1 for _ in data.rows(None)) for split, data in result.files().items()}
    except rg.UserError as error:
        click.echo(rg.printable(f"error: {error}\n"), err=True)
        return {"spec": name, "valid": False, "error": str(error), "diagnostics": []}
    for diagnostic in result.diagnostics:
        click.echo(f"{diagnostic}\n", err=True)
    row: dict[str, Any] = {
        "spec": name,
        "valid": result.plan is not None,
        "diagnostics": [asdict(diagnostic) for diagnostic in result.diagnostics],
    }
    plan, size = result.plan, result.size
    if plan is None or size is None:
        count = sum(diagnostic.severity == "error" for diagnostic in result.diagnostics)
        output.line(f"{name}: {count} {'fault' if count == 1 else 'faults'}")
        return row
    roles = ", ".join(f"{role.name} × {role.count}" for role in plan.roles)
    read = [f"{count:,} {split} tasks read" for split, count in tasks.items()]
    correct = f"correct is {plan.deciding}'s" if plan.can_be_correct else "no episode can be correct"
    output.line(f"{name}: valid ({'; '.join([roles, str(size), correct, *read, f'hash {plan.hash}'])})")
    prompts = {role.name: role.prompt_files for role in plan.roles if role.prompt_files}
    if prompts:
        output.line("prompts: " + "; ".join(f"{name}: {', '.join(files)}" for name, files in prompts.items()))
    weights = {role.name: text for role in plan.asking if (text := plan.untrained_weights(role))}
    if weights:
        output.line("not trained: " + "; ".join(f"{name}: {text}" for name, text in weights.items()))
    if plan.interpreter:
        output.line(f"python: {_MONTY if plan.interpreter == 'monty' else f'CPython, {plan.interpreter}'}")
    return {
        **row,
        "roles": {role.name: role.count for role in plan.roles},
        "correct": plan.deciding if plan.can_be_correct else None,
        "calls": size.calls,
        "chain": size.chain,
        "tasks": tasks,
        "prompts": prompts,
        "weights": weights,
        "runs": bool(plan.data),
        "withheld": list(dict.fromkeys(permission.name for permission in plan.withheld)),
        "hash": plan.hash,
        **({"python": plan.interpreter} if plan.interpreter else {}),
    }
