"""`rolegraph validate SPEC…`, every fault of specs, and `rolegraph test SPEC`, tests without a model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions, command, other_model_commands, plain
from rolegraph.cli.terminal import progress_line, run_until_done

MONTY = "Monty, a subset of Python (docs/programs.md); full CPython with --allow python=docker:IMAGE"
SHOWN_OF_DIFF = 4000
"""Largest number of characters shown of a prompt's diff."""


@click.command("validate")
@click.argument(
    "specs", nargs=-1, required=True, metavar="SPEC… [KEY.PATH=VALUE…]", shell_complete=options.complete_specs
)
@options.model_option("--model", f"The model in place of the spec's: {options.ANSWERING}.")
@contributed("validate")
@options.flag("--fix", "Correct misspelt names in the files where one name is certain, and check again.")
@options.imports_option
@options.allow_option
@options.output
def validate_command(
    specs: tuple[str, ...], fix: bool, output: OutputOptions, backend: str | None = None, **given: Any
) -> int:
    """Check specs, and tests of specs, and show every fault, each with its file, line and column.

    Overrides apply to each spec.
    Exit code 0 when all are valid, 2 when one is not.
    """
    names = [name for name in specs if "=" not in name]
    overrides = [name for name in specs if "=" in name]
    if not names:
        raise click.UsageError("no spec named")
    shared_source = api.Source.of(None, *overrides, **given)
    sources = [options.in_project(replace(shared_source, spec=name)) for name in names]
    fixed_patches = [_fix(source, output, backend) if fix else None for source in sources]
    rows = [_check(source, output, backend) for source in sources]
    rows = [row if it is None else {**row, "fixed": it} for row, it in zip(rows, fixed_patches, strict=True)]
    runnable_sources = [
        replace(api.spec_source(source, backend), allow=(*source.allow, *row["withheld"]))
        for source, row in zip(sources, rows, strict=True)
        if row.get("runs")
    ]
    first_sources = [api.without_project(source) for source in runnable_sources[:1]]
    commands = [command("run", *source.arguments()) for source in first_sources]
    if first_sources and rows[0].get("foreign_prompts"):
        commands = other_model_commands("run", first_sources[0])
    if len(names) == 1:
        output.next(*commands)
    output.document({"specs": rows, "next": commands})
    return 0 if all(row["valid"] for row in rows) else 2


def _fix(source: api.Source, output: OutputOptions, backend: str | None) -> list[dict[str, Any]]:
    """Apply the certain patches of one spec or tests file until no patch is left; print and return them."""
    applied_patches: list[api.Patch] = []
    with suppress(api.UserError):  # `_check` shows it
        for _ in range(api.FIX_ROUNDS):
            patches = [diagnostic.patch for diagnostic in _diagnose(source, backend)[0] if diagnostic.patch]
            new_patches = api.apply_patches(patches)
            applied_patches += new_patches
            for patch in new_patches:
                output.line(str(patch))
            if not new_patches:
                break
    if not applied_patches:
        output.line(f"{source.named_spec}: nothing to fix with certainty")
    return [asdict(patch) for patch in applied_patches]


def _diagnose(
    source: api.Source, backend: str | None
) -> tuple[list[api.Diagnostic], api.CompileResult | None]:
    """Check one spec or tests file, and return (diagnostics, result of compiling a spec).

    The result is None for a tests file, and for a spec that cannot be compiled.

    Raises:
        UserError: A file cannot be read.
    """
    name = source.named_spec
    try:
        if api.is_tests_file(name):
            api.check_tests(name)
            return [], None
        result = api.check_for(source, backend)
    except api.SpecError as error:
        return api.with_own_patches(name, error.diagnostics), None
    return api.with_own_patches(name, result.diagnostics), result


