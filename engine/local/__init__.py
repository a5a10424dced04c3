"""The Tinker-compatible local service: its launcher, the service itself and the models of the package.

This package exports the launcher's names. The launcher is a layer below `rolegraph.engine.models`, the
service a layer above it.
"""

from rolegraph.engine.local.launcher import (
    BASE_MODEL,
    PROCESS,
    LocalService,
    check_model_folder,
    is_loopback,
    running,
)

__all__ = ["BASE_MODEL", "PROCESS", "LocalService", "check_model_folder", "is_loopback", "running"]
