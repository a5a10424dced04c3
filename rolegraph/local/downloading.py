"""Downloads the adapter of a checkpoint from a Tinker service, for `rolegraph export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import httpx

from rolegraph.engine.connections import route
from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.models.checkpoints import whereabouts
from rolegraph.engine.models.download import fetch_adapter
from rolegraph.engine.models.tinker import Pulse, open_session, quiet, saying_why, service_message
from rolegraph.engine.models.tinker_sdk import close, created, rest_client, tinker
from rolegraph.engine.models.types import ServedModel
from rolegraph.engine.spec import ModelRef


async def download_adapter(path: str, folder: Path, base_url: str | None = None) -> str:
    """Download the adapter of a training checkpoint, in PEFT's form. Opens a training session at the service.

    Args:
        path: Path of the checkpoint, `tinker://RUN/weights/NAME`.
        folder: An existing folder, which receives the adapter's two files.
        base_url: URL of the service; None for the service that the environment names, or Tinker's own.

    Returns:
        The name of the base model.

    Raises:
        UsageError: There is no key, or no such checkpoint.
        WorldError: The service or the download fails.
    """
    served_model = ServedModel(ModelRef(provider="tinker", base_url=base_url), trusted_url=base_url)
    try:
        session = await open_session(served_model)
    except UsageError as error:
        if base_url is not None:
            raise
        raise UsageError(f"{error} {whereabouts(path)}") from error  # another service may be meant
    heartbeat = Pulse(session.url)
    status: Literal["success", "errored"] = "errored"
    rest_api = rest_client(session.service, session.url, session.key)
    load_client = partial(session.service.create_training_client_from_state, path)
    try:
        with saying_why(session.url):
            base = (await heartbeat.result(rest_api.get_weights_info_by_tinker_path(path))).base_model
            client = await heartbeat.result(created(load_client))
            quiet(client)
            await fetch_adapter(client, rest_api, heartbeat, folder)
        status = "success"
        return base
    except (tinker.APIStatusError, tinker.RequestFailedError) as error:
        reason = service_message(error)
        text = f"{session.url} does not give the weights {path}: {reason}. {whereabouts(path)}"
        raise UsageError(text) from error
    except (httpx.HTTPError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise WorldError(f"cannot download {path}{route(session.url)}: {reason}") from error
    finally:
        close(session.service, status)
