"""Worker processes that run one file of this package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rolegraph.engine.vocabulary.children import child_environment

_FOLDER = Path(__file__).parent


def start_worker(
    name: str,
    *arguments: str,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    python: str = sys.executable,
) -> subprocess.Popen[str]:
    """Start a file of this folder in a Python process of its own; its output is read as UTF-8 text.

    The process gets the variables of `child_environment`. Neither the current folder nor the file's own is on
    its module path, so that a `types.py` there does not replace the standard library's.

    Args:
        name: The file's name.
        arguments: The arguments of the process.
        env: Variables of the environment to set.
        stdin: The standard input, as `subprocess.Popen` takes it.
        python: The interpreter.
    """
    return subprocess.Popen(
        [python, "-P", str(_FOLDER / name), *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env=child_environment() | dict(env),
    )
