"""A `ModelRef` in, an open `Model` out. Knows which provider's file to import, and nothing of any SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.models.types import Model
    from engine.spec.models import ModelRef


async def open_model(
    ref: ModelRef,
    *,
    api_key: str | None = None,
    tokenizer_dir: Path | None = None,
    trusted_url: str | None = None,
) -> Model:
    """Open the model that `ref` names, and find out that it is there.

    `api_key` goes before the environment's. `tokenizer_dir` is the folder of the tokenizer and chat template
    (tinker; None finds them by the model's name). `trusted_url` is the endpoint that the person gave outside
    the spec, so that the environment's key may be sent there (see `engine.models.keys`).

    Raises UsageError (no key, no such model, no such file) and WorldError (nothing answers at the URL).
    """
    match ref.provider:
        case "tinker":
            from engine.models.tinker_open import open_tinker

            return await open_tinker(
                ref, api_key=api_key, tokenizer_dir=tokenizer_dir, trusted_url=trusted_url
            )
        case "openai":
            from engine.models.openai import open_openai

            return await open_openai(ref, api_key=api_key, trusted_url=trusted_url)
        case "replay":
            from engine.models.replay import Replay

            if ref.name is None:
                raise UsageError("The model `replay` needs a file: write `replay:episodes.jsonl`.")
            return Replay.from_file(Path(ref.name))
        case "local":
            raise UsageError(
                "A `local` model has no endpoint yet: start the local service first, then open a `tinker` "
                "model with its base_url."
            )
