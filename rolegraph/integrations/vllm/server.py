"""Models at a vLLM server.

`/v1/completions` accepts a list of ids in every version. With `return_token_ids` the answer has the prompt's
ids, which `/inference/v1/generate` leaves out in older versions. Fields as in vLLM's
`entrypoints/openai/completion/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolegraph.engine.errors import ModelError
from rolegraph.engine.models.keys import VLLM
from rolegraph.engine.models.token_server import Adapter, ServerAnswer, TokenServer, best_of
from rolegraph.engine.models.tokens import SampledTokens
from rolegraph.engine.models.typed_json import decode


class _VLLMLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[Any]


class _VLLMChoice(Struct):
    text: str
    finish_reason: str | None
    logprobs: _VLLMLogprobs
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _VLLMAnswer(Struct):
    choices: list[_VLLMChoice]


class _Likeliest(Struct):
    top_logprobs: list[dict[str, Any] | None] | None = None


class _ProbeChoice(Struct):
    logprobs: _Likeliest


class _ProbeAnswer(Struct):
    """Likeliest tokens at each position of an answer; only the probe reads them."""

    choices: list[_ProbeChoice]


class VLLMServer(TokenServer):
    """Model at a vLLM server (0.10.2 or later)."""

    RULE = VLLM
    PROCESSED = "start vLLM with --logprobs-mode processed_logprobs"
    LOADS = "start vLLM with --enable-lora --max-lora-rank N, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"

    HOTTEST = 2.0

    async def load_adapter(self, name: str, version: int, folder: str) -> None:
        """Load an adapter into the vLLM server under a name, in place of its earlier version."""
        body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
        await self._load("/v1/load_lora_adapter", body)
        self.adapter = Adapter(name, version)

    async def _sample(self, ids: Sequence[int], params: Mapping[str, Any], top: int = 0) -> ServerAnswer:
        body: dict[str, Any] = {
            **params,
            "model": self.adapter.name if self.adapter else self.name,
            "prompt": list(ids),
            "logprobs": top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if self.adapter:
            # The prefix cache goes by the adapter's name, and would serve older weights' keys and values:
            # vllm-project/vllm#42125.
            body["cache_salt"] = self.adapter.salt
        content = await self._post("/v1/completions", body)
        try:
            choice = decode(content, _VLLMAnswer).choices[0]
            likeliest = decode(content, _ProbeAnswer).choices[0].logprobs.top_logprobs if top else None
            scored_ids = [int(token.removeprefix("token_id:")) for token in choice.logprobs.tokens]
        except (ValueError, IndexError) as error:
            raise self._misread(error) from error
        if choice.token_ids is None or choice.prompt_token_ids is None:
            raise ModelError(
                f"{self.url} gives no token ids: expected vLLM 0.10.2 or later, and no gateway that drops "
                "return_token_ids"
            )
        scores, finish = choice.logprobs, self._finish(choice.finish_reason)
        first_likeliest = (likeliest or [None])[0]
        return ServerAnswer(
            SampledTokens(choice.token_ids, scores.token_logprobs, finish),
            scored_ids,
            choice.text,
            choice.prompt_token_ids,
            best_of(first_likeliest.values()) if first_likeliest else None,
        )

    def _limit(self, tokens: int) -> dict[str, Any]:
        return {"max_tokens": tokens}

    def _seed(self, seed: int) -> dict[str, Any]:
        return {"seed": seed}
