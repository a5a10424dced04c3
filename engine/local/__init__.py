"""The Tinker-compatible service of this machine: its launcher, the service, and the models that ship.

What is exported is the launcher's, which stands below `rolegraph.engine.models`; the service stands above.
"""

from rolegraph.engine.local.launcher import (
    BASE_MODEL,
    PROCESS,
    LocalService,
    check_model_folder,
    is_this_machine,
    running,
)

__all__ = ["BASE_MODEL", "PROCESS", "LocalService", "check_model_folder", "is_this_machine", "running"]
