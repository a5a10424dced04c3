"""`rolegraph doctor`: a probe of a Tinker service."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.terminal import add_row, clock, make_table, progress_line, run_until_done

STYLES = {"ok": "", "differs": "yellow", "failed": "red", "not offered": "dim"}


@click.command("doctor")
@contributed("doctor")
@options.text("--base-url", "URL", "URL of the service. Default: the local service, started for the probes.")
@options.model_option(
    "--model", f"{options.TRAINABLE}, or openai:NAME. Default: the service's first model, or the shipped one."
)
@options.output
def doctor_command(base_url: str | None, model: str | None, output: OutputOptions) -> int:
    """Probe what a Tinker service does, and compare each behaviour with hosted Tinker.

    Takes about a minute: the service samples, trains small adapters and saves them under names that begin
    with rolegraph-doctor. The exit code is 1 where something differs or fails.

    With --model openai:NAME: which fields an endpoint takes, what its answers hold, and what a run leaves
    out. Nothing is written, and the exit code is 1 where there is no answer.
    """
    from rolegraph.doctor.probing import doctor_async

    Path.cwd()  # raises where the working folder was deleted; torch would abort the process there
    with progress_line(output, "opening the service …") as observe:
        report = run_until_done(doctor_async(base_url=base_url, model=model, observe=observe))
    table = make_table("probe", "", "seen", "expected", right=False)
    for row in report.rows:
        add_row(table, row.name, row.status, row.seen, row.expected, style=STYLES[row.status])
    output.results().print(table)
    counts = [f"{n} {status}" for status in STYLES if (n := sum(row.status == status for row in report.rows))]
    output.line(
        api.printable(f"{report.model} at {report.url}: {', '.join(counts)}, in {clock(report.seconds)}")
    )
    if report.traits and base_url and not report.recorded:
        output.line("the service has stopped sampling, so these rows are not recorded; mend it and run again")
    rows = [row._asdict() for row in report.rows]
    output.document({**asdict(report), "ok": report.ok, "rows": rows})
    return 0 if report.ok else 1
