"""`rolegraph test SPEC`: a spec's own tests, on recorded answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.plain import plain

if TYPE_CHECKING:
    from rolegraph import Workflow

MOST_OF_A_DETAIL = 4000
"""Characters of a diff that are shown."""


@click.command("test")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@click.option(
    "--tests",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The tests. Default: NAME.test.yaml beside SPEC.",
)
@click.option(
    "--record", is_flag=True, help="Record the answers with the model first, and the tests if there are none."
)
@options.model("With --record: where answers come from, as for run.")
@options.base_url("With --record: the endpoint, as for run.")
@options.imports
@options.allow
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the results as JUnit's XML.",
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    tests: Path | None,
    record: bool,
    model: str | None,
    base_url: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    junit: Path | None,
) -> int:
    """Play SPEC's recorded answers again and hold them against its tests, with no model.

    The tests are in NAME.test.yaml beside the spec: figures, failures, tokens, what single tasks must come
    to, and whether each prompt is still the recorded one. Exit code 0 when all hold, 1 when one does not, 2
    for a mistake in the spec or the tests.
    """
    import rolegraph as rg

    if not record and (model or base_url):
        raise click.UsageError("--model and --base-url go with --record: tests ask no model")
    flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    if record:
        for path in _record(flow, tests):
            click.echo(f"wrote {path}")
    tested = rg.test(flow, tests, junit=junit)
    for verdict in tested.verdicts:
        word = click.style("ok  ", fg="green") if verdict.holds else click.style("FAIL", fg="red")
        click.echo(f"{word} {plain(verdict.name)}: {plain(verdict.found)}")
        if not verdict.holds and verdict.detail:
            lines = plain(verdict.detail, MOST_OF_A_DETAIL).splitlines()
            click.echo("\n".join(f"     {line}" for line in lines))
    failed = len(tested.failed)
    click.echo(f"{len(tested.verdicts) - failed} hold, {failed} {'does' if failed == 1 else 'do'} not")
    return 1 if failed else 0


def _record(flow: Workflow, tests: Path | None) -> list[Path]:
    from rich.console import Console

    import rolegraph as rg

    done = 0
    with Console(stderr=True).status("starting the model …") as status:

        def observe(event: rg.Event) -> None:
            nonlocal done
            done += isinstance(event, rg.EpisodeDone)
            status.update(event.text if isinstance(event, rg.Note) and event.text else f"{done} episodes")

        return rg.record(flow, tests, observe=observe)
