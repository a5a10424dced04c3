"""The same spec, seed and budget, trained by our own loop and by rLLM's AgentTrainer, on the local service.

    python benchmarks/rllm_learning.py --out docs/rllm_learning.svg      # needs rLLM installed

Both are real commands, one after the other; rLLM's figures are read from what it prints. They need not be
equal: rLLM draws its tasks in another order and with other seeds, and sums its losses where ours are means.
Both should rise. Prints a Markdown table.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from rolegraph.engine.records import RunFolder, RunInfo
from rolegraph.pages.report import draw_curves

FIGURES = ("solver_acc", "judge_acc")
_STEP = re.compile(r"^step:(\d+) - (.*)$", re.MULTILINE)
_VALUE = re.compile(r"([\w/@]+):(?:np\.float64\()?(-?[\d.]+(?:e-?\d+)?)\)?(?: - |$)")


def train(folder: Path, spec: str, words: tuple[str, ...]) -> tuple[str, float]:
    """What a training command says, and its seconds."""
    command = [sys.executable, "-m", "rolegraph", "train", spec, *words, "--out", str(folder)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout, time.monotonic() - began


def write_rllm_run(folder: Path, spec: str, seed: int, said: str) -> None:
    """rLLM's figures as a run's folder, so that they are drawn like ours."""
    lines: dict[int, dict[str, float]] = {}
    for step, rest in _STEP.findall(said):
        line = lines.setdefault(int(step), {"step": float(step)})
        for key, value in _VALUE.findall(rest):
            for figure in FIGURES:
                if key == f"val/{spec}/{figure}":
                    line[f"validation/{figure}"] = float(value)
                elif key == f"batch/{figure}":
                    line[f"episode/{figure}"] = float(value)
    run = RunFolder(folder)
    run.begin(RunInfo(name="rLLM's AgentTrainer", seed=seed, roles={}, metrics=FIGURES), spec="")
    for step in sorted(lines):
        run.add_metrics(lines[step])


def validations(folder: Path) -> list[dict[str, float]]:
    return [line for line in RunFolder(folder).metrics() if f"validation/{FIGURES[0]}" in line]


@click.command()
@click.option("--spec", default="solver_judge", show_default=True)
@click.option("--steps", default=30, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="A picture of the learning curves.")
def main(spec: str, steps: int, seed: int, out: Path | None) -> None:
    words = (f"train.steps={steps}", "--seed", str(seed))
    with tempfile.TemporaryDirectory() as place:
        ours, theirs, drawn = (Path(place) / name for name in ("ours", "weights", "theirs"))
        _, our_seconds = train(ours, spec, words)
        run = RunFolder(ours)  # the picture tells the two apart by their names
        run.begin(run.info().model_copy(update={"name": "rolegraph train"}), run.spec())
        said, their_seconds = train(theirs, spec, (*words, "--trainer", "rllm", "--backend", "tinker"))
        write_rllm_run(drawn, spec, seed, said)
        click.echo(
            "| trainer | seconds | " + " | ".join(f"{figure}, before → after" for figure in FIGURES) + " |"
        )
        click.echo("|---|---:|" + "---|" * len(FIGURES))
        for name, folder, seconds in (("rolegraph", ours, our_seconds), ("rLLM", drawn, their_seconds)):
            first, *_, last = validations(folder)
            cells = [f"{first[f'validation/{f}']:.3f} → {last[f'validation/{f}']:.3f}" for f in FIGURES]
            click.echo(f"| {name} | {seconds:.0f} | " + " | ".join(cells) + " |")
        if out:
            out.write_text(draw_curves([ours, drawn]).svg, encoding="utf-8")


if __name__ == "__main__":
    main()
