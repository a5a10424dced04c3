"""`rolegraph eval SPEC --checkpoint PATH`: a checkpoint against the base, on the same tasks and seeds."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, speaking

if TYPE_CHECKING:
    from rolegraph import Evaluation


@click.command("eval")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    shell_complete=completion.runs,
    help="A training run's folder, for its best checkpoint, or a tinker:// path of sampling weights.",
)
@options.model("What the checkpoint is of: local[:FOLDER] or tinker:NAME. Default: the spec's.")
@options.base_url("The Tinker service that holds it.")
@options.imports
@options.allow
@options.count("--tasks", 128, "How many.")
@options.count("--rollouts", 4, "Episodes of each.")
@options.seed("Of the draws, the same for both.")
@options.multirun
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the episodes of both go. Default: runs/NAME-eval-TIME; of a sweep, runs/NAME-sweep-TIME.",
)
@click.option(
    "--resume", is_flag=True, help="Go on with the evaluation in --out; with -m, with the newest sweep."
)
@speaking
def command(
    spec: str,
    overrides: tuple[str, ...],
    checkpoint: str,
    model: str | None,
    base_url: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    tasks: int,
    rollouts: int,
    seed: int,
    multirun: bool,
    out: Path | None,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Compare a checkpoint with its base model on SPEC's validation tasks, with 95 % confidence intervals.

    The episodes of both are kept as runs, side by side in one folder, for `compare` and `view`. With -m there
    is an evaluation for each combination of values, in folders of one sweep.
    """
    if multirun:
        from rolegraph.engine.cli.sweep import sweep

        if as_json or quiet:
            raise click.UsageError("--json and --quiet go with one evaluation; -m keeps those that it makes")
        return sweep(
            "eval",
            spec,
            overrides,
            out=out,
            resume=resume,
            model=model,
            base_url=base_url,
            imports=imports,
            allow=allow,
            limit=tasks,
            rollouts=rollouts,
            seed=seed,
            checkpoint=checkpoint,
        )
    if resume and out is None:
        raise click.UsageError("--resume needs --out, the folder of the evaluation to go on with")
    from dataclasses import asdict

    import rolegraph as rg
    from rolegraph.engine.cli.waiting import ProgressLine, run_until_done

    output = OutputOptions(quiet, as_json)

    flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    begun = rg.begin_evaluation(
        flow, checkpoint, tasks=tasks, rollouts=rollouts, seed=seed, out=out, resume=resume
    )
    try:
        with ProgressLine(output, "starting the model …") as waiting:
            found = run_until_done(begun.run(waiting.observe))
    except KeyboardInterrupt:
        again = [*sys.argv[1:], *(() if resume else ("--resume",)), *(() if out else ("--out", begun.folder))]
        output.next(f"rolegraph {shlex.join(map(str, again))}")
        raise
    following = [f"rolegraph compare {shlex.quote(str(begun.folder))}"]
    if "://" not in checkpoint:
        following.append(f"rolegraph export {shlex.quote(checkpoint)}")
    _show(found, output)
    output.next(*following)
    figures = {name: asdict(row) for name, row in found.figures.items()}
    output.document(
        {
            "folder": str(begun.folder),
            "figures": figures,
            "tasks": found.tasks,
            "episodes": found.episodes,
            "next": following,
        }
    )
    return 0


def _show(found: Evaluation, output: OutputOptions) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", style="bold", no_wrap=True)
    for heading in ("base", "checkpoint", "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in found.figures.items():
        gap = row.difference
        sure = "bold green" if gap.low > 0 else "bold red" if gap.high < 0 else ""
        table.add_row(
            name,
            *(
                Text(f"{side.mean:.3f} [{side.low:.2f}, {side.high:.2f}]")
                for side in (row.base, row.checkpoint)
            ),
            Text(f"{gap.mean:+.3f} [{gap.low:+.2f}, {gap.high:+.2f}]"),
            style=sure,
        )
    out = output.found()
    out.print(table)
    out.print(f"{found.tasks} tasks, {found.episodes} episodes each side; 95 % intervals, tasks resampled")
