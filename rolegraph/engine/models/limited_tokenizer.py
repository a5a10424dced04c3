"""Tokenizer of a model's folder, used in a process with limits, since the folder is untrusted.

The Jinja of its chat template and the patterns of its `tokenizer.json` may take any time and memory.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rolegraph.engine.errors import FOREIGN_ERRORS, ModelError, describe_error
from rolegraph.engine.limits.answers import EPISODE_SIZE
from rolegraph.engine.vocabulary.isolation import CallLimit, shared_isolation
from rolegraph.local.launcher import BASE_MODEL

SECONDS = 10.0
"""Time limit of one call; an honest one takes at most a second."""
_loaded: dict[str, Any] = {}
"""Tokenizers of a worker by their digest."""


def limit_tokenizer(tokenizer: Any, source: str | Path) -> Any:
    """Return a tokenizer of `transformers` with limits.

    Args:
        tokenizer: The tokenizer.
        source: The folder or name that it was loaded from; the shipped model's gets no limits.
    """
    is_shipped = Path(source).resolve() == BASE_MODEL.resolve()
    return tokenizer if is_shipped else LimitedTokenizer(tokenizer)


class LimitedTokenizer:
    """Tokenizer whose calls have limits; after a call has exceeded one, every call fails at once.

    Other attributes are those of the tokenizer itself.

    Args:
        tokenizer: A tokenizer of `transformers`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pickled = pickle.dumps(tokenizer)
        self._digest = hashlib.sha256(self._pickled).hexdigest()
        self._fault: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def rebuilt(self, build: Callable[[Any], Any]) -> LimitedTokenizer:
        """Apply `build` to the tokenizer inside, and return the result wrapped in the same limits."""
        return LimitedTokenizer(build(self._tokenizer))

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        """Render a chat as text; raises TemplateError."""
        return self._call(TemplateError, "apply_chat_template", conversation, **options)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the token ids of a text; raises ModelError."""
        return self._call(_failed, "encode", text, **options)

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Return the text of token ids; raises ModelError."""
        return self._call(_failed, "decode", token_ids, **options)

    def _call(self, failed: Callable[[str], Exception], method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the tokenizer in a worker process with limits; on failure raise
        `failed(reason)`."""
        if self._fault is not None:
            raise failed(self._fault)
        try:
            # Few calls carry the tokenizer, which has megabytes.
            for pickled in (None, self._pickled):
                use = _Use(self._digest, pickled)
                result = shared_isolation().run_blocking(use, method, arguments, options, limit=SECONDS)
                if result is not None:
                    return result
        except TemplateError:
            raise
        except CallLimit as error:
            self._fault = f"it {error}"
            raise failed(self._fault) from None
        except FOREIGN_ERRORS as error:
            raise failed(describe_error(error)) from None


def _failed(reason: str) -> ModelError:
    return ModelError(f"The model's tokenizer fails: {reason}")


class _Use:
    """Picklable function that calls a method of a tokenizer in a worker process.

    The worker loads the tokenizer before the call's time limit begins.
    """

    def __init__(self, digest: str, pickled: bytes | None) -> None:
        self.digest, self.pickled = digest, pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.pickled is not None:
            _loaded[self.digest] = pickle.loads(self.pickled)

    def __call__(self, method: str, arguments: Any, options: Any) -> Any:
        """Call `method` of the worker's tokenizer and return its result; None where the worker has not loaded
        it."""
        if self.digest not in _loaded:
            return None
        with _no_traces(), panics_as_errors():
            result = getattr(_loaded[self.digest], method)(*arguments, **options)
        if len(result) > EPISODE_SIZE.most:
            raise TemplateError(EPISODE_SIZE.exceeded("the chat has"))
        return result


@contextmanager
def panics_as_errors() -> Generator[None]:
    """Convert a panic of the tokenizer's Rust code, which is no Exception, to RuntimeError within a block."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # its class cannot be imported
            raise
        raise RuntimeError(describe_error(error)) from None


@contextmanager
def _no_traces() -> Generator[None]:
    """Discard standard error within a block, because a panic in the tokenizer's Rust code prints traces to
    it."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
