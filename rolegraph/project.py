"""`rolegraph.toml` beside a spec: imports, permissions and default flags, once a user trusts the file.

A spec cannot name code. The file can, so it counts only where its digest is one that the user of this machine
has said yes to: a folder from somebody else changes nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rolegraph.engine.errors import UsageError, os_errors_as
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records import Source
from rolegraph.engine.records.files import read_bytes
from rolegraph.engine.records.jsonl import write_whole
from rolegraph.sealing import make_settings_folder, recorded_settings, seal, settings_folder

PROJECT_FILE = "rolegraph.toml"
TRUSTED = "trusted.json"


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
    known = _trusted().get(str(file.resolve())) if file.is_file() else None
    return known is not None and known == _digest(file)


def trust(folder: str | Path) -> Path:
    """Trust what a folder asks for in its present state: its imports will run.

    Args:
        folder: The folder of a `rolegraph.toml`, or of a run, training or sweep that is to be resumed.

    Returns:
        The file or the run's folder.

    Raises:
        UsageError: The folder has no such file, or the file is not valid.
        WorldError: The user's settings cannot be written.
    """
    if recorded_settings(folder) is not None:
        seal(Path(folder))
        return Path(folder)
    file = Path(folder) / PROJECT_FILE
    read_project(file)
    trusted = {**_trusted(), str(file.resolve()): _digest(file)}
    write_whole(make_settings_folder() / TRUSTED, json.dumps(trusted, indent=1).encode())
    return file


def _trusted() -> Mapping[str, str]:
    """Return the digest of each trusted file by its path; none where the settings cannot be read."""
    try:
        found: object = json.loads((settings_folder() / TRUSTED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _digest(file: Path) -> str:
    return sha256(_bytes(file)).hexdigest()


def _bytes(file: Path) -> bytes:
    with os_errors_as(UsageError, f"cannot read {file}"):
        return read_bytes(file, WHOLE_FILE)
