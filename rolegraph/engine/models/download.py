"""Downloads trained weights from a Tinker service, through the SDK."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import httpx

from rolegraph.engine.connections import client_options
from rolegraph.engine.errors import WorldError
from rolegraph.engine.models.tinker import Pulse
from rolegraph.engine.models.tinker_sdk import archive_url, tinker
from rolegraph.engine.records.confined import open_to_write
from rolegraph.engine.records.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, complete_config

_LIFE_SECONDS = 3600
"""Lifetime in seconds of the archive that the service writes for the download; the least that the service
accepts."""


async def _fetch_archive(url: str, folder: Path) -> None:
    """Download an archive (.tar.gz), and extract the adapter's two files."""
    with tempfile.TemporaryFile() as file:
        await _fetch(url, file)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as archive:
                members = {Path(member.name).name: member for member in archive if member.isfile()}
                for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                    content = archive.extractfile(members[name])
                    assert content is not None  # it is a file
                    with content, open_to_write(folder / name) as target:
                        shutil.copyfileobj(content, target)
            complete_config(folder)
        except (tarfile.TarError, KeyError, ValueError) as error:
            raise WorldError(f"the service gave no archive of an adapter: {error}") from error


async def fetch_adapter(
    client: tinker.TrainingClient, rest: tinker.RestClient, pulse: Pulse, folder: Path
) -> None:
    """Download the adapter that a client trains, as it is now; raises errors of the SDK, httpx and the disk.

    Args:
        client: The training client.
        rest: A client of the same service.
        pulse: The service's health check.
        folder: An existing folder, which receives the adapter's two files.
    """
    is_archive = not hasattr(client, "save_weights_external")  # an older SDK
    save_weights = client.save_weights_for_sampler if is_archive else client.save_weights_external
    saved_weights = await pulse.result(save_weights("export", ttl_seconds=_LIFE_SECONDS))
    try:
        if is_archive:
            run, _, name = saved_weights.path.removeprefix("tinker://").partition("/")
            archive = archive_url(rest, run, name.removeprefix("sampler_weights/"))
            await _fetch_archive(await pulse.result(archive), folder)
        else:
            urls = (await pulse.result(rest.get_external_weights_urls(saved_weights.path))).urls
            for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                if file not in urls:
                    raise WorldError(f"the service gave no {file}, but {', '.join(urls) or 'nothing'}")
                with open_to_write(folder / file) as target:
                    await _fetch(urls[file], target)
    finally:
        # The service deletes it after an hour.
        with contextlib.suppress(tinker.TinkerError, ValueError):
            await pulse.result(rest.delete_checkpoint_from_tinker_path(saved_weights.path))


async def _fetch(url: str, file: IO[bytes]) -> None:
    """Download the content of a URL of HTTP into an open file."""
    if urlsplit(url).scheme not in ("http", "https"):
        # TuFT gives the path of a folder on its own machine, which could be any folder on this one.
        raise WorldError(
            f"the service offers no download: it gave {url!r}, expected an http or https URL; "
            "copy the checkpoint's files from the service's own machine"
        )
    client = httpx.AsyncClient(timeout=60, follow_redirects=True, **client_options(url))
    async with client, client.stream("GET", url) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes(1 << 20):
            file.write(chunk)
