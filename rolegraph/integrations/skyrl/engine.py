"""SkyRL 0.4 with its JAX backend: installation and command line."""

from __future__ import annotations

import json
import shutil

from rolegraph.local.engines import EngineStart, TinkerEngine

_ADAPTERS = 8
"""Largest number of adapters at a time: `doctor` takes four, and SkyRL keeps those of clients that have ended
until their sessions time out."""
_SESSION_SECONDS = 120
"""Seconds without a heartbeat, which clients send every 10 seconds, until a session's adapters are freed."""


def _command(start: EngineStart) -> list[str]:
    backend = {
        "max_lora_adapters": _ADAPTERS,
        "max_lora_rank": start.rank,
        "train_micro_batch_size": 32,
        "sample_max_num_sequences": 32,
    }
    # SkyRL reads the flags of `uv run` from its parent's command line, and starts its engine with them.
    return [
        *(str(start.environment / "bin" / "uv"), "run", "--no-project", "-m", "skyrl.tinker.api"),
        *("--base-model", start.model, "--backend", "jax", "--port", str(start.port), "--host", "127.0.0.1"),
        *("--backend-config", json.dumps(backend)),
        *("--checkpoints-base", str(start.state / "checkpoints")),
        *("--database-url", f"sqlite:///{start.state / 'tinker.db'}"),
        *("--session-timeout-sec", str(_SESSION_SECONDS), "--session-cleanup-interval-sec", "15"),
    ]


_EXTRAS = "gpu,jax,tinker" if shutil.which("nvidia-smi") else "jax,tinker"
ENGINE = TinkerEngine(
    "skyrl",
    # aiohttp is missing in its requirements, and it starts its engine by uv.
    requirements=(f"skyrl[{_EXTRAS}]==0.4.0", "aiohttp", "uv"),
    python="3.12",
    sdk="0.25",
    command=_command,
    hints={
        "RESOURCE_EXHAUSTED": "the memory is full; take a smaller model",
        "address already in use": "the port is taken; name another by --port",
    },
)
