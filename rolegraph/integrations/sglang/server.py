"""Models at an SGLang server, through its own `/generate`.

Fields as in SGLang's `srt/managers/io_struct.py` and `srt/sampling/sampling_params.py`. Log-probabilities are
those after the temperature and before top_p.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models.keys import SGLANG
from rolegraph.engine.models.token_server import Adapter, ServerAnswer, TokenServer, best_of
from rolegraph.engine.models.tokens import SampledTokens
from rolegraph.engine.models.typed_json import decode

_Score = tuple[Any, int, str | None]
"""(log-probability, token id, text); the log-probability is not yet checked."""


class _FinishReason(Struct):
    type: str


class _Meta(Struct):
    finish_reason: _FinishReason
    prompt_tokens: int
    output_token_logprobs: list[_Score]
    output_top_logprobs: list[list[_Score] | None] | None = None


class _Generated(Struct):
    text: str
    meta_info: _Meta
    output_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class SGLangServer(TokenServer):
    """Model at an SGLang server."""

    RULE = SGLANG
    PROCESSED = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
    LOADS = "start SGLang with --enable-lora --max-lora-rank N --lora-target-modules all"

    async def load_adapter(self, name: str, version: int, folder: str) -> None:
        """Load an adapter as NAME-VERSION, then unload the previous one.

        SGLang cannot replace an adapter in place; it finishes the calls of an adapter before unloading it.
        """
        old_adapter, new_adapter = self.adapter, f"{name}-{version}"
        await self._unload(new_adapter)  # a training that was killed may have left one of that name
        await self._load("/load_lora_adapter", {"lora_name": new_adapter, "lora_path": folder})
        self.adapter = Adapter(new_adapter, version)
        if old_adapter is not None and old_adapter.name != new_adapter:
            await self._unload(old_adapter.name)

    async def _unload(self, name: str) -> None:
        with contextlib.suppress(ModelError):  # SGLang refuses an adapter that is not loaded
            await self._post("/unload_lora_adapter", {"lora_name": name})

    async def _sample(self, ids: Sequence[int], params: Mapping[str, Any], top: int = 0) -> ServerAnswer:
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": top,
            "return_prompt_token_ids": True,
        }
        if self.adapter or self.name != self.base:
            body["lora_path"] = self.adapter.name if self.adapter else self.name
        content = await self._post("/generate", body)
        try:
            answer = decode(content, _Generated)
        except ValueError as error:
            raise self._misread(error) from error
        meta_info = answer.meta_info
        scored_tokens = [token for _, token, _ in meta_info.output_token_logprobs]
        first_likeliest = (meta_info.output_top_logprobs or [None])[0]
        return ServerAnswer(
            SampledTokens(
                scored_tokens if answer.output_ids is None else answer.output_ids,
                [logprob for logprob, _, _ in meta_info.output_token_logprobs],
                self._finish(meta_info.finish_reason.type),
            ),
            scored_tokens,
            answer.text,
            meta_info.prompt_tokens if answer.prompt_token_ids is None else answer.prompt_token_ids,
            best_of(logprob for logprob, _, _ in first_likeliest) if first_likeliest else None,
        )

    def _limit(self, tokens: int) -> dict[str, Any]:
        return {"max_new_tokens": tokens}

    def _seed(self, seed: int) -> dict[str, Any]:
        return {"sampling_seed": seed}  # counts with --enable-deterministic-inference
