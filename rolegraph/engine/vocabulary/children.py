"""Environment of the processes that this one starts: the service of a local model, and workers.

Such a process computes on untrusted values: it sees no key, and imports nothing from the current folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

_NEEDED = (
    "PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR TMP TEMP SYSTEMROOT XDG_CACHE_HOME HF_HOME "
    "LD_LIBRARY_PATH LD_PRELOAD DYLD_LIBRARY_PATH PYTHONHOME PYTHONHASHSEED PYTHONUTF8 PYTHONIOENCODING"
).split()
_NEEDED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MKL_"),
    *("OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH_", "TRITON_", "COVERAGE_"),
)
"""Settings of numerical libraries and of devices."""
_SECRET = re.compile(r"(.*_)?(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?|HEADERS)(_.*)?", re.IGNORECASE)
_PACKAGE_ROOT = Path(__file__).parents[3]
"""The folder that `rolegraph` is imported from."""


def child_environment(*, own_code: bool = False) -> dict[str, str]:
    """Return the environment variables of a process that this one starts.

    Args:
        own_code: Pass every variable but secrets, for code that the user imports; by default, those pass that
            Python, the numerical libraries and the devices need.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if not _SECRET.fullmatch(name) and (own_code or name in _NEEDED or name.startswith(_NEEDED_PREFIXES))
    }
    return {**passed, "PYTHONPATH": _module_path()}


def _module_path() -> str:
    """Return a child's PYTHONPATH: `sys.path` without the current folder and the folder of the main script.

    A user's module there, such as types.py or torch.py, would otherwise replace the module of that name that
    the child imports.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    left_out = [Path(script).resolve().parent] if script else []
    with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
        left_out.append(Path.cwd().resolve())
    kept = [entry for entry in sys.path if entry and Path(entry).resolve() not in left_out]
    # At the end, behind the standard library: in a checkout that is not installed, `rolegraph` itself may lie
    # in the current folder.
    return os.pathsep.join([*kept, str(_PACKAGE_ROOT)])
