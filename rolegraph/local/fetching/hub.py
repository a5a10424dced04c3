"""Download of a model from the Hugging Face hub: `python -P -m rolegraph.local.fetching.hub REPO FOLDER`.

Prints the revision and the licence. Runs as a process of its own: the library's downloads cannot be stopped.
"""

# huggingface_hub leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

from rolegraph.engine.connections import naming_variables
from rolegraph.engine.errors import RolegraphError, UsageError, WorldError, first_line
from rolegraph.local.fetching.program import announce, main

# No pickle, no Python: a model that needs either is refused where it is loaded.
_WANTED = re.compile(
    r"(adapter_)?model[\w.-]*\.safetensors|[\w.-]+\.(json|jinja|model|tiktoken)|merges\.txt|vocab\.txt|LICENSE[\w.-]*",
    re.ASCII,
)
"""Names of a model folder's files; those in other folders of a repository are other forms of the model."""
_CONNECT_SECONDS = 5.0
"""Seconds to wait for the hub's answer before another source is tried."""
_REFUSED = (401, 403)
_HTTP_SERVER_FAULT = 500


def download(repo: str, folder: str) -> str:
    """Download the files of a model.

    Args:
        repo: ORG/MODEL.
        folder: An existing folder.

    Returns:
        The revision and the licence, a line each.

    Raises:
        UsageError: The hub has no such model, refuses the user, or has no safetensors of it.
        WorldError: The hub does not answer, the disk is full, or a file is not the expected one.
    """
    with naming_variables("HF_"):
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    try:
        info: Any = hub.HfApi().model_info(repo, files_metadata=True, timeout=_CONNECT_SECONDS)
        files = [sibling for sibling in info.siblings or () if _WANTED.fullmatch(sibling.rfilename)]
        names = [sibling.rfilename for sibling in files]
        if not any(name.endswith(".safetensors") for name in names):
            raise UsageError(f"{repo} has no weights in the form of safetensors on the hub")
        announce(sum(sibling.size or 0 for sibling in files), Path(folder))
        hub.snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=names)
    except RolegraphError:
        raise
    except HFValidationError as error:
        raise UsageError(f"{repo} is no model of the hub: {first_line(error)}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status >= _HTTP_SERVER_FAULT:
            raise WorldError(f"the hub answers with HTTP {status}") from error
        login_hint = "; log in (hf auth login) and accept its conditions on its page"
        hint = login_hint if status in _REFUSED else ""
        raise UsageError(f"the hub has no model {repo} for you: HTTP {status}{hint}") from error
    except Exception as error:  # offline mode, and errors of whichever HTTP library the client uses
        raise WorldError(f"the hub does not give {repo}: {first_line(error)}") from error
    for file in files:
        _check(Path(folder) / file.rfilename, file)
    shutil.rmtree(Path(folder) / ".cache", ignore_errors=True)  # the library's records of the downloads
    license_ = getattr(info.card_data, "license", None) or "not stated"
    return f"{info.sha}\n{first_line(ValueError(license_))}"


def _check(path: Path, stated: Any) -> None:
    """Raise WorldError unless a file has the size and the SHA-256 that the hub states.

    The library does not check both.
    """
    size = path.stat().st_size if path.exists() else 0
    if stated.size is not None and size != stated.size:
        raise WorldError(f"{path.name} has {stated.size:,} bytes, and the hub sent {size:,}")
    if stated.lfs is None:
        return
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != stated.lfs.sha256:
        expected = f"expected {stated.lfs.sha256}: it is damaged, or another file"
        raise WorldError(f"{path.name} has the SHA-256 {digest}, {expected}")


if __name__ == "__main__":
    main(download)
