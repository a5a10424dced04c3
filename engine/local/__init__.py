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
from rolegraph.engine.local.warm import borrowed, has_started_service, keep_services, stop_services

__all__ = [
    "BASE_MODEL",
    "PROCESS",
    "LocalService",
    "borrowed",
    "check_model_folder",
    "has_started_service",
    "is_loopback",
    "keep_services",
    "running",
    "stop_services",
]
