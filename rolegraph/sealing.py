"""Seals of the settings in a run's folder, by which a user's own folders are known.

`run.json` and `sweep.json` name code to import, permissions and an address that gets a key. A folder from
somebody else must give none of these, so they count only under a seal: an HMAC with a key that the user alone
can read. The seal moves with the folder, and does not fit other settings.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolegraph.engine.errors import RolegraphError, UsageError, WorldError, os_errors_as
from rolegraph.engine.local.launcher import is_loopback
from rolegraph.engine.records import RunFolder, Source
from rolegraph.engine.records.info import SourceRecord, source_fields
from rolegraph.engine.records.sweep import NAME as SWEEP_FILE
from rolegraph.engine.records.sweep import read_sweep, rewrite_sweep
from rolegraph.engine.records.writer_lock import sole_writer

KEY_BYTES = 32
LONGEST_SHOWN = 2_000
"""Characters of a message's list of what a folder asks for."""


def settings_folder() -> Path:
    """Return the folder of the user's settings, in `$XDG_CONFIG_HOME` or `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rolegraph"


def make_settings_folder() -> Path:
    """Create the folder of the user's settings, which only the user can read; raises WorldError."""
    folder = settings_folder()
    with os_errors_as(WorldError, f"cannot write {folder}"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def sealed_fields(source: Source) -> dict[str, Any]:
    """Return the fields of a SourceRecord for a new folder: a source, and its seal.

    The seal is empty where the user's settings cannot be written; the folder then counts as a stranger's.
    """
    fields = source_fields(source)
    with suppress(RolegraphError):
        fields["seal"] = _seal(SourceRecord(**fields))
    return fields


def resumed_source(folder: Path, record: SourceRecord, given: Source | None) -> Source:
    """Complete the source of a command by the one that a folder holds.

    Args:
        folder: Folder of a run, training or sweep.
        record: Its settings.
        given: The source of the command; its fields replace those of the folder.

    Raises:
        UsageError: The folder has no seal of this user, and holds overrides, a model, an address, imports or
            permissions that the command does not give.
    """
    own = given or Source()
    whole = own.with_defaults(record.source)
    if is_sealed(record):
        return whole
    asked = Source(
        spec="",
        overrides=() if own.overrides else whole.overrides,
        model=None if own.model else whole.model,
        base_url=None if own.base_url or is_this_machine(whole.base_url) else whole.base_url,
        imports=() if own.imports else whole.imports,
        allow=() if own.allow else whole.allow,
    )
    if words := shlex.join(asked.arguments()[1:]):
        if len(words) > LONGEST_SHOWN:
            words = f"{words[:LONGEST_SHOWN]} … (`rolegraph trust` shows all)"
        raise UsageError(
            f"{folder} has no seal of yours, because somebody else made or changed it, and asks for "
            f"{words}; give these again if you want them, or trust all: rolegraph trust {folder}"
        )
    return whole


def is_sealed(record: SourceRecord) -> bool:
    """Return True for settings that this user's commands wrote, or that the user trusts."""
    try:
        return hmac.compare_digest(record.seal.encode(errors="replace"), _seal(record).encode())
    except RolegraphError:
        return False


def is_this_machine(url: str | None) -> bool:
    """Return True for a URL of this machine, to which keys may be sent."""
    try:
        return url is None or is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def recorded_settings(folder: str | Path) -> SourceRecord | None:
    """Read what the folder of a run, training or sweep asks for when it is resumed.

    Args:
        folder: The folder.

    Returns:
        The settings; None for any other folder.

    Raises:
        DataError: The folder's file is damaged.
    """
    path = Path(folder)
    if (path / SWEEP_FILE).exists():
        return read_sweep(path)
    return RunFolder(path).info() if RunFolder(path).info_file.exists() else None


def seal(folder: Path) -> None:
    """Seal the settings of the folder of a run, training or sweep as they are now.

    Raises:
        UsageError: It is no such folder, or another process writes in it.
        WorldError: The folder or the user's settings cannot be written.
    """
    with sole_writer(folder):
        if (folder / SWEEP_FILE).exists():
            sweep = read_sweep(folder)
            rewrite_sweep(folder, sweep.model_copy(update={"seal": _seal(sweep)}))
        else:
            run = RunFolder(folder)
            run.replace_seal(_seal(run.info()))


def _seal(record: SourceRecord) -> str:
    """Return the seal of settings; raises WorldError where the user's settings cannot be written.

    Imports are sealed with their whole path: a file of the same name in another folder is another one.
    """
    source = record.source
    imports = tuple(str(Path(name).absolute()) for name in source.imports)
    fields = source_fields(replace(source, spec=record.spec, imports=imports))
    return hmac.new(_key(), json.dumps(fields).encode(), "sha256").hexdigest()


def _key() -> bytes:
    """Read the user's key; make it the first time. Raises WorldError."""
    file = make_settings_folder() / "seal.key"
    with os_errors_as(WorldError, f"cannot write {file}"):
        # Linked into place whole, so that no command reads half of it, and two that come first agree.
        if not file.exists():
            part = file.with_name(f".seal.{os.getpid()}")
            part.touch(mode=0o600)
            part.write_bytes(secrets.token_bytes(KEY_BYTES))
            with suppress(FileExistsError):
                os.link(part, file)
            part.unlink()
        return file.read_bytes()
