"""Tests of the tokens of a request."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.models.tokens import LONG_CHAT, tokenize
from rolegraph.engine.models.types import Request
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records import CallId, NodeId
from rolegraph.engine.spec import Sampling
from tests.models.edges import write_tokenizer


class SlowTokenizer:
    """Tokenizer that takes a text of emoji only once it is released, and then fails."""

    def __init__(self, folder: Path) -> None:
        self._inner: Any = load_tokenizer(write_tokenizer(folder))
        self.released = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        if "😀" in text and not self.released.wait(60):
            raise AssertionError("nothing else went on")
        if "😀" in text:
            raise ValueError("no emoji")
        return self._inner.encode(text, **options)


def request(text: str) -> Request:
    call = CallId("t", 0, NodeId("solver"))
    return Request([{"role": "user", "content": text}], Sampling(), None, call)


def test_a_text_that_takes_long_to_tokenize_holds_up_no_other_call(tmp_path: Path) -> None:
    tokenizer: Any = SlowTokenizer(tmp_path)
    chat = ChatFormat(tokenizer, "slow")

    async def both() -> None:
        slow = asyncio.create_task(tokenize(chat, request("😀" * LONG_CHAT)))
        await asyncio.sleep(0)  # it has begun
        assert (await tokenize(chat, request("hi"))).ids
        tokenizer.released.set()
        with pytest.raises(ModelError, match="The model's tokenizer fails: ValueError: no emoji"):
            await slow
        assert (await tokenize(chat, request("hi again"))).ids

    asyncio.run(both())
