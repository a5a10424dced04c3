"""What of rLLM and its backends is installed, and the command that installs what is not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from rolegraph.engine.backends import Backend
from rolegraph.engine.errors import UsageError

INSTALL = "pip install 'rolegraph[rllm]'"
NEEDS: Mapping[Backend, tuple[str, str]] = {
    "tinker": ("tinker", INSTALL),
    "verl": ("verl", "pip install 'rllm[verl] @ git+https://github.com/rllm-org/rllm.git'"),
    "fireworks": ("fireworks", "pip install 'rllm[fireworks] @ git+https://github.com/rllm-org/rllm.git'"),
}
"""What each backend imports, and the command that installs it."""


def has_rllm() -> bool:
    """Whether rLLM can be imported."""
    return find_spec("rllm") is not None


def has_verl() -> bool:
    """Whether verl can be imported."""
    return find_spec("verl") is not None


def verl_config() -> Path | None:
    """The folder of verl's own config; None where verl is not installed. Imports nothing of verl."""
    package = find_spec("verl")
    for folder in (package and package.submodule_search_locations) or ():
        if (config := Path(folder) / "trainer" / "config").is_dir():
            return config
    return None


def need_rllm(what: str = "this") -> None:
    """Raises UsageError with the command that installs rLLM, where it is absent."""
    if not has_rllm():
        raise UsageError(f"{what} needs rLLM: {INSTALL}")


def require(backend: Backend) -> None:
    """Raises UsageError with the command that installs what the backend lacks."""
    need_rllm("--trainer rllm")
    if backend == "custom":
        return
    module, install = NEEDS[backend]
    if find_spec(module) is None:
        raise UsageError(f"rLLM's backend {backend} needs {module}: {install}")
