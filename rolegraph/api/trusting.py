"""Trust in folders: the options that a resumed command may take from a run's folder, and `rolegraph.toml`
beside a spec.

`run.json` and `sweep.json` name code that was imported, permissions and an address that got a key. Anybody
may have written these files, so the user must give such options again, on the command line or in a
`rolegraph.toml`.

A spec cannot name code. A `rolegraph.toml` can, so it takes effect only after the user of this machine has
trusted it in its present state: the file of a copied folder has no effect.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rolegraph.api.workflow import Workflow
from rolegraph.engine.connections import is_here
from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records import RunInfo, Source, SweepInfo
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.files import read_bytes
from rolegraph.engine.records.info import UNREADABLE, SourceRecord
from rolegraph.engine.shipped import names_model

PROJECT_FILE, TRUSTED = "rolegraph.toml", "trusted.json"
LONGEST_SHOWN = 2_000
"""Largest number of characters of a command in a message."""


class Project(BaseModel):
    """Contents of a `rolegraph.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    imports: tuple[str, ...] = ()
    """Python files that register rewards, parsers and so on, relative to the file's folder."""
    allow: tuple[str, ...] = ()
    """Permissions of the folder's specs, in the form of `--allow`."""
    flags: Mapping[str, bool | int | float | str] = {}
    """Default values of the command's flags, without dashes in front: `concurrency = 8`."""


def project_of(spec: str | Path) -> Project | None:
    """Read the trusted `rolegraph.toml` beside a spec.

    Args:
        spec: Path of a spec file, or the name of a shipped spec.

    Returns:
        The contents, with imports as paths from the working folder; None if there is no such file, or if it
        is not trusted in its present state.

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
        source: The spec and its options, which are kept.

    Returns:
        The completed source; without such a file, `source` unchanged.

    Raises:
        UsageError: The trusted file is not valid.
    """
    project = project_of(source.spec) if source.spec else None
    if project is None:
        return source
    imports = dict.fromkeys([*project.imports, *source.imports])
    allow = dict.fromkeys([*project.allow, *source.allow])
    return replace(source, imports=tuple(imports), allow=tuple(allow))


def without_project(source: Source) -> Source:
    """Return a source without the imports and permissions of the trusted `rolegraph.toml` beside its spec.

    A command does not need these options: `with_project` adds them.

    Args:
        source: The spec and its options.

    Returns:
        The shorter source; without such a file, `source` unchanged.

    Raises:
        UsageError: The trusted file is not valid.
    """
    project = project_of(source.spec) if source.spec else None
    if project is None:
        return source
    files = {Path(name).resolve() for name in project.imports}
    imports = tuple(name for name in source.imports if Path(name).resolve() not in files)
    return replace(source, imports=imports, allow=tuple(p for p in source.allow if p not in project.allow))


def read_project(file: Path) -> Project:
    """Read a `rolegraph.toml`, trusted or not, without any effect of its content.

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
        first_fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, first_fault["loc"]))
        raise UsageError(f"{file}: {place}: {first_fault['msg']}; expected imports, allow, flags") from error


def is_trusted(file: Path) -> bool:
    """Return True if the user of this machine trusts a `rolegraph.toml` in its present state.

    Args:
        file: The file.

    Returns:
        True if it is trusted; False also if there is no such file.
    """
    return file.is_file() and _trusted().get(str(file.resolve())) == _digest(file)


def trust(folder: str | Path) -> Path:
    """Trust the `rolegraph.toml` of a folder in its present state: its imports will run.

    Args:
        folder: The folder of the file.

    Returns:
        The file.

    Raises:
        UsageError: There is no such file, or the file is not valid.
        WorldError: The user's settings cannot be written.
    """
    file = Path(folder) / PROJECT_FILE
    read_project(file)
    trusted_digests = {**_trusted(), str(file.resolve()): _digest(file)}
    settings_folder = _settings_folder()
    with os_errors_as(WorldError, f"cannot write {settings_folder}"):
        settings_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(settings_folder / TRUSTED, json.dumps(trusted_digests, indent=1).encode())
    return file


def resumed_source(folder: Path, record: SourceRecord, given: Source | None) -> Source:
    """Complete a command's source from the source that a folder records.

    The folder's spec, overrides and model are used. Imports, permissions and an address of another machine
    are used only if the command or a trusted `rolegraph.toml` gives them.

    Args:
        folder: Folder of a run, training or sweep.
        record: The settings that the folder records.
        given: The source of the command; fields that are set replace those of the folder.

    Raises:
        UsageError: The folder was started with imports, permissions or such an address that the command does
            not give, or with a path that JSON cannot record.
    """
    given_source = given or Source()
    merged = given_source.with_defaults(record.source)
    typed, before = (without_project(replace(s, spec=merged.spec)) for s in (given_source, record.source))
    for path in (merged.spec or "", *merged.imports, merged.model or ""):
        if UNREADABLE in path and not Path(path).exists():
            raise UsageError(
                f"{folder} was started with {path}, a path with bytes that are not UTF-8, which its record "
                "cannot hold; name it again: rolegraph … SPEC --resume --out FOLDER"
            )
    missing_source = Source(
        base_url=None if typed.base_url else _foreign_url(before),
        imports=() if typed.imports else before.imports,
        allow=() if typed.allow else before.allow,
    )
    if missing_source != Source():
        raise UsageError(_give_again(folder, record, missing_source))
    return with_project(replace(merged, imports=typed.imports, allow=typed.allow))


def check_models(folder: Path, record: SourceRecord, given: Source | None, flow: Workflow) -> None:
    """Check that a folder by itself neither sends a file of this machine to another one nor loads a model's
    folder.

    Overrides may change addresses, and a model may be any file, which a spec alone may not. A model's folder
    has a tokenizer, which runs in this process.

    Args:
        folder: Folder of a run, training or sweep.
        record: The settings that the folder records.
        given: The source of the command.
        flow: The workflow that is resumed.

    Raises:
        UsageError: The workflow uses a model at a URL of another machine that the command does not give,
            while its overrides or its model come only from the folder; or it loads a model's folder, and the
            command gives neither the spec nor the model.
    """
    given_source, old_source = given or Source(), record.source
    missing_source = Source(
        overrides=() if given_source.overrides else old_source.overrides,
        model=None if given_source.model else old_source.model,
    )
    loads = _loads_folder(flow) and not given_source.model and (old_source.model or not given_source.spec)
    if loads or (missing_source != Source() and _asks_elsewhere(flow)):
        spec = None if given_source.spec else old_source.spec
        raise UsageError(_give_again(folder, record, replace(missing_source, spec=spec)))


def options_to_repeat(flow: Workflow) -> list[str]:
    """Return the arguments that a command must repeat to resume a workflow.

    Args:
        flow: The workflow.

    Returns:
        Its imports, permissions and address of another machine, except those of a trusted `rolegraph.toml`;
        if `check_models` requires it, also the spec, its overrides and its model.
    """
    source = without_project(flow.source)
    options = Source(imports=source.imports, allow=source.allow, base_url=_foreign_url(source))
    if _loads_folder(flow) or ((source.overrides or source.model) and _asks_elsewhere(flow)):
        options = replace(options, spec=source.spec, overrides=source.overrides, model=source.model)
    return options.arguments()


def _give_again(folder: Path, record: SourceRecord, missing: Source) -> str:
    """Return the message that a resumed command must give options again, with the complete command.

    Args:
        folder: The folder that is resumed.
        record: The settings that the folder records.
        missing: The options that the command must give.
    """
    options = missing.arguments()
    sweep_flag = ["-m"] if isinstance(record, SweepInfo) else []
    if isinstance(record, SweepInfo) and record.checkpoint:
        sweep_flag += ["--checkpoint", record.checkpoint]
    kind = record.kind if isinstance(record, SweepInfo | RunInfo) else "run"
    words = typed_words("--resume") or [kind, *sweep_flag, "--resume"]
    if not any(word.split("=")[0] == "--out" for word in words):
        words = [*words, "--out", str(folder)]
    command = shlex.join(["rolegraph", *words, *options])[:LONGEST_SHOWN]
    return (
        f"{folder} was started with {shlex.join(options)[:LONGEST_SHOWN]}, and anybody may have written that "
        f"into the folder; if you want it, give it again:\n  {command}"
    )


def typed_words(word: str) -> list[str]:
    """Return the arguments of this process; empty if the program is not `rolegraph`, or if `word` is not
    among them."""
    program, *words = sys.argv
    return words if Path(program).name == "rolegraph" and word in words else []


def _foreign_url(source: Source) -> str | None:
    """Return the base URL of a source; None for one of this machine or of the trusted `rolegraph.toml`."""
    url, project = source.base_url, project_of(source.spec) if source.spec else None
    is_own = is_this_machine(url) or (project and url == project.flags.get("base-url"))
    return None if is_own else url


def _asks_elsewhere(flow: Workflow) -> bool:
    """Return True if a spec of a workflow names a URL of another machine for a model, other than the
    source's."""
    urls = (part.get("base_url") for part in _parts(flow))
    return any(
        isinstance(url, str) and url != flow.source.base_url and not is_this_machine(url) for url in urls
    )


def _loads_folder(flow: Workflow) -> bool:
    """Return True if a spec of a workflow names a model folder that is neither shipped nor fetched."""
    models = (part for part in _parts(flow) if part.get("provider") == "local" and not part.get("base_url"))
    return any(isinstance(name := part.get("name"), str) and not names_model(name) for part in models)


def _parts(flow: Workflow) -> Iterator[Mapping[str, object]]:
    """Yield every mapping in the specs of a workflow, such as a role or a model."""
    values: list[object] = [plan.spec.model_dump() for plan in (flow.plan, *flow.plan.validations.values())]
    for value in values:  # grows
        if isinstance(value, Mapping):
            part = cast("Mapping[str, object]", value)
            yield part
            values += part.values()
        elif isinstance(value, list | tuple):
            values += cast("Sequence[object]", value)


def is_this_machine(url: str | None) -> bool:
    """Return True for a URL of this machine, to which keys may be sent."""
    try:
        return url is None or is_here(url)
    except ValueError:
        return False


def _settings_folder() -> Path:
    """Return the folder of the user's settings, in `$XDG_CONFIG_HOME` or `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rolegraph"


def _trusted() -> Mapping[str, str]:
    """Return the digest of each trusted file, by its path; empty if the settings cannot be read."""
    try:
        return TypeAdapter(dict[str, str]).validate_json((_settings_folder() / TRUSTED).read_bytes())
    except (OSError, ValueError):
        return {}


def _digest(file: Path) -> str:
    return sha256(_bytes(file)).hexdigest()


def _bytes(file: Path) -> bytes:
    with os_errors_as(UsageError, f"cannot read {file}"):
        return read_bytes(file, WHOLE_FILE)
