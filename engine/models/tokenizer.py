"""A model's name or folder in, its tokenizer out. Alone in importing `transformers`; needs no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.prompts import Tokenizer
from rolegraph.engine.records.jsonl import read_json

# transformers and its hub client speak up on import and on load unless told not to; the person may still
# set these themself.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


_FAST = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""What a tokenizer is called that its tokenizer.json says all of."""


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Load the tokenizer and chat template at `source`, a folder or a model's name on the hub. Blocks.

    Raises UsageError where the folder or name has none, and WorldError where the hub cannot be reached. It
    never runs code that comes with a model.
    """
    kind = tokenizer_class(source)
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    wanted = f"the tokenizer of {str(source)!r}"
    is_folder = Path(source).is_dir()
    try:
        # None would ask at the terminal, and wait.
        tokenizer = cast(Tokenizer, kind.from_pretrained(str(source), trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        reason = first_line(error)
        if is_folder:
            raise UsageError(f"Cannot load {wanted}: {reason}") from error
        causes = _chain(error)
        if any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in causes):
            raise UsageError(
                f"Cannot find {wanted}: it is neither a folder nor a model on the hub. ({reason})"
            ) from error
        raise WorldError(
            f"Cannot load {wanted}: it is no folder here, and the model hub did not give it. ({reason})"
        ) from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"Cannot chat with {str(source)!r}: its tokenizer has no chat template. Expected a "
            "`chat_template.jinja` beside tokenizer.json, or `chat_template` in tokenizer_config.json."
        )
    return tokenizer


def tokenizer_class(source: str | Path) -> Any:
    """The class that loads a tokenizer; importing it takes seconds, loading next to nothing.

    That which finds the others imports torch, where it is installed.
    """
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        config: Any = read_json(Path(source) / "tokenizer_config.json")
    except (OSError, ValueError):
        config = None
    if isinstance(config, dict) and cast("dict[str, Any]", config).get("tokenizer_class") in _FAST:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and what caused it, outermost first."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain
