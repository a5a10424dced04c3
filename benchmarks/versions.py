"""Whether two versions of the project make the same of every shipped spec: episodes, advantages and metrics.

    git worktree add ../before COMMIT && make -C ../before .venv/.test
    python benchmarks/versions.py ../before                    # all shipped specs; or name some

Each spec of this checkout is trained for two steps by both versions, with the same base model and seed. The
second step samples from updated weights, so equal episodes mean equal data, losses and gradients before it.
Numbers may differ by TOLERANCE: a batch's composition depends on time, and with it the last digits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from rolegraph import api

HERE = Path(__file__).parent.parent
BASE = HERE / "rolegraph" / "local" / "base"
TOLERANCE = 1e-3
SMALL = (
    "train.steps=2",
    "train.batch_size=2",
    "train.rollouts=4",
    "train.learning_rate=0.01",
    "train.validation={every: 0, tasks: 2, rollouts: 1}",
)
OWN: dict[str, Sequence[str]] = {
    "solver_judge_distill": [
        f"roles.judge.signal={{reverse_kl: {{teacher: {{model: 'local:{BASE}/teacher'}}}}}}"
    ],
    "proposer_solver_judge": [f"roles.judge.model=local:{BASE}/teacher"],
    "react": ["roles.agent.tools=[calculator]"],
}
"""Overrides of single specs: the teacher of this checkout, for both versions, and no server of tools."""
OF_TIME = ("started", "seconds", "hash", "model", "time/", "tokens/per_second")
"""Fields that differ between two runs of one version, or that name the spec's own hash."""


def trained(command: Path, name: str, folder: Path) -> list[Any]:
    """Train a spec with a version's command, and return its episodes and metrics as plain data."""
    spec, model = HERE / "specs" / f"{name}.yaml", f"local:{BASE}/model"
    words = (
        "train",
        spec,
        "--model",
        model,
        *SMALL,
        *OWN.get(name, ()),
        "--allow",
        "python",
        "--out",
        folder,
    )
    done = subprocess.run([command, *words], cwd=folder.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{command}: {done.stderr}")
    files = sorted(file for file in folder.glob("episodes/*.jsonl") if ".index" not in file.name)
    return [json.loads(line) for file in (*files, folder / "metrics.jsonl") for line in file.open("rb")]


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield each place where two values differ; a key that only one has is such a place."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {*one, *other}:
            if not key.startswith(OF_TIME):
                yield from differences(one.get(key), other.get(key), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for a, b in zip(one, other, strict=True):
            yield from differences(a, b, f"{place}[]")
    elif isinstance(one, float) and isinstance(other, float):
        if abs(one - other) > TOLERANCE * max(1.0, abs(one), abs(other)):
            yield place
    elif one != other:
        yield place


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, metavar="[SPEC]…")
def main(before: Path, names: Sequence[str]) -> None:
    differ = False
    for name in names or api.shipped_specs():
        with TemporaryDirectory() as folder:
            old = trained(before.absolute() / ".venv" / "bin" / "rolegraph", name, Path(folder) / "before")
            new = trained(Path(sys.executable).with_name("rolegraph"), name, Path(folder) / "now")
        found = Counter(differences(old, new))
        differ = differ or bool(found)
        click.echo(f"{name}: {len(new)} episodes and steps, {dict(found.most_common(8)) or 'the same'}")
    sys.exit(differ)


if __name__ == "__main__":
    main()
