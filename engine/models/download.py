"""Trained weights from a Tinker service to files of this machine, through the SDK."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import tinker

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.local.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.tinker import Pulse, said
from rolegraph.engine.models.tinker_open import open_session, quiet, saying_why
from rolegraph.engine.spec import ModelRef

_LIFE_SECONDS = 3600
"""How long the service keeps what it writes for the download; the least that it takes."""


async def download_adapter(path: str, folder: Path, base_url: str | None = None) -> str:
    """Bring the adapter of a training checkpoint into a folder, in PEFT's form; the name of its base model.

    `path` is a `tinker://RUN/weights/NAME`: the service writes it anew for others to read, which begins a
    training session there. Raises UsageError (no key, no such checkpoint) and WorldError.
    """
    session = await open_session(ModelRef(provider="tinker", base_url=base_url), trusted_url=base_url)
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
                with contextlib.suppress(tinker.TinkerError):  # it goes by itself, an hour later
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
    """The adapter's two files; what else there is stays there."""
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
