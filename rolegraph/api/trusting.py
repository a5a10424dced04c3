"""Trust in folders: the seal of a run's settings, and the `rolegraph.toml` beside a spec.

`run.json` and `sweep.json` name code to import, permissions and an address that gets a key. An untrusted
folder must give none of these, so they take effect only under a seal: an HMAC with a key that the user alone
can read. The seal moves with the folder, and does not fit other settings.

A spec cannot name code. A `rolegraph.toml` can, so it takes effect only after the user of this machine has
trusted its digest: a copied folder changes nothing.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rolegraph.engine.connections import is_here
from rolegraph.engine.errors import RolegraphError, UsageError, WorldError, os_errors_as
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records import RunFolder, RunInfo, Source, SweepInfo
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.files import read_bytes
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.info import SourceRecord, source_fields
from rolegraph.engine.records.sweep import NAME as SWEEP_FILE
from rolegraph.engine.records.sweep import SWEEP, read_sweep, write_sweep
from rolegraph.engine.records.writer_lock import sole_writer

PROJECT_FILE, TRUSTED = "rolegraph.toml", "trusted.json"
KEY_BYTES = 32
LONGEST_SHOWN = 2_000
"""Characters of a message's list of what a folder asks for."""


class Project(BaseModel):
    """Contents of a `rolegraph.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    imports: tuple[str, ...] = ()
    """Python files that register rewards, parsers and so on, relative to the file's folder."""
    allow: tuple[str, ...] = ()
    """Permissions of the folder's specs, as `--allow` takes them."""
    flags: Mapping[str, bool | int | float | str] = {}
    """Default values of the command's flags, without dashes in front: `concurrency = 8`."""


def project_of(spec: str | Path) -> Project | None:
    """Read the trusted `rolegraph.toml` beside a spec.

    Args:
        spec: Path of a spec file, or the name of a shipped spec.

    Returns:
        The contents, with imports as paths from the working folder; None where there is no such file, or none
        that `trust` was called for in its present state.

    Raises:
        UsageError: The trusted file is not valid.
    """
    file = Path(spec).parent / PROJECT_FILE
    if not Path(spec).is_file() or not is_trusted(file):
        return None
    project = read_project(file)
    return project.model_copy(update={"imports": tuple(str(file.parent / name) for name in project.imports)})


def with_project(source: Source) -> Source:
    """Return a source with the imports and permissions of the trusted `rolegraph.toml` beside its spec.

    Args:
        source: The spec and the options it is read with; those are kept.

    Returns:
        The source as it is where there is no such file.

    Raises:
        UsageError: The trusted file is not valid.
    """
    project = project_of(source.spec) if source.spec else None
    if project is None:
        return source
    imports = dict.fromkeys([*project.imports, *source.imports])
    return replace(source, imports=tuple(imports), allow=(*project.allow, *source.allow))


def without_project(source: Source) -> Source:
    """Return a source without the imports and permissions of the trusted `rolegraph.toml` beside its spec.

    A command that names the source needs no such option: `with_project` adds them.

    Args:
        source: The spec and the options it is read with.

    Returns:
        The source as it is where there is no such file.

    Raises:
        UsageError: The trusted file is not valid.
    """
    project = project_of(source.spec) if source.spec else None
    if project is None:
        return source
    files = {Path(name).resolve() for name in project.imports}
    imports = tuple(name for name in source.imports if Path(name).resolve() not in files)
    return replace(source, imports=imports, allow=tuple(it for it in source.allow if it not in project.allow))


