"""Commands for recorded episodes: `episodes` (a table row for each episode) and `show` (the texts of an
episode)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import OutputOptions, command, plain
from rolegraph.cli.rows import RowOutput, row_output
from rolegraph.cli.terminal import add_row, make_table

_RUN = click.argument(
    "run", type=click.Path(path_type=Path, file_okay=False), shell_complete=options.complete_runs
)
_WHERE = options.text(
    "--where", "EXPR", "Episodes for which this holds, such as 'not judge.right and any(solver.right)'."
)
_SPLIT = options.choice("--split", api.SPLITS, "Episodes of this part of a training.")
_STEP = options.count("--step", None, "Episodes of this step of a training.", least=0)


@click.command("episodes")
@_RUN
@_WHERE
@_SPLIT
@_STEP
@options.count("--limit", 50, "Rows of the table at most; --json and --csv give all.")
@row_output
def episodes_command(
    run: Path, where: str | None, split: str | None, step: int | None, limit: int, output: RowOutput
) -> None:
    """List the episodes of RUN, the folder of a run or a training, with their figures.

    An expression of the language selects them. It reads `task`, the roles as they were in their last turns,
    and `correct`, `rollout` and `step`.
    """
    rows = (episode.row for episode in api.Run(run).recorded(where or "", split=split, step=step))
    output.write(rows, lambda rows: _print_table(run, rows, limit))


def _print_table(run: Path, rows: Iterator[dict[str, Any]], limit: int) -> None:
    shown_rows = [*islice(rows, limit)]
    figures = [*dict.fromkeys(name for row in shown_rows for name in row if name not in _PLACE)]
    steps = ["split", "step"] if any(row["split"] for row in shown_rows) else []
    table = make_table("task", *steps, *figures)
    for row in shown_rows:
        place = f"{row['task']}:{row['rollout']}"
        add_row(
            table, place, *(str(row[name]) for name in steps), *(_cell(row.get(name)) for name in figures)
        )
    console = OutputOptions().results()
    if shown_rows:
        console.print(table)
    hidden_count = sum(1 for _ in rows)
    count = len(shown_rows) + hidden_count
    limit_note = f", {limit:,} shown; --limit {count} shows all" if hidden_count else ""
    click.echo(f"{count:,} episode{'' if count == 1 else 's'}{limit_note}")
    if shown_rows:
        place = f"{shown_rows[0]['task']}:{shown_rows[0]['rollout']}"
        click.echo(f"next: {command('show', str(run), place)}", err=True)


_PLACE = ("split", "step", "task", "rollout")


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


@click.command("show")
@_RUN
@click.argument("task", metavar="TASK[:ROLLOUT]")
@_SPLIT
@_STEP
def show_command(run: Path, task: str, split: str | None, step: int | None) -> None:
    """Print the texts of an episode of RUN: what each role was asked, answered and earned.

    Of a training, the newest step that has the TASK is shown.
    """
    name, _, rollout = task.partition(":")
    episode = None
    for it in api.Run(run).recorded(split=split, step=step, task=name):
        if rollout in ("", str(it.episode.rollout)) and (episode is None or it.step > episode.step):
            episode = it
    if episode is None:
        raise api.UsageError(f"{run} has no episode {task!r}; `rolegraph episodes {run}` lists them")
    for line in _transcript(episode):
        click.echo(line)


def _transcript(recorded: api.RecordedEpisode) -> Iterator[str]:
    episode = recorded.episode
    step_note = f", {recorded.split} step {recorded.step}" if recorded.split else ""
    yield _title(f"{episode.task_id}:{episode.rollout}{step_note}")
    figures = {name: value for name, value in recorded.row.items() if name not in _PLACE}
    yield "  ".join(f"{name} {_cell(value)}" for name, value in figures.items())
    for it in episode.trajectories:
        for number, call in enumerate(it.steps, 1):
            earned = "" if it.reward is None or number < len(it.steps) else f", reward {_cell(it.reward)}"
            call_note = f", call {number} of {len(it.steps)}" if len(it.steps) > 1 else ""
            yield ""
            yield _title(f"{it.name} {it.index}{call_note}{earned}")
            for message in call.chat_completions[:-1]:
                yield _indented(str(message["role"]), message.get("content"))
            texts = {"thought": call.thought, "answer": call.model_response, "action": call.action}
            if call.action == call.model_response:
                del texts["action"]
            yield from (_indented(name, value) for name, value in texts.items() if value not in ("", None))
        if it.failure is not None:
            yield ""
            yield _title(f"{it.name} {it.index}, failed")
            yield plain(it.failure_line)


def _title(text: str) -> str:
    return click.style(plain(text), bold=True)


def _indented(name: str, value: object) -> str:
    """Return a text with its name before the first line, and its further lines aligned with the first."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    first_line, *other_lines = map(api.printable, text.split("\n"))
    return "\n".join([f"{name:>9}  {first_line}", *(f"{'':>9}  {line}" for line in other_lines)])
