"""`rolegraph eval SPEC --checkpoint PATH`: a checkpoint against the base, on the same tasks and seeds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.compile import Plan
    from engine.records import Episode, Task


@click.command("eval")
@click.argument("spec")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]")
@click.option(
    "--checkpoint",
    required=True,
    help="A training run's folder, for its best checkpoint, or a tinker:// path of sampling weights.",
)
@click.option(
    "--model", help="What the checkpoint is of: local[:FOLDER] or tinker:NAME. Default: the spec's."
)
@click.option("--base-url", help="The Tinker service that holds it.")
@click.option("--tasks", type=click.IntRange(min=1), default=128, show_default=True, help="How many.")
@click.option(
    "--rollouts", type=click.IntRange(min=1), default=4, show_default=True, help="Episodes of each."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws, the same for both.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    spec: str,
    overrides: tuple[str, ...],
    checkpoint: str,
    model: str | None,
    base_url: str | None,
    tasks: int,
    rollouts: int,
    seed: int,
    as_json: bool,
) -> int:
    """Compare a checkpoint with its base model on SPEC's validation tasks, with 95 % confidence intervals."""
    import json

    from engine.cli.overrides import compile_with
    from engine.errors import UsageError

    if "://" not in checkpoint:
        checkpoint = _path_in(checkpoint, base_url)
    base = compile_with(spec, overrides, model, base_url)
    if "validation" not in base.data:
        raise UsageError(f"{base.name} has no validation data to compare on")
    told = [*overrides, f"model.checkpoint={json.dumps(checkpoint)}"]
    trained = compile_with(spec, told, model, base_url)
    rows = list(base.data["validation"].rows(tasks))
    before, now = asyncio.run(_both(base, trained, rows, rollouts=rollouts, seed=seed, base_url=base_url))
    _show(base, before, now, as_json)
    return 0


def _path_in(folder: str, base_url: str | None) -> str:
    """A run's folder as it is for a local service, which reads the weights there; else its best path."""
    from engine.records import RunFolder

    run = RunFolder(Path(folder))
    elsewhere = base_url or run.training().base_url
    return run.best().sampler if elsewhere else folder


async def _both(
    base: Plan, trained: Plan, rows: list[Task], *, rollouts: int, seed: int, base_url: str | None
) -> tuple[list[Episode], list[Episode]]:
    from rich.console import Console

    from engine.models import Models, Services
    from engine.run import Isolation, jobs, stream

    sides: list[list[Episode]] = []
    console = Console(stderr=True)
    with Services(base_url) as services:
        async with Models(services.open) as models, Isolation(base.imports) as isolation:
            for name, plan in (("base", base), ("checkpoint", trained)):
                with console.status(f"{name}: {len(rows) * rollouts} episodes …"):
                    table = await models.table(plan.endpoints)
                    todo = jobs(rows, rollouts, seed)
                    episodes = stream(plan, todo, table, isolation=isolation, concurrency=256)
                    sides.append([episode async for episode in episodes])
    return sides[0], sides[1]


def _show(plan: Plan, before: list[Episode], now: list[Episode], as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from engine.training.compare import by_task, difference, interval

    was, are = by_task(plan, before), by_task(plan, now)
    rows = {
        figure: (interval(was[figure]), interval(are[figure]), difference(are[figure], was[figure]))
        for figure in was
        if figure in are
    }
    if as_json:
        names = ("base", "checkpoint", "difference")
        shown = {f: {n: asdict(i) for n, i in zip(names, row, strict=True)} for f, row in rows.items()}
        click.echo(json.dumps(shown, indent=1))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", style="bold", no_wrap=True)
    for heading in ("base", "checkpoint", "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure, (old, new, gap) in rows.items():
        sure = "bold green" if gap.low > 0 else "bold red" if gap.high < 0 else ""
        table.add_row(
            figure,
            Text(f"{old.mean:.3f} [{old.low:.2f}, {old.high:.2f}]"),
            Text(f"{new.mean:.3f} [{new.low:.2f}, {new.high:.2f}]"),
            Text(f"{gap.mean:+.3f} [{gap.low:+.2f}, {gap.high:+.2f}]"),
            style=sure,
        )
    out = Console(soft_wrap=True)
    out.print(table)
    tasks = len({episode.task_id for episode in now})
    out.print(
        f"{tasks} tasks, {len(now)} episodes each side; 95 % intervals, tasks resampled", highlight=False
    )
