"""`rolegraph run SPEC`: episodes of a spec, on disk as they finish, with a table at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.compile import Plan
    from engine.records import RunFolder, Task
    from engine.vocabulary import Dataset, Split


@click.command("run")
@click.argument("spec")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]")
@click.option("--limit", type=click.IntRange(min=1), default=64, show_default=True, help="How many tasks.")
@click.option(
    "--rollouts", type=click.IntRange(min=1), default=1, show_default=True, help="Episodes for each task."
)
@click.option(
    "--split",
    type=click.Choice(["validation", "train"]),
    help="Which tasks. Default: validation, if the spec has it.",
)
@click.option(
    "--model", help="Where answers come from: local[:FOLDER], tinker:NAME, openai:NAME, replay:FILE."
)
@click.option("--base-url", help="The endpoint, for tinker (the default with this flag) and openai.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="A folder for the episodes. Default: runs/NAME-TIME."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed and model give the same episodes."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=64, show_default=True, help="Episodes in flight."
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    limit: int,
    rollouts: int,
    split: Split | None,
    model: str | None,
    base_url: str | None,
    out: Path | None,
    seed: int,
    concurrency: int,
) -> int:
    """Run SPEC (a file, or the name of a shipped one) on its tasks and write the episodes.

    KEY.PATH=VALUE changes a value of the spec, as in roles.solver.count=4.
    """
    from engine.cli.overrides import compile_with
    from engine.cli.runs import describe, new_folder
    from engine.records import RunFolder

    plan = compile_with(spec, overrides, model, base_url)
    info = describe(plan, "run", seed=seed, spec=spec, overrides=overrides, model=model, base_url=base_url)
    tasks = list(_dataset(plan, split).rows(limit))
    folder = RunFolder(out or new_folder(plan.name))
    folder.check_new("run")
    folder.begin(info, plan.resolved)
    with folder.ending():
        return asyncio.run(
            _run(
                plan,
                tasks,
                folder,
                rollouts=rollouts,
                seed=seed,
                concurrency=concurrency,
                base_url=base_url,
            )
        )


def _dataset(plan: Plan, split: Split | None) -> Dataset:
    from engine.errors import UsageError

    wanted = split or ("validation" if "validation" in plan.data else "train")
    if wanted not in plan.data:
        raise UsageError(
            f"the spec {plan.name} has no {wanted} data; add `data: {{{wanted}: …}}`, such as a .jsonl file"
        )
    return plan.data[wanted]


async def _run(
    plan: Plan,
    tasks: Sequence[Task],
    folder: RunFolder,
    *,
    rollouts: int,
    seed: int,
    concurrency: int,
    base_url: str | None,
) -> int:
    from engine.cli.display import Display
    from engine.models import Models, Services
    from engine.records.episodes import EpisodeWriter
    from engine.run import Isolation, jobs, stream

    with EpisodeWriter(folder.episodes) as writer, Display(plan, len(tasks) * rollouts) as display:
        display.note("starting the model …")
        with Services(base_url) as services:
            async with Models(services.open) as models, Isolation(plan.imports) as isolation:
                table = await models.table(plan.endpoints)
                display.begin()
                episodes = stream(
                    plan,
                    jobs(tasks, rollouts, seed),
                    table,
                    isolation=isolation,
                    concurrency=concurrency,
                    observe=display.observe,
                )
                interrupted = False
                try:
                    async with contextlib.aclosing(episodes):
                        async for episode in episodes:
                            writer.append(episode)
                            display.count(episode)
                except asyncio.CancelledError:
                    interrupted = True
                finally:
                    display.end(folder.episodes)
    if interrupted:
        raise KeyboardInterrupt
    return display.exit_code()
