"""Loads the tokenizer of a model. The only file that imports `transformers`; needs no torch."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

from rolegraph.engine.connections import naming_variables
from rolegraph.engine.errors import UsageError, WorldError, causes, first_line, panics_as_errors
from rolegraph.engine.prompts import ChatFormat, Tokenizer
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.shipped import MODELS

# transformers and its hub client print on import and on load. A value that the person has set is kept.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


_READ = ("HF_", "TRANSFORMERS_", "TOKENIZERS_")
"""Prefixes of the environment variables that transformers and its hub client read."""
_FAST = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names of the tokenizer classes that need only a tokenizer.json."""


async def open_chat(name: str, tokenizer_dir: Path | None) -> ChatFormat:
    """Load the chat format of a model; without a folder, its tokenizer is found by the model's name."""
    source = tokenizer_dir or MODELS.get(name) or hub_name(name)
    return ChatFormat(await asyncio.to_thread(load_tokenizer, source), name)


def hub_name(name: str) -> str:
    """Return a model's name on the Hugging Face hub, without the variant that the service appends.

    >>> hub_name("Qwen/Qwen3-8B:peft:131072"), hub_name("org/model/variant"), hub_name("/models/mine")
    ('Qwen/Qwen3-8B', 'org/model', '/models/mine')
    """
    if Path(name).is_dir() or name.startswith(("/", ".")):
        return name
    return "/".join(name.partition(":")[0].split("/")[:2])


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Load a tokenizer with its chat template. Blocks; never runs code that comes with a model.

    Args:
        source: A folder, or a model's name on the hub.

    Raises:
        UsageError: The folder or name has no tokenizer, or the tokenizer no chat template.
        WorldError: The hub cannot be reached.
    """
    kind = tokenizer_class(source)
    with naming_variables(*_READ):
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    noun = f"the tokenizer of {str(source)!r}"
    is_folder = Path(source).is_dir()
    try:
        # None would ask at the terminal, and wait.
        with panics_as_errors():
            tokenizer = cast(Tokenizer, kind.from_pretrained(str(source), trust_remote_code=False))
    except Exception as error:  # transformers and tokenizers raise many types for files that are broken
        reason = first_line(error)
        if is_folder:
            raise UsageError(f"Cannot load {noun}: {reason}") from error
        if any(isinstance(it, RepositoryNotFoundError | HFValidationError) for it in causes(error)):
            raise UsageError(
                f"Cannot find {noun}: it is neither a folder nor a model on the hub. ({reason})"
            ) from error
        raise WorldError(
            f"Cannot load {noun}: it is no folder here, and the model hub did not give it. ({reason})"
        ) from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"Cannot chat with {str(source)!r}: its tokenizer has no chat template. Expected a "
            "`chat_template.jinja` beside tokenizer.json, or `chat_template` in tokenizer_config.json."
        )
    return tokenizer


def tokenizer_class(source: str | Path) -> Any:
    """Return the class that loads a tokenizer. Importing the class takes seconds, loading almost no time.

    AutoTokenizer imports torch if torch is installed, so the class is found from the config if possible.
    """
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        config: Any = read_json(Path(source) / "tokenizer_config.json")
    except (OSError, ValueError):
        config = None
    with naming_variables(*_READ):
        if isinstance(config, dict) and cast("dict[str, Any]", config).get("tokenizer_class") in _FAST:
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast
        from transformers import AutoTokenizer

        return AutoTokenizer
