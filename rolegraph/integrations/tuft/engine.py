"""TuFT 0.2.2 with peft and vLLM on Ray: installation, config and command line."""

from __future__ import annotations

import json

from rolegraph.local.engines import EngineStart, TinkerEngine


def _command(start: EngineStart) -> list[str]:
    config = {
        "checkpoint_dir": str(start.state / "checkpoints"),
        "supported_models": [
            {
                "model_name": start.model,
                "model_path": start.model,
                "max_model_len": 4096,
                "max_lora_rank": start.rank,
                "max_loras": 4,
            }
        ],
        "authorized_users": {start.key: "rolegraph"},
    }
    file = start.state / "tuft.yaml"
    file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")  # YAML is a superset of JSON
    return [
        str(start.environment / "bin" / "tuft"),
        "launch",
        "--port",
        str(start.port),
        "--config",
        str(file),
    ]


ENGINE = TinkerEngine(
    "tuft",
    requirements=("tuft==0.2.2",),
    python="3.11",
    sdk="0.25",
    command=_command,
    needs_gpu=True,
    hints={
        "CUDA out of memory": "the GPU's memory is full; take a smaller model, or end other programs",
        "No available node types": "Ray sees too few GPUs",
        "Found no NVIDIA driver": "torch finds no driver of NVIDIA",
    },
)
