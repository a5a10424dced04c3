"""`rolegraph test SPEC`: a spec's own tests, on recorded answers."""

from __future__ import annotations

from pathlib import Path

import click

import rolegraph as rg
from rolegraph.engine.cli import options
from rolegraph.engine.cli.output import OutputOptions, plain
from rolegraph.engine.cli.waiting import progress_line, run_until_done

SHOWN_OF_DIFF = 4000
"""Characters of a prompt's diff that are shown."""


@click.command("test")
@options.source(
    "With --record: the model that answers, as for run.", "With --record: the endpoint, as for run."
)
@options.path("--tests", "tests", "FILE", "The tests. Default: NAME.test.yaml beside SPEC.")
@options.flag("--record", "Record the answers with the model first, and the tests if there are none.")
@options.path("--junit", "junit", "FILE", "Also write the results as JUnit's XML.")
def command(source: rg.Source, tests: Path | None, record: bool, junit: Path | None) -> int:
    """Replay SPEC's recorded answers and compare the episodes with its tests, without a model.

    The tests are in NAME.test.yaml beside the spec: figures, failures, tokens, what single tasks must come
    to, and whether each prompt is still the recorded one. Exit code 0 when all hold, 1 when one does not, 2
    for a mistake in the spec or the tests.
    """
    if not record and (source.model or source.base_url):
        raise click.UsageError("--model and --base-url go with --record: tests ask no model")
    flow = rg.open_source(source)
    if record:
        with progress_line(OutputOptions(), "starting the model …") as observe:
            written = run_until_done(rg.record_async(flow, tests, observe=observe))
        for path in written:
            click.echo(f"wrote {path}")
    report = rg.test(flow, tests, junit=junit)
    for verdict in report.verdicts:
        _show(verdict)
    failed = len(report.failed)
    click.echo(f"{len(report.verdicts) - failed} hold, {failed} {'does' if failed == 1 else 'do'} not")
    return 1 if failed else 0


def _show(verdict: rg.Verdict) -> None:
    word = click.style("ok  ", fg="green") if verdict.holds else click.style("FAIL", fg="red")
    click.echo(f"{word} {plain(verdict.name)}: {plain(verdict.found)}")
    if not verdict.holds and verdict.detail:
        lines = plain(verdict.detail, SHOWN_OF_DIFF).splitlines()
        click.echo("\n".join(f"     {line}" for line in lines))
