"""Downloads trained weights from a Tinker service, through the SDK."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import tinker

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.local.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.tinker import Pulse, open_session, quiet, said, saying_why
from rolegraph.engine.models.types import ServedModel
from rolegraph.engine.spec import ModelRef

_LIFE_SECONDS = 3600
"""Lifetime of the files that the service writes for the download; the least that the service accepts."""


async def download_adapter(path: str, folder: Path, base_url: str | None = None) -> str:
    """Download the adapter of a training checkpoint, in PEFT's form. Opens a training session there.

    Args:
        path: The checkpoint, `tinker://RUN/weights/NAME`.
        folder: An existing folder, which receives the adapter's two files.
        base_url: The service; None for the one that the environment names, or Tinker's own.

    Returns:
        The name of the base model.

    Raises:
        UsageError: There is no key, or no such checkpoint.
        WorldError: The service or the download fails.
    """
    session = await open_session(
        ServedModel(ModelRef(provider="tinker", base_url=base_url), trusted_url=base_url)
    )
    pulse, status = Pulse(session.url), "errored"
    rest = tinker.RestClient(base_url=session.url, api_key=session.key)
    try:
        with saying_why(session.url, session.key):
            base = (await pulse.result(rest.get_weights_info_by_tinker_path(path))).base_model
            client = await pulse.result(session.service.create_training_client_from_state(path))
            quiet(client)
            saved = await pulse.result(client.save_weights_external("export", ttl_seconds=_LIFE_SECONDS))
            try:
                urls = (await pulse.result(rest.get_external_weights_urls(saved.path))).urls
                await _fetch(urls, folder)
            finally:
                with contextlib.suppress(tinker.TinkerError):  # the service deletes it after an hour
                    await pulse.result(rest.delete_checkpoint_from_tinker_path(saved.path))
        status = "success"
        return base
    except (tinker.APIStatusError, tinker.RequestFailedError) as error:
        reason = redact(said(error), session.key)
        raise UsageError(f"{session.url} does not give the weights {path}: {reason}") from error
    except (httpx.HTTPError, OSError) as error:
        raise WorldError(f"cannot download {path}: {str(error) or type(error).__name__}") from error
    finally:
        session.service.close(status)


async def _fetch(urls: dict[str, str], folder: Path) -> None:
    """Download the adapter's two files."""
    async with httpx.AsyncClient(timeout=60, follow_redirects=True) as client:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if name not in urls:
                there = ", ".join(urls) or "nothing"
                raise WorldError(f"the service gave no {name}, but {there}")
            async with client.stream("GET", urls[name]) as answer:
                answer.raise_for_status()
                with (folder / name).open("wb") as file:
                    async for part in answer.aiter_bytes(1 << 20):
                        file.write(part)