def _check(source: api.Source, output: OutputOptions, backend: str | None) -> dict[str, Any]:
    """Check one spec or tests file, print its faults or that it is valid, and return its entry for
    `--json`."""
    name = source.named_spec
    row: dict[str, Any] = {"spec": name, "valid": False, "diagnostics": []}
    try:
        diagnostics, result = _diagnose(source, backend)
        files = result.files().items() if result else ()
        tasks = {split: sum(1 for _ in data.rows(None)) for split, data in files}
    except api.UserError as error:
        click.echo(api.printable(f"error: {error}\n"), err=True)
        return {**row, "error": str(error)}
    for diagnostic in diagnostics:
        click.echo(f"{diagnostic}\n", err=True)
        row["diagnostics"].append(diagnostic.to_dict())
    faults = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    plan, size = (result.plan, result.size) if result else (None, None)
    if plan is None or size is None:
        fault_count = f"{faults} {'fault' if faults == 1 else 'faults'}"
        output.line(f"{name}: {fault_count if faults else 'valid (tests of a spec)'}")
        return {**row, "valid": not faults}
    roles = ", ".join(f"{role.name} × {role.count}" for role in plan.roles)
    tasks_read = [f"{count:,} {split} tasks read" for split, count in tasks.items()]
    condition = " and ".join(part.expression.source for part in plan.correct)
    correct = f"correct is {condition}" if plan.can_be_correct else "no episode can be correct"
    output.line(f"{name}: valid ({'; '.join([roles, str(size), correct, *tasks_read, f'hash {plan.hash}'])})")
    prompts = {role.name: role.prompt_files for role in plan.roles if role.prompt_files}
    if prompts:
        output.line("prompts: " + "; ".join(f"{name}: {', '.join(files)}" for name, files in prompts.items()))
    training_of_role = {
        name: f"{role.spec.learns_from}, policy {', '.join(sorted(plan.policies_of(name)))}"
        for name, role in plan.trained.items()
    }
    if training_of_role:
        output.line("trained: " + ", ".join(f"{name} ({text})" for name, text in training_of_role.items()))
    weights = {role.name: text for role in plan.asking if (text := plan.untrained_weights(role))}
    if weights:
        output.line("not trained: " + "; ".join(f"{name}: {text}" for name, text in weights.items()))
    rates = api.policy_rates(plan)
    if rates:
        output.line("learning rate: " + "; ".join(f"{name}: {rate}" for name, rate in rates.items()))
    if plan.interpreter:
        output.line(f"python: {MONTY if plan.interpreter == 'monty' else f'CPython, {plan.interpreter}'}")
        row["python"] = plan.interpreter
    return {
        **row,
        "valid": True,
        "roles": {role.name: role.count for role in plan.roles},
        "correct": condition if plan.can_be_correct else None,
        "calls": size.calls,
        "chain": size.chain,
        "tasks": tasks,
        "prompts": prompts,
        "trained": training_of_role,
        "weights": weights,
        "learning_rates": {name: rate.value for name, rate in rates.items()},
        "foreign_prompts": api.foreign_prompts(plan),
        "runs": bool(plan.data),
        "withheld": list(dict.fromkeys(permission.name for permission in plan.withheld)),
        "hash": plan.hash,
    }


@click.command("test")
@options.source(
    "With --record: the model that answers, as for run.",
    "With --record: the endpoint, as for run.",
    required=False,
)
@options.path("--tests", "tests", "FILE", "The tests. Default: NAME.test.yaml beside SPEC.")
@options.flag("--record", "Record the answers with the model first, and the tests if FILE is missing.")
@options.path("--junit", "junit", "FILE", "Also write the results as JUnit's XML.")
@options.force
def test_command(
    source: api.Source, tests: Path | None, record: bool, junit: Path | None, force: bool
) -> int:
    """Replay SPEC's recorded answers and compare the episodes with its tests, without a model.

    The tests are in NAME.test.yaml beside the spec: figures, failures, tokens, what single tasks must come
    to, and whether each prompt is still the recorded one. Without SPEC, each spec of this folder that has
    tests is tested. Exit code 0 when all hold, 1 when one does not, 2 for a mistake in the spec or the tests.
    """
    if not record and (source.model or source.base_url):
        raise click.UsageError("--model and --base-url go with --record: tests ask no model")
    if source.spec is not None:
        return _test(source, tests, record, junit, force)
    if tests or record or junit:
        raise click.UsageError("--tests, --record and --junit go with one spec; name it")
    codes: list[int] = []
    for spec in api.tested_specs():
        click.echo(f"{spec}:")
        codes.append(_test(options.in_project(replace(source, spec=str(spec))), None, False, None, False))
    return max(codes)


def _test(source: api.Source, tests: Path | None, record: bool, junit: Path | None, force: bool) -> int:
    """Test one spec, print a line for each expectation, and return 1 if an expectation fails, else 0."""
    if junit is not None and not force:
        api.check_replaceable(junit)
    flow = api.open_source(source)
    if record:
        with progress_line(OutputOptions(), "starting the model …") as observe:
            written_files = run_until_done(api.record_async(flow, tests, observe=observe, force=force))
        for path in written_files:
            click.echo(f"wrote {path}")
    report = api.test(flow, tests, junit=junit)
    for verdict in report.verdicts:
        _show_verdict(verdict)
    failures = len(report.failed)
    click.echo(f"{len(report.verdicts) - failures} hold, {failures} {'does' if failures == 1 else 'do'} not")
    return 1 if failures else 0


def _show_verdict(verdict: api.Verdict) -> None:
    word = click.style("ok  ", fg="green") if verdict.holds else click.style("FAIL", fg="red")
    click.echo(f"{word} {plain(verdict.name)}: {plain(verdict.summary)}")
    if not verdict.holds and verdict.detail:
        lines = plain(verdict.detail, SHOWN_OF_DIFF).splitlines()
        click.echo("\n".join(f"     {line}" for line in lines))
