"""`rolegraph doctor`: a table of what a Tinker service does."""

from __future__ import annotations

from dataclasses import asdict

import click

import rolegraph as rg
from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, add_row, make_table
from rolegraph.engine.cli.waiting import clock, progress_line, run_until_done

STYLES = {"ok": "", "differs": "yellow", "failed": "red", "not offered": "dim"}


@click.command("doctor")
@options.text("--base-url", "URL", "URL of the service. Default: the local service, started for the probes.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=completion.models,
    help="local[:FOLDER] or tinker:NAME. Default: the service's first model, or the shipped one.",
)
@options.output
def command(base_url: str | None, model: str | None, output: OutputOptions) -> int:
    """Probe what a Tinker service does, and compare each behaviour with hosted Tinker.

    Takes about a minute: the service samples, trains small adapters and saves them under names that begin
    with rolegraph-doctor. The exit code is 1 where something differs or fails.
    """
    with progress_line(output, "opening the service …") as observe:
        found = run_until_done(rg.doctor_async(base_url=base_url, model=model, observe=observe))
    table = make_table("probe", "", "seen", "expected", right=False)
    for row in found.rows:
        add_row(table, row.name, row.status, row.seen, row.expected, style=STYLES[row.status])
    output.results().print(table)
    counts = [f"{n} {word}" for word in STYLES if (n := sum(row.status == word for row in found.rows))]
    output.line(rg.printable(f"{found.model} at {found.url}: {', '.join(counts)}, in {clock(found.seconds)}"))
    output.document(
        {
            "url": found.url,
            "model": found.model,
            "ok": found.ok,
            "seconds": found.seconds,
            "rows": [row._asdict() for row in found.rows],
            "traits": asdict(found.traits),
        }
    )
    return 0 if found.ok else 1
