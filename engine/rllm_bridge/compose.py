"""rLLM's hydra config, composed with our overrides. Reads rLLM's files, and imports nothing of it."""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolegraph.engine.backends import Backend
from rolegraph.engine.errors import UsageError
from rolegraph.engine.rllm_bridge.installed import INSTALL, verl_config


def compose(words: Sequence[str], backend: Backend) -> Any:
    """RLLM's config with overrides; raises UsageError for a word that hydra cannot read or place."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    package = importlib.util.find_spec("rllm")
    if package is None or not package.submodule_search_locations:
        raise UsageError(f"rLLM's config is part of rLLM: {INSTALL}")
    folder = Path(next(iter(package.submodule_search_locations))) / "trainer" / "config"
    with contextlib.ExitStack() as stack:
        words = list(words)
        if backend == "verl" and (installed := verl_config()) is not None:
            # By its folder: as a package it would be imported, and all that verl is made of with it.
            words.append(f"hydra.searchpath=['file://{installed}']")
        elif backend == "verl":
            # Composing asks for verl's own `ppo_trainer`; rLLM carries what verl once generated from it.
            stand_in = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            copy = OmegaConf.load(folder / "_generated_agent_ppo_trainer.yaml")
            copy.pop("rllm")
            OmegaConf.save(copy, stand_in / "ppo_trainer.yaml")
            words.append(f"hydra.searchpath=['file://{stand_in}']")
        # Every backend's config looks for verl's; that it is not there has been seen to.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*verl.trainer.config is not available")
        stack.enter_context(hydra.initialize_config_dir(str(folder), version_base=None))
        try:
            return hydra.compose("unified", overrides=words)
        except HydraException as error:
            raise UsageError(f"rLLM's config does not take these words: {error}") from error


def as_yaml(config: Any) -> str:
    """A composed config as text, its interpolations as they stand."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(config)
