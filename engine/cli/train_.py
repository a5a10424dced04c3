"""`rolegraph train SPEC`: trains the roles of a spec, or goes on with a run that was stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.cli.train_display import TrainDisplay
    from engine.compile import Plan
    from engine.records import RunFolder, RunInfo
    from engine.rllm_bridge.estimators import Backend
    from engine.training import Setup
    from engine.training.trackers import TrackerName


@click.command("train")
@click.argument("spec", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]")
@click.option("--model", help="What to train: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@click.option("--base-url", help="A Tinker service to train on, in place of one started for the run.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder. Default: runs/NAME-TIME.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of data order, draws and the adapter.")
@click.option("--resume", is_flag=True, help="Go on at the last checkpoint of the newest run, or of --out.")
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
@click.option("--backend", type=click.Choice(["tinker", "verl", "fireworks"]), help="What rLLM trains on.")
@click.option("--print-config", is_flag=True, help="Show what rLLM would be launched with, and stop.")
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    out: Path | None,
    seed: int,
    resume: bool,
    track: tuple[TrackerName, ...],
    trainer: str,
    backend: Backend | None,
    print_config: bool,
) -> int:
    """Train every trainable role of SPEC (a file, or the name of a shipped one), as its `train` says.

    KEY.PATH=VALUE changes a value of the spec, as in train.steps=50 or train.learning_rate=0.001. With
    --trainer rllm, words that begin with `rllm.` or `++` change rLLM's config.
    """
    if trainer == "rllm":
        from engine.cli.rllm import train_with_rllm

        return train_with_rllm(
            spec,
            overrides,
            backend or "tinker",
            print_config=print_config,
            model=model,
            base_url=base_url,
            seed=seed,
            folder=out,
            resume=resume,
            trackers=track,
        )
    if backend is not None or print_config:
        raise click.UsageError("--backend and --print-config go with --trainer rllm")
    from engine.cli.overrides import compile_with
    from engine.cli.runs import RUNS, describe, new_folder
    from engine.compile.trainable import training_findings
    from engine.errors import UsageError
    from engine.records import RunFolder
    from engine.records.folder import newest

    folder: RunFolder | None = None
    if resume:
        named = compile_with(spec, overrides, model, base_url).name if spec else None
        folder = RunFolder(out) if out else newest(RUNS, named)
        begun = folder.training()
        seed = begun.seed
        if spec is None:
            spec, overrides = begun.spec or None, begun.overrides
            model, base_url = model or begun.model_flag, base_url or begun.base_url
    if spec is None:
        raise UsageError("which spec? Give a file, or the name of a shipped one, such as solver_judge")
    plan = compile_with(spec, overrides, model, base_url, further=training_findings)
    if folder is None:
        folder = RunFolder(out or new_folder(plan.name))
    info = describe(plan, "train", seed=seed, spec=spec, overrides=overrides, model=model, base_url=base_url)
    asked = _Asked(plan, folder, info, resume=resume, track=track, base_url=base_url)
    return asyncio.run(_train(asked))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line came to."""

    plan: Plan
    folder: RunFolder
    info: RunInfo
    resume: bool
    track: Sequence[TrackerName]
    base_url: str | None


async def _train(asked: _Asked) -> int:
    from engine.cli.train_display import TrainDisplay
    from engine.compile import MAIN
    from engine.errors import RolegraphError
    from engine.models import Models, Services
    from engine.run import Isolation
    from engine.training import Policies, Setup, Start, train
    from engine.training.order import planned_steps, validation_tasks
    from engine.training.trackers import open_tracker

    plan, folder = asked.plan, asked.folder
    rows = list(plan.data["train"].rows(None))
    steps = planned_steps(plan.spec.train, len(rows))
    info = asked.info.model_copy(update={"steps": steps})
    if asked.resume:
        folder.check_same(info, plan.resolved)
        start = folder.rewind()
        if start is not None and start.step >= steps:
            click.echo(f"{folder.path} is finished: all {steps} steps are done")
            return 0
    else:
        folder.check_new("train")
        start = None
    async with contextlib.AsyncExitStack() as stack:
        config = info.model_dump(mode="json", exclude={"templates"}, exclude_defaults=True)
        trackers = [open_tracker(name, folder.path, plan.name, config) for name in asked.track]
        done = start.step if start else 0
        display = stack.enter_context(TrainDisplay(plan, folder, steps=steps, trackers=trackers, done=done))
        display.note("starting the model …")
        services = stack.enter_context(Services(asked.base_url))
        beginning = Start(
            services.locate(plan.spec.model, folder.weights),
            plan.spec.train.lora,
            info.seed,
            state=start.state if start else None,
            version=start.version if start else 0,
        )
        policies = await stack.enter_async_context(Policies.open({MAIN: beginning}))
        models = await stack.enter_async_context(Models(services.open))
        frozen = {e.model: await models.model(e.model) for e in plan.endpoints if e.policy is None}
        teachers = {
            signal.teacher: await models.teacher(signal.teacher, policies.chat(MAIN), role)
            for role, signal in plan.signals.items()
            if signal.teacher is not None
        }
        setup = Setup(
            plan=plan,
            seed=info.seed,
            steps=steps,
            tasks=rows,
            validation_tasks=validation_tasks(plan),
            policies=policies,
            models=frozen | teachers,
            isolation=await stack.enter_async_context(Isolation(plan.imports)),
            folder=folder,
            observe=display.observe,
        )
        if asked.resume:
            folder.resume(info.command)
        else:
            folder.begin(info.model_copy(update={"model": policies.model(MAIN)}), plan.resolved)
        with folder.ending():
            try:
                await train(setup, start)
            except BaseException:
                with contextlib.suppress(RolegraphError):  # what ended the run is what the person should see
                    await asyncio.to_thread(_conclude, setup, display)
                raise
            await asyncio.to_thread(_conclude, setup, display)
    return 0


def _conclude(setup: Setup, display: TrainDisplay) -> None:
    """What is there after a run, finished or not: the controls and the report."""
    from engine.records import read_episodes
    from engine.report import write_report
    from engine.training.compare import controls

    folder = setup.folder
    first, last = (folder.episodes_file("validation", step) for step in (0, setup.steps))
    if first.exists() and last.exists():
        rows = controls(setup.plan, [*read_episodes(first)], [*read_episodes(last)])
        folder.write_controls(rows)
        display.controls(rows)
    if folder.metrics_file.exists():
        write_report(folder.path)
