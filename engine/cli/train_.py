"""`rolegraph train SPEC`: trains the roles of a spec, or goes on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, speaking

if TYPE_CHECKING:
    from rolegraph import TrackerName


@click.command("train")
@click.argument("spec", required=False, shell_complete=completion.specs)
@options.overrides
@options.model("What to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.base_url("A Tinker service to train on, in place of one started for the run.")
@options.imports
@options.allow
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The run's folder. Default: runs/NAME-TIME.",
)
@options.seed("Of data order, draws and the adapter.")
@click.option("--resume", is_flag=True, help="Go on at the last checkpoint of the newest run, or of --out.")
@options.multirun
@click.option(
    "--track",
    type=click.Choice(["tensorboard", "wandb"]),
    multiple=True,
    help="Send metrics to a tracker as well.",
)
@click.option(
    "--trainer",
    type=click.Choice(["rolegraph", "rllm"]),
    default="rolegraph",
    show_default=True,
    help="Whose loop: this project's, or rLLM's AgentTrainer.",
)
@click.option("--backend", type=options.backends, help="What rLLM trains on, or a backend of your own.")
@click.option("--print-config", is_flag=True, help="Show what rLLM would be launched with, and stop.")
@speaking
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    out: Path | None,
    seed: int,
    resume: bool,
    multirun: bool,
    track: tuple[TrackerName, ...],
    trainer: str,
    backend: str | None,
    print_config: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train every trainable role of SPEC (a file, or the name of a shipped one), as its `train` says.

    KEY.PATH=VALUE changes a value of the spec, as in train.steps=50 or train.learning_rate=0.001. With
    --resume the spec and its overrides are those that the run was begun with. With -m there is a training for
    each combination of values, in folders of one sweep. With --trainer rllm, words that
    begin with `rllm.` or `++` change rLLM's config.
    """
    if trainer == "rllm":
        if multirun:
            raise click.UsageError("-m goes with this project's own loop, not with --trainer rllm")
        if quiet or as_json:
            raise click.UsageError("--quiet and --json go with --trainer rolegraph: rLLM speaks for itself")
        from rolegraph.engine.cli.rllm import train_with_rllm

        return train_with_rllm(
            spec,
            overrides,
            backend or "tinker",
            print_config=print_config,
            model=model,
            base_url=base_url,
            imports=imports,
            allow=allow,
            seed=seed,
            folder=out,
            resume=resume,
            trackers=track,
        )
    if backend is not None or print_config:
        raise click.UsageError("--backend and --print-config go with --trainer rllm")
    if multirun:
        from rolegraph.engine.cli.sweep import sweep

        if as_json or quiet:
            raise click.UsageError("--json and --quiet go with one training; -m makes several")
        return sweep(
            "train",
            spec,
            overrides,
            out=out,
            resume=resume,
            track=track,
            model=model,
            base_url=base_url,
            imports=imports,
            allow=allow,
            seed=seed,
        )
    import rolegraph as rg
    from rolegraph.engine.cli.train_display import TrainDisplay
    from rolegraph.engine.cli.train_end import TrainEnd
    from rolegraph.engine.cli.waiting import run_until_done

    output = OutputOptions(quiet, as_json)
    if resume:
        training = rg.resume_training(
            out, spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow
        )
    elif spec is None:
        raise rg.UsageError("which spec? Give a file, or the name of a shipped one, such as solver_judge")
    else:
        flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
        training = rg.begin_training(flow, out=out, seed=seed)
    if training.done >= training.steps:
        end = TrainEnd(training)
        output.found().print(f"{training.folder.path} is finished: all {training.steps} steps are done")
        output.next(*end.next())
        output.document(end.document(0.0))
        return 0
    with TrainDisplay(training, output) as display:
        run_until_done(training.run(display.observe, track))
    return 0
