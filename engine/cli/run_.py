"""`rolegraph run SPEC`: episodes of a spec, on disk as they finish, with a table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli import options

if TYPE_CHECKING:
    from rolegraph import Split


@click.command("run")
@click.argument("spec")
@options.overrides
@options.count("--limit", 64, "How many tasks.")
@options.count("--rollouts", 1, "Episodes for each task.")
@click.option(
    "--split",
    type=click.Choice(["validation", "train"]),
    help="Which tasks. Default: validation, if the spec has it.",
)
@options.model("Where answers come from: local[:FOLDER], tinker:NAME, openai:NAME, replay:FILE.")
@options.base_url("The endpoint, for tinker (the default with this flag) and openai.")
@click.option(
    "--replay-any",
    is_flag=True,
    help="Replay answers to prompts that have changed since they were recorded, too.",
)
@options.imports
@options.allow
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the episodes go. Default: runs/NAME-TIME.",
)
@options.seed("The same seed and model give the same episodes.")
@options.count("--concurrency", 64, "Episodes in flight.")
@click.option(
    "--fail-under",
    "floors",
    multiple=True,
    metavar="FIGURE=VALUE",
    type=options.Floor(),
    help="Exit with 1 where a figure is lower, such as answered=0.99 or judge_acc=0.5; may be given again.",
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    limit: int,
    rollouts: int,
    split: Split | None,
    model: str | None,
    base_url: str | None,
    replay_any: bool,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    out: Path | None,
    seed: int,
    concurrency: int,
    floors: tuple[tuple[str, float], ...],
) -> int:
    """Run SPEC (a file, or the name of a shipped one) on its tasks and write the episodes.

    KEY.PATH=VALUE changes a value of the spec, as in roles.solver.count=4.
    """
    import rolegraph as rg
    from engine.cli.display import Display

    if replay_any:
        overrides = (*overrides, "model.replay_any=true")
    flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    tasks = flow.tasks(split, limit)
    folder = out or rg.new_folder(flow.name)
    with Display(flow, folder, total=len(tasks) * rollouts, floors=dict(floors)) as display:
        rg.run(
            flow,
            tasks=tasks,
            rollouts=rollouts,
            seed=seed,
            out=folder,
            concurrency=concurrency,
            observe=display.observe,
        )
    return display.exit_code()