def read_project(file: Path) -> Project:
    """Read a `rolegraph.toml`, trusted or not; nothing in it is acted on.

    Args:
        file: The file.

    Returns:
        The contents as they are written.

    Raises:
        UsageError: The file is missing, not TOML, or has unknown keys.
    """
    try:
        return Project.model_validate(tomllib.loads(_bytes(file).decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{file}: {place}: {first['msg']}; expected imports, allow, flags") from error


def is_trusted(file: Path) -> bool:
    """Return whether the user of this machine trusts a `rolegraph.toml` as it is now.

    Args:
        file: The file.

    Returns:
        False where there is no such file.
    """
    return file.is_file() and _trusted().get(str(file.resolve())) == _digest(file)


def trust(folder: str | Path) -> Path:
    """Trust what a folder asks for in its present state: its imports will run.

    Args:
        folder: The folder of a `rolegraph.toml`, or of a run, training or sweep that is to be resumed.

    Returns:
        The file or the run's folder.

    Raises:
        UsageError: The folder has no such file, the file is not valid, or another process writes in a run's
            folder.
        WorldError: The run's folder or the user's settings cannot be written.
    """
    folder = Path(folder)
    if (settings := recorded_settings(folder)) is not None:
        with sole_writer(folder, SWEEP if isinstance(settings, SweepInfo) else RUN):
            if isinstance(settings, SweepInfo):
                write_sweep(folder, settings.model_copy(update={"seal": _seal(settings)}))
            else:
                RunFolder(folder).replace_seal(_seal(settings))
        return folder
    file = folder / PROJECT_FILE
    read_project(file)
    trusted = {**_trusted(), str(file.resolve()): _digest(file)}
    write_whole(_make_settings_folder() / TRUSTED, json.dumps(trusted, indent=1).encode())
    return file


def sealed_fields(source: Source) -> dict[str, Any]:
    """Return the fields of a SourceRecord for a new folder: those of `source`, and a seal by the user's key.

    The seal is empty where the user's settings cannot be written; the folder is then untrusted.
    """
    fields = source_fields(source)
    with suppress(RolegraphError):
        fields["seal"] = _seal(SourceRecord(**fields))
    return fields


def resumed_source(folder: Path, record: SourceRecord, given: Source | None) -> Source:
    """Complete the source of a command by the source that a folder holds.

    Args:
        folder: Folder of a run, training or sweep.
        record: Its settings.
        given: The source of the command; its fields replace those of the folder.

    Raises:
        UsageError: The folder has no seal of this user, and holds overrides, a model, an address, imports or
            permissions that the command does not give.
    """
    source = given or Source()
    whole = source.with_defaults(record.source)
    if is_sealed(record):
        return whole
    given_fields = {field.name: field.default for field in fields(Source) if getattr(source, field.name)}
    asked = replace(record.source, **{**given_fields, "spec": ""})
    if is_this_machine(asked.base_url):
        asked = replace(asked, base_url=None)
    if words := shlex.join(asked.arguments()[1:]):
        again = f"give these again if you want them:\n  {_command_with(folder, record, whole)}\nor"
        if len(words) > LONGEST_SHOWN:
            words, again = f"{words[:LONGEST_SHOWN]} … (`rolegraph trust` shows all)", "if you want these,"
        trust_all = shlex.join(["rolegraph", "trust", str(folder)])
        raise UsageError(
            f"{folder} has no seal of yours, because another user made or changed it, and asks for "
            f"{words}; {again} trust all: {trust_all}"
        )
    return whole


def _command_with(folder: Path, record: SourceRecord, source: Source) -> str:
    """Return the command that resumes a folder with a source, quoted for a shell."""
    sweep = ["-m"] if isinstance(record, SweepInfo) else []
    if isinstance(record, SweepInfo) and record.checkpoint:
        sweep += ["--checkpoint", record.checkpoint]
    spec, *words = source.arguments()
    spec = f"./{spec}" if spec.startswith("-") else spec  # a file that is called like an option
    kind = record.kind if isinstance(record, SweepInfo | RunInfo) else "run"
    return shlex.join(["rolegraph", kind, spec, *words, *sweep, "--resume", "--out", str(folder)])


def is_sealed(record: SourceRecord) -> bool:
    """Return True if the settings bear a seal by this user's key: the user's commands wrote or trusted
    them."""
    try:
        return hmac.compare_digest(record.seal.encode(errors="replace"), _seal(record).encode())
    except RolegraphError:
        return False


def is_this_machine(url: str | None) -> bool:
    """Return True for a URL of this machine, to which keys may be sent."""
    try:
        return url is None or is_here(url)
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


def _settings_folder() -> Path:
    """Return the folder of the user's settings, in `$XDG_CONFIG_HOME` or `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rolegraph"


def _make_settings_folder() -> Path:
    """Create the folder of the user's settings, which only the user can read; raises WorldError."""
    folder = _settings_folder()
    with os_errors_as(WorldError, f"cannot write {folder}"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _trusted() -> Mapping[str, str]:
    """Return the digest of each trusted file by its path; none where the settings cannot be read."""
    try:
        return TypeAdapter(dict[str, str]).validate_json((_settings_folder() / TRUSTED).read_bytes())
    except (OSError, ValueError):
        return {}


def _digest(file: Path) -> str:
    return sha256(_bytes(file)).hexdigest()


def _bytes(file: Path) -> bytes:
    with os_errors_as(UsageError, f"cannot read {file}"):
        return read_bytes(file, WHOLE_FILE)


def _seal(record: SourceRecord) -> str:
    """Return the seal of settings, an HMAC by the user's key; raises WorldError where the key cannot be made.

    Imports are sealed with their whole path: a file of the same name in another folder is another one.
    """
    source = record.source
    imports = tuple(str(Path(name).absolute()) for name in source.imports)
    fields = source_fields(replace(source, spec=record.spec, imports=imports))
    return hmac.new(_key(), json.dumps(fields).encode(), "sha256").hexdigest()


def _key() -> bytes:
    """Return the secret key in the user's settings folder; create it if missing. Raises WorldError."""
    file = _make_settings_folder() / "seal.key"
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
