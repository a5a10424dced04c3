"""Processes that this one starts: their environment, and their end.

They get a fixed list of environment variables, no secret that the user did not allow, and import nothing from
the current folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from rolegraph.engine.secrets import is_secret_name, secrets_of

_NEEDED = (
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TMP TEMP SYSTEMROOT XDG_CACHE_HOME HF_HOME "
    "LD_LIBRARY_PATH LD_PRELOAD DYLD_LIBRARY_PATH VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONHASHSEED "
    "PYTHONUTF8 PYTHONIOENCODING "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS"
).split()
_NEEDED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MKL_"),
    *("OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH_", "TRITON_", "COVERAGE_"),
)
"""Prefixes of the variables of numerical libraries and of devices."""
VARIABLE = "env:"
"""Prefix of a permission that passes an environment variable to programs, such as `env:MY_KEY`."""
SUPERVISOR = Path(__file__).with_name("supervisor.py")
"""Program that runs another program, and ends all processes that it started."""
_PACKAGE_ROOT = Path(__file__).parents[3]
"""The folder from which `rolegraph` is imported."""


def program_environment(allowed: Collection[str] = (), *, own_code: bool = False) -> dict[str, str]:
    """Return the environment variables of a program that this process starts.

    Args:
        allowed: Permissions that the user gave; `env:NAME` passes the variable NAME, even if it is a secret.
        own_code: True to pass every variable except secrets, for code that the user imports. False passes
            only variables that most programs need: paths, language, proxies and certificates, settings of
            devices.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if f"{VARIABLE}{name}" in allowed
        or (
            (own_code or name in _NEEDED or name.startswith(_NEEDED_PREFIXES))
            and not (is_secret_name(name) or secrets_of(name, value))
        )
    }


def child_environment(*, own_code: bool = False) -> dict[str, str]:
    """Return the `program_environment` of a Python process with the same imports as this one."""
    return {**program_environment(own_code=own_code), "PYTHONPATH": _module_path()}


def supervised(words: Sequence[str], prefix: str = "") -> list[str]:
    """Return a command that runs `words`, and at its end stops all processes that `words` started.

    The command also ends when this process ends. Stop it early by SIGTERM: SIGKILL would leave the started
    processes running.

    Args:
        words: The words of the command to run.
        prefix: Beginning of the name of a temporary folder for the command; empty to run it in this process's
            folder.
    """
    return [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), prefix, *words]


def _module_path() -> str:
    """Return a child's PYTHONPATH: `sys.path` without the current folder and the folder of the main script.

    Otherwise a user's module in these folders, such as types.py or torch.py, would replace the module that
    the child imports by that name.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    left_out_folders = [Path(script).resolve().parent] if script else []
    with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
        left_out_folders.append(Path.cwd().resolve())
    kept_entries = [entry for entry in sys.path if entry and Path(entry).resolve() not in left_out_folders]
    # At the end, behind the standard library: in a checkout that is not installed, `rolegraph` itself may lie
    # in the current folder.
    return os.pathsep.join([*kept_entries, str(_PACKAGE_ROOT)])
