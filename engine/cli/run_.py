"""`rolegraph run SPEC`: episodes of a spec, on disk as they finish, with a table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, speaking

if TYPE_CHECKING:
    from rolegraph import Split


@click.command("run")
@click.argument("spec", required=False, shell_complete=completion.specs)
@options.overrides
@options.optional_count("--limit", "How many tasks. Default: 64.")
@options.optional_count("--rollouts", "Episodes for each task. Default: 1.")
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
@click.option(
    "--seed", type=int, metavar="N", help="The same seed and model give the same episodes. Default: 0."
)
@click.option(
    "--resume", is_flag=True, help="Go on with the episodes that are missing of the newest run, or of --out."
)
@click.option("--retry-failed", is_flag=True, help="With --resume: make those with a failure again, too.")
@options.multirun
@options.count("--concurrency", 64, "Episodes in flight.")
@click.option(
    "--fail-under",
    "floors",
    multiple=True,
    metavar="FIGURE=VALUE",
    type=options.FigureFloor(),
    help="Exit with 1 where a figure is lower, such as answered=0.99 or judge_acc=0.5; may be given again.",
)
@speaking
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    limit: int | None,
    rollouts: int | None,
    split: Split | None,
    model: str | None,
    base_url: str | None,
    replay_any: bool,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    resume: bool,
    retry_failed: bool,
    multirun: bool,
    concurrency: int,
    floors: tuple[tuple[str, float], ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Run SPEC (a file, or the name of a shipped one) on its tasks and write the episodes.

    KEY.PATH=VALUE changes a value of the spec, as in roles.solver.count=4. With --resume, what is not given
    is as the run was begun. With -m there is a run for each combination of values, in folders of one sweep.
    """
    import rolegraph as rg
    from rolegraph.engine.cli.display import Display
    from rolegraph.engine.cli.waiting import run_until_done

    if replay_any:
        overrides = (*overrides, "model.replay_any=true")
    if multirun:
        from rolegraph.engine.cli.sweep import sweep

        if retry_failed:
            raise click.UsageError("--retry-failed goes with one run; -m makes several")
        if as_json or quiet:
            raise click.UsageError("--json and --quiet go with one run; -m makes several")
        return sweep(
            "run",
            spec,
            overrides,
            out=out,
            resume=resume,
            floors=dict(floors),
            concurrency=concurrency,
            model=model,
            base_url=base_url,
            imports=imports,
            allow=allow,
            split=split,
            limit=limit or 64,
            rollouts=rollouts or 1,
            seed=seed or 0,
        )
    if resume:
        job = rg.resume_run(
            out,
            spec,
            *overrides,
            model=model,
            base_url=base_url,
            imports=imports,
            allow=allow,
            split=split,
            limit=limit,
            rollouts=rollouts,
            seed=seed,
            retry_failed=retry_failed,
        )
    elif retry_failed:
        raise click.UsageError("--retry-failed goes with --resume")
    elif spec is None:
        raise rg.UsageError("which spec? Give a file, or the name of a shipped one, such as solver_judge")
    else:
        flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
        job = rg.begin_run(flow, split, limit=limit or 64, rollouts=rollouts or 1, seed=seed or 0, out=out)
    with Display(job, floors=dict(floors), output=OutputOptions(quiet, as_json)) as display:
        run_until_done(job.run(display.observe, concurrency=concurrency))
    return display.exit_code()
