"""Files that only the owners of some keys can read (https://age-encryption.org). Knows no checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rolegraph.engine.limits.service import RECIPIENTS
from rolegraph.engine.local.service.trainer import RequestError

SUFFIX = ".age"


def seal(folder: Path, recipients: Sequence[str]) -> None:
    """Encrypt the files of a folder to public keys, of age or SSH; each gets the suffix `.age`.

    Raises Refused for a key that is none, and where the library for it is not installed.
    """
    try:
        pyrage: Any = import_module("pyrage")
    except ImportError as error:
        raise RequestError(
            "to encrypt weights, the service needs the package pyrage: pip install pyrage"
        ) from error
    if len(recipients) > RECIPIENTS.most:
        raise RequestError(f"{len(recipients)} recipients are too many; at most {RECIPIENTS}")
    try:
        keys = [
            (pyrage.ssh if key.startswith("ssh-") else pyrage.x25519).Recipient.from_str(key)
            for key in recipients
        ]
    except pyrage.RecipientError as error:
        raise RequestError(f"a recipient is no public key of age or SSH: {error}") from error
    for file in list(folder.iterdir()):
        pyrage.encrypt_file(str(file), str(file.with_name(file.name + SUFFIX)), keys)
        file.unlink()
