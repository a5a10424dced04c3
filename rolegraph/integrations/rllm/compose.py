"""rLLM's hydra config, composed with overrides. Reads rLLM's files, and does not import rLLM."""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import yaml

from rolegraph.engine.errors import UsageError
from rolegraph.integrations.rllm.backends import INSTALL
from rolegraph.integrations.rllm.names import Backend
from rolegraph.integrations.rllm.verl_versions import adapt


def compose(overrides: Sequence[str], backend: Backend) -> Any:
    """Compose rLLM's config for a backend.

    Args:
        overrides: Overrides in hydra's syntax.
        backend: Name of the backend.

    Returns:
        The config, an omegaconf DictConfig.

    Raises:
        UsageError: If rLLM is not installed, or hydra refuses an override.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    folder = config_folder("rllm")
    if folder is None:
        raise UsageError(f"rLLM's config is part of rLLM: {INSTALL}")
    with contextlib.ExitStack() as stack:
        all_overrides = list(overrides)
        if backend == "verl":
            # By its folder: as a package it would be imported, and all that verl is made of with it.
            verl_folder = config_folder("verl")
            if verl_folder is None:
                # Composing asks for verl's own `ppo_trainer`; rLLM carries what verl once generated from it.
                verl_folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                verl_config = OmegaConf.load(folder / "_generated_agent_ppo_trainer.yaml")
                verl_config.pop("rllm")
                OmegaConf.save(verl_config, verl_folder / "ppo_trainer.yaml")
            all_overrides.append(f"hydra.searchpath=['file://{verl_folder}']")
        # Every backend's config looks for verl's, also those that do without it.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*verl.trainer.config is not available")
        stack.enter_context(hydra.initialize_config_dir(str(folder), version_base=None))
        try:
            config = hydra.compose("unified", overrides=all_overrides)
        except HydraException as error:
            raise UsageError(f"rLLM's config does not take these overrides: {error}") from error
    if backend == "verl":
        adapt(config)
    return config


def as_yaml(config: Any) -> str:
    """Return a composed config as YAML, with unresolved interpolations."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(config)


def rllm_keys() -> frozenset[str] | None:
    """Return the dotted keys of rLLM's own config section; None if rLLM is not installed."""
    folder = config_folder("rllm")
    if folder is None:
        return None
    return frozenset(_leaves(yaml.safe_load((folder / "rllm" / "base.yaml").read_text("utf-8")), "rllm"))


def _leaves(tree: Mapping[str, object], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(cast("dict[str, object]", value), f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}"


def config_folder(package: str) -> Path | None:
    """Return the folder of a package's hydra config, without importing the package; None if the package is
    not installed."""
    module_spec = find_spec(package)
    for folder in (module_spec and module_spec.submodule_search_locations) or ():
        if (config := Path(folder) / "trainer" / "config").is_dir():
            return config
    return None
