"""Texts of token ids, by tokenizers that the user of this machine has fetched; nothing is downloaded.

The spec of a run's folder is untrusted. A tokenizer at a path that it names is not loaded, since that may
take any time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.engine.compile.lineage import instances_of
from rolegraph.engine.compile.policies import endpoints_of, trained_policies
from rolegraph.engine.shipped import BASE_NAME, MODELS, model_folder, names_model
from rolegraph.engine.spec import ModelRef, Spec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PiecesOf = Callable[[str, int, Sequence[int]], Sequence[str]]
"""Function from role, instance and token ids to the text of each token; the texts are empty without a
tokenizer."""
_LOOK_BACK = 6
"""Largest number of earlier tokens that may be part of one character."""


def pieces_of(spec: Spec | None) -> PiecesOf:
    """Return a function from (role, instance, token ids) to the text of each token, for the roles of a spec.

    The function returns no texts for a model whose tokenizer is neither shipped nor fetched by its name.
    """
    sources = {} if spec is None else _sources(spec)

    def pieces(role: str, index: int, ids: Sequence[int]) -> Sequence[str]:
        role_sources = sources.get(role, ())
        source = role_sources[index - 1] if index <= len(role_sources) else None
        tokenizer = None if source is None else _load(source)
        try:
            return () if tokenizer is None else _texts(tokenizer, ids)
        except OverflowError:  # a record may have a number that is no token's id
            return ()

    return pieces


def _sources(spec: Spec) -> dict[str, Sequence[Path | None]]:
    """Return by role the path of each instance's tokenizer file; None where it is not on this machine."""
    counts = {name: len(role_instances) for name, role_instances in instances_of(spec).items()}
    policy_names = trained_policies(spec, counts)
    return {
        name: [_source(endpoint.model) for endpoint in endpoints_of(spec, name, count, policy_names)]
        for name, count in counts.items()
    }


def _source(model: ModelRef) -> Path | None:
    if model.provider == "local":
        name = model.name or BASE_NAME
        return model_folder(name) / "tokenizer.json" if names_model(name) else None
    if model.provider != "tinker" or not model.name:
        return None
    if (shipped_folder := MODELS.get(model.name)) is not None:
        return shipped_folder / "tokenizer.json"
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from rolegraph.engine.models.tokenizer import hub_name

    try:
        cached_file = try_to_load_from_cache(hub_name(model.name), "tokenizer.json")
    except HFValidationError:
        return None
    return Path(cached_file) if isinstance(cached_file, str) else None


@lru_cache(8)
def _load(file: Path) -> Tokenizer | None:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # of whatever kind: the library raises a bare one
        return None


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds; a character made of several tokens belongs to the last of
    them."""

    def text(start: int, end: int) -> str:
        return tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)

    texts: list[str] = []
    written_count = 0
    for end in range(1, len(ids) + 1):
        start = max(0, min(written_count, end - 1 - _LOOK_BACK))
        whole_text, text_before = text(start, end), text(start, written_count)
        # Bytes that never become a character must not be decoded again for each that follows.
        if whole_text.endswith("\ufffd") and end < len(ids) and end - written_count < _LOOK_BACK:
            texts.append("")
            continue
        texts.append(whole_text[len(text_before) :])
        written_count = end
    return texts
