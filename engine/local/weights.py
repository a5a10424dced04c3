"""Where the service's checkpoints lie: `tinker://RUN/KIND/NAME` is a folder of that name. Knows no torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from engine.errors import UsageError, WorldError

OPTIMIZER = "optimizer.pt"
"""The optimizer's state, beside the weights."""
_PATH = re.compile(r"tinker://(?P<run>[\w.:-]+)/(?P<kind>weights|sampler_weights)/(?P<name>[\w.-]+)")


def folder_of(path: str, under: Path) -> Path | None:
    """The folder of a checkpoint; None where that is no checkpoint's path."""
    parts = _PATH.fullmatch(path)
    if parts is None or {parts["run"], parts["name"]} & {".", ".."}:
        return None
    return under / parts["run"] / parts["kind"] / parts["name"]


def bring(path: str, source: Path, target: Path) -> None:
    """Copy a checkpoint's weights from one service's folder to another's, unless they are there.

    Raises UsageError where there are none, WorldError where the disk does not take them.
    """
    there, here = folder_of(path, source), folder_of(path, target)
    if there is None or here is None or not there.is_dir():
        raise UsageError(f"{source} does not hold the weights {path}")
    if here.exists():
        return
    try:
        part = here.with_name(f".part-{here.name}")
        shutil.copytree(there, part, ignore=shutil.ignore_patterns(OPTIMIZER), dirs_exist_ok=True)
        part.rename(here)
    except OSError as error:
        raise WorldError(f"cannot copy the weights {path} to {target}: {error.strerror}") from error
