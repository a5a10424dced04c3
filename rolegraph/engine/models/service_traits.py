"""Record of how a Tinker service behaves where services differ."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.jsonl import make_folder, write_whole


@dataclass(frozen=True, slots=True)
class ServiceTraits:
    """Probed behaviour of one Tinker service with one model; the defaults are hosted Tinker's and our
    own's."""

    sdk_version: str | None = None
    """Version of the Tinker SDK that found these traits; None where nothing was probed."""
    losses: tuple[str, ...] = ("cross_entropy", "importance_sampling", "ppo", "cispo", "gspo")
    """Loss functions that the service computes as their formulas say, thresholds given."""
    reports_loss: bool = True
    """True if a pass reports its loss (`loss:sum`)."""
    takes_means: bool = False
    """True if a gradient is divided by the number of datums since the last step, and each datum's share by
    its length, prompt included; False if the loss is a sum over tokens."""
    accumulates: bool = True
    """True if the gradients of several passes before one step are added."""
    merges_losses: bool = False
    """True if passes that are queued together take the loss function or the settings of one of them."""
    has_clip_norm: bool = True
    """True if `grad_clip_norm` limits the gradient."""
    has_rank_scaling: bool = False
    """True if the same Adam step moves an adapter of a higher rank further."""
    has_leading_none: bool = True
    """True if `compute_logprobs` returns an entry for each token of the prompt, None for the first."""
    has_seed: bool = True
    """True if the same seed samples the same tokens."""
    keeps_old_samplers: bool = True
    """True if a sampler of older weights keeps sampling from them, and training goes on unchanged."""
    has_several_adapters: bool = True
    """True if two adapters train at once without a mutual effect."""
    restores_without_client: bool = True
    """True if a training client can be created from a saved state; False if a state can only be loaded into
    a client that exists."""
    restores_optimizer: bool = True
    """True if the first step after loading a state with its optimizer equals the step without the break."""

    @classmethod
    def of(cls, url: str, model: str) -> ServiceTraits:
        """Return the record of a service with a model, or the defaults without one.

        Raises:
            UsageError: The record cannot be read.
        """
        file = _file(url, model)
        if not file.is_file():
            return cls()
        try:
            return TypeAdapter(cls).validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise UsageError(f"{file} is no record of a service; delete it") from error

    def save(self, url: str, model: str) -> Path:
        """Write the record of a service with a model for later commands, and return its file.

        Raises:
            WorldError: The file cannot be written.
        """
        file = _file(url, model)
        make_folder(file.parent)
        write_whole(file, json.dumps({"url": url, "model": model, **asdict(self)}, indent=1).encode())
        return file


def _file(url: str, model: str) -> Path:
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    name = hashlib.sha256(f"{url.rstrip('/')}\n{model}".encode()).hexdigest()[:32]
    return settings / "rolegraph" / "services" / f"{name}.json"
