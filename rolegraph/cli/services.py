"""`rolegraph serve`, a local model behind the Tinker API, and `rolegraph doctor`, a probe of a service."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.terminal import add_row, clock, make_table, progress_line, run_until_done

STYLES = {"ok": "", "differs": "yellow", "failed": "red", "not offered": "dim"}


@click.command("serve")
@options.model_option("--model", "A model's folder, or its name. Default: the shipped base model.")
@options.text("--name", "NAME", "The model's name for clients. Default: the folder's name.")
@options.text("--host", "ADDRESS", "Address to listen at.", default="127.0.0.1", show_default=True)
@options.text("--port", "N", "0 takes a free port.", default=8377, show_default=True)
@options.path("--state-dir", "state_dir", "FOLDER", "Folder of checkpoints. Default: a temporary folder.")
@options.count("--threads", None, "Threads for the model. Default: all cores.")
@options.flag("--any-key", "Take any key at /v1, such as EMPTY, from this machine alone.")
@options.flag("--stop", "Free the models that stay loaded between commands, and exit.")
def serve_command(model: str | None, stop: bool, **settings: Any) -> None:
    """Serve a local model folder over the Tinker API, to sample from and to train.

    Other machines reach it at any --host but a loopback address. Clients must send the service's key: the
    value of the environment variable ROLEGRAPH_SERVE_KEY, or a new key, which is printed.
    """
    if stop:
        ended, in_use = api.stop_services()
        freed = f"{ended} loaded model{'' if ended == 1 else 's'} freed"
        click.echo(freed + (f", {in_use} in use by a command" if in_use else ""))
        return
    Path.cwd()  # raises where the working folder was deleted; torch would abort the process there
    api.serve(api.model_folder(model), api_key=os.environ.get("ROLEGRAPH_SERVE_KEY"), **settings)


@click.command("doctor")
@options.text("--base-url", "URL", "URL of the service. Default: the local service, started for the probes.")
@options.model_option(
    "--model", "local[:FOLDER] or tinker:NAME. Default: the service's first model, or the shipped one."
)
@options.output
def doctor_command(base_url: str | None, model: str | None, output: OutputOptions) -> int:
    """Probe what a Tinker service does, and compare each behaviour with hosted Tinker.

    Takes about a minute: the service samples, trains small adapters and saves them under names that begin
    with rolegraph-doctor. The exit code is 1 where something differs or fails.
    """
    Path.cwd()  # as `serve` does
    with progress_line(output, "opening the service …") as observe:
        report = run_until_done(api.doctor_async(base_url=base_url, model=model, observe=observe))
    table = make_table("probe", "", "seen", "expected", right=False)
    for row in report.rows:
        add_row(table, row.name, row.status, row.seen, row.expected, style=STYLES[row.status])
    output.results().print(table)
    counts = [f"{n} {word}" for word in STYLES if (n := sum(row.status == word for row in report.rows))]
    output.line(
        api.printable(f"{report.model} at {report.url}: {', '.join(counts)}, in {clock(report.seconds)}")
    )
    if base_url and not report.recorded:
        output.line("the service has stopped sampling, so these rows are not recorded; mend it and run again")
    rows = [row._asdict() for row in report.rows]
    output.document({**asdict(report), "ok": report.ok, "rows": rows})
    return 0 if report.ok else 1
