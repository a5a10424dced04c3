"""Serve a local model folder in this process until told to stop, as `rolegraph serve` does."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from rolegraph.engine.errors import UsageError
from rolegraph.engine.local.launcher import check_model_folder, model_name


def serve(
    model_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    name: str | None = None,
    api_key: str | None = None,
    state_dir: Path | None = None,
    threads: int | None = None,
) -> None:
    """Serve until interrupted. Port 0 takes a free one; without `state_dir`, checkpoints go with the service.

    Clients need `api_key`; where none is given, one is made and printed. Raises UsageError for a folder that
    holds no model, WorldError for an address that cannot be listened at.
    """
    check_model_folder(model_dir)
    from rolegraph.engine.local.service.launch import launch  # torch takes seconds to import

    with contextlib.ExitStack() as stack:
        state = open_state_dir(state_dir, stack)
        launch(
            model_dir,
            model_name(model_dir, name),
            host=host,
            port=port,
            api_key=api_key,
            state_dir=state,
            threads=threads,
            child=False,
        )


def open_state_dir(folder: Path | None, stack: contextlib.ExitStack) -> Path:
    """Where checkpoints are kept: the folder given, or one that is removed when the stack closes."""
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="rolegraph-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(temporary))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep checkpoints in {folder}: {error.strerror}") from error
    return folder
