"""Options that run episodes on a Ray cluster: `--on` of `run`, `--rollouts-on` of `train`."""

from __future__ import annotations

from rolegraph.cli import options
from rolegraph.cli.doors import Door

_PLACES = (
    "Ray cluster that makes the episodes: ray (of RAY_ADDRESS or this machine), ray://HOST:PORT, HOST:PORT."
)
DOOR = Door(
    options={
        "run": options.text("--on", "CLUSTER", f"{_PLACES} --concurrency then holds for each node."),
        "train": options.text("--rollouts-on", "CLUSTER", _PLACES),
    }
)
