"""Models of the Hugging Face hub: their files, sizes, digests and licences."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rolegraph.engine.connections import naming_variables
from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.limits.models import HUB_FILES
from rolegraph.local.fetching.downloads import CONNECT_SECONDS, REFUSED, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

# No pickle, no Python: a model that needs either is refused where it is loaded.
_WANTED = re.compile(
    r"(adapter_)?model[\w.-]*\.safetensors|[\w.-]+\.(json|jinja|model|tiktoken)|merges\.txt|vocab\.txt|LICENSE[\w.-]*",
    re.ASCII,
)
"""Names of a model folder's files; those in other folders of a repository are other forms of the model."""
_HTTP_SERVER_FAULT = 500


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model's files on the hub at one revision."""

    files: tuple[RemoteFile, ...]
    headers: Mapping[str, str]
    """Headers of the downloads, with the user's token for the hub if there is one."""
    license: str
    revision: str


async def find_on_hub(repo: str) -> HubModel:
    """Ask the hub for the files of a model.

    Args:
        repo: ORG/MODEL.

    Raises:
        UsageError: The hub has no such model, refuses the user, or has no safetensors of it.
        WorldError: The hub does not answer.
    """
    with naming_variables("HF_"):
        import huggingface_hub as hub
        from huggingface_hub import utils
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    try:
        api = cast("Any", hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT")))
        ask = partial(api.model_info, repo, files_metadata=True, timeout=CONNECT_SECONDS)
        info: Any = await asyncio.to_thread(ask)
    except HFValidationError as error:
        raise UsageError(f"{repo} is no model of the hub: {first_line(error)}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status >= _HTTP_SERVER_FAULT:
            raise WorldError(f"the hub answers with HTTP {status}") from error
        log_in = "; log in (hf auth login) and accept its conditions on its page" if status in REFUSED else ""
        raise UsageError(f"the hub has no model {repo} for you: HTTP {status}{log_in}") from error
    except Exception as error:  # offline mode, and errors of whichever HTTP library the client uses
        raise WorldError(f"the hub does not answer: {first_line(error)}") from error
    names = [(it.rfilename, it) for it in info.siblings or () if _WANTED.fullmatch(it.rfilename)]
    if not any(name.endswith(".safetensors") for name, _ in names):
        raise UsageError(f"{repo} has no weights in the form of safetensors on the hub")
    if len(names) > HUB_FILES.most:
        raise UsageError(HUB_FILES.exceeded(f"{repo} has"))
    files = [
        RemoteFile(
            name,
            hub.hf_hub_url(repo, name, revision=info.sha, endpoint=api.endpoint),
            it.size or 0,
            it.lfs.sha256 if it.lfs else None,
        )
        for name, it in names
    ]
    stated = getattr(info.card_data, "license", None)
    return HubModel(
        tuple(files), cast("Any", utils).build_hf_headers(), str(stated or "not stated"), str(info.sha)
    )
