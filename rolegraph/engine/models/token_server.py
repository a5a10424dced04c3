"""Models at vLLM and SGLang with token ids in and out, so that no conversation is tokenized again.

The chat template is applied here, as for a Tinker service. Every answer is checked: a server or gateway that
tokenizes text again is refused with the first token that differs. The integrations of vLLM and SGLang have
the routes and fields.
"""

from __future__ import annotations

import math
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import httpx
import openai

from rolegraph.engine.errors import ModelError, UsageError, WorldError, did_you_mean
from rolegraph.engine.models.keys import KeyRule
from rolegraph.engine.models.openai import ModelCard, errors_of_calls, list_models, open_client
from rolegraph.engine.models.tokenizer import open_chat
from rolegraph.engine.models.tokens import SampledTokens, answer_limit, completion, tokenize
from rolegraph.engine.models.types import Completion, Request, ServedModel
from rolegraph.engine.prompts import ChatFormat, TokenizedPrompt
from rolegraph.engine.records.schema import LOGPROBS, TOKEN_IDS

_PROBE_TEMPERATURE = 2.0
"""Highest temperature that all servers accept."""
_PROBE_DIFFERENCE = 0.1
"""Least change of the likeliest token's log-probability that counts as an effect of the temperature."""
_NOT_COMPARED = re.compile("[\\s\N{REPLACEMENT CHARACTER}]")
"""Characters that differ between decoding token by token, as servers do, and decoding all at once."""
# A server would take these from the model's generation_config.json.
_WHOLE_VOCABULARY: Mapping[str, float] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class ServerAnswer(NamedTuple):
    """Unchecked answer of a token server: sampled tokens, their text, and the prompt that the server saw."""

    sampled: SampledTokens
    scored: Sequence[int]
    """Token ids to which the log-probabilities belong."""
    text: str
    prompt: Sequence[int] | int
    """Ids of the prompt; their number if this version of the server returns no ids."""
    best: float | None = None
    """Log-probability of the likeliest first token; None unless requested."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter that a server has loaded."""

    name: str
    version: int
    """Number of updates of its weights."""
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Key of the server's prefix cache for this adapter, new for each load."""


@dataclass(eq=False)
class TokenServer(ABC):
    """Client of a server that samples from token ids, and of the LoRA adapters that it loads; see `open`."""

    client: openai.AsyncOpenAI
    url: str
    """URL of the server without `/v1` and without a query."""
    key: str | None
    name: str
    """The server's name for the model, or for an adapter that it was started with."""
    base: str
    """The server's name for the base model."""
    chat: ChatFormat
    context: int | None
    """Largest number of tokens of prompt and answer together; None if the server does not state it."""
    adapter: Adapter | None = None
    """Adapter with the weights in training; None samples from the model itself."""
    is_processed: bool = True
    """False for a server that computes log-probabilities before it applies the temperature."""

    RULE: ClassVar[KeyRule]
    PROCESSED: ClassVar[str]
    """Advice for a server whose log-probabilities are computed before temperature."""
    LOADS: ClassVar[str]
    """Advice for a server that loads no adapters."""
    HOTTEST: ClassVar[float] = math.inf
    """Highest temperature that the server accepts."""

    @classmethod
    async def open(cls, served: ServedModel) -> Self:
        """Open the model or adapter that `served` names, or the server's first model; errors as in
        `open_served`."""
        ref, rule = served.ref, cls.RULE
        if ref.checkpoint is not None:
            raise UsageError(
                f"model: {ref.provider} takes no checkpoint; write it to a folder with `rolegraph export`, "
                f"give the server that adapter, and write {ref.provider}:NAME with the adapter's name"
            )
        address, mark, query = rule.url(ref.base_url).partition("?")
        url = address.rstrip("/").removesuffix("/v1")
        key = rule.key(url, explicit=served.api_key, trusted_url=served.trusted_url)
        client = open_client(served, rule, f"{url}/v1{mark}{query}", key)
        try:
            cards = await list_models(client, f"{url}/v1", key, rule)
            card = _card(cards, ref.name, url)
            base = next((model_card for model_card in cards if model_card.id == card.parent), card)
            chat = await open_chat(_tokenizer_of(base), served.tokenizer_dir)
            server = cls(client, url, key, card.id, base.id, chat, base.max_model_len)
            await server.probe()
        except ModelError as error:
            await client.close()
            raise WorldError(f"cannot sample from {ref}: {error}") from error
        except BaseException:
            await client.close()
            raise
        return server

    async def complete(self, request: Request) -> Completion:
        """Answer one request.

        Raises:
            ModelError: The server fails, or returns other tokens than it sampled.
            UsageError: The role samples at a temperature that the server does not accept.
        """
        temperature = request.sampling.temperature
        if temperature > self.HOTTEST:
            raise UsageError(
                f"{self.url} takes temperatures up to {self.HOTTEST:g}, and sampling.temperature of role "
                f"{request.id.node.role} is {temperature:g}"
            )
        if temperature not in (0.0, 1.0) and not self.is_processed:
            raise ModelError(
                f"{self.url} gives log-probabilities before temperature, and the role samples at temperature "
                f"{temperature:g}: {self.PROCESSED}, or sample at 1"
            )
        prompt = await tokenize(self.chat, request)
        adapter = self.adapter  # another may be loaded during the call: then part of the answer is newer
        answer = await self._sample(prompt.ids, self._params(request, prompt))
        self._check(prompt.ids, answer)
        version = None if adapter is None else adapter.version
        return completion(self.chat, request, prompt, answer.sampled, self.url, version)

    async def probe(self) -> None:
        """Sample twice to find out if the server's log-probabilities depend on temperature, and set
        `is_processed`; raises ModelError."""
        prompt, logprobs = self.chat.turn("Hello"), list[float]()
        for temperature in (1.0, _PROBE_TEMPERATURE):
            params = {"temperature": temperature, "top_p": 1.0, **_WHOLE_VOCABULARY, **self._limit(1)}
            answer = await self._sample(prompt, params, top=1)
            self._check(prompt, answer)
            if answer.best is not None:
                logprobs.append(answer.best)
        self.is_processed = len(logprobs) == 2 and abs(logprobs[0] - logprobs[1]) > _PROBE_DIFFERENCE

    @abstractmethod
    async def load_adapter(self, name: str, version: int, folder: str) -> None:
        """Load an adapter in PEFT's form, and sample from it from now on; it replaces an adapter of that
        name.

        Args:
            name: Name of the adapter at the server.
            version: Number of updates of its weights.
            folder: Absolute path of the adapter's folder, which must be the same on the server's machine.

        Raises:
            ModelError: The server does not load the adapter.
        """

    async def aclose(self) -> None:
        """Close the HTTP connections to the server."""
        await self.client.close()

    @abstractmethod
    async def _sample(self, ids: Sequence[int], params: Mapping[str, Any], top: int = 0) -> ServerAnswer:
        """Send `ids` and sample an answer, with the `top` likeliest tokens at each position; raises
        ModelError."""

    @abstractmethod
    def _limit(self, tokens: int) -> dict[str, Any]:
        """Return the request field, in this server's form, that limits an answer to `tokens` tokens."""

    @abstractmethod
    def _seed(self, seed: int) -> dict[str, Any]:
        """Return the request field, in this server's form, that sets the sampling seed."""

    def _params(self, request: Request, prompt: TokenizedPrompt) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **_WHOLE_VOCABULARY,
            "stop": list(sampling.stop),
            "stop_token_ids": list(self.chat.end_ids),
            "skip_special_tokens": False,
            **self._limit(answer_limit(prompt, sampling.max_tokens, self.context)),
            **({} if request.seed is None else self._seed(request.seed)),
        }

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Send a request; return the content of the answer. Raises ModelError."""
        async with errors_of_calls(self.url, self.key, self.RULE):
            answer = await self.client.post(f"{self.url}{path}", cast_to=httpx.Response, body=dict(body))
        return answer.content

    async def _load(self, path: str, body: Mapping[str, Any]) -> None:
        """Ask the server to load an adapter; raises a ModelError that names the server options needed for
        it."""
        try:
            await self._post(path, body)
        except ModelError as error:
            raise ModelError(f"cannot load an adapter: {error} ({self.LOADS})") from error

    def _check(self, prompt: Sequence[int], answer: ServerAnswer) -> None:
        """Raise ModelError unless the server saw this prompt, and the answer's ids, log-probabilities and
        text agree."""
        if isinstance(answer.prompt, int):
            if answer.prompt != len(prompt):
                raise self._again(f"the prompt of {len(prompt)} tokens has {answer.prompt} there")
        elif difference := self._difference(prompt, answer.prompt):
            raise self._again(f"the prompt differs: {difference}")
        ids = answer.sampled.ids
        if difference := self._difference(answer.scored, ids):
            raise self._again(f"log-probabilities and token ids of the answer differ: {difference}")
        decoded_text, text = (_NOT_COMPARED.sub("", string) for string in (self._text(ids), answer.text))
        if not decoded_text.startswith(text):
            raise self._again(f"the answer {answer.text[:60]!r} has the ids of {self._text(ids)[:60]!r}")

    def _again(self, difference: str) -> ModelError:
        return ModelError(
            f"{self.url} does not keep tokens: {difference}. The tokenizer here is not the server's, or a "
            "gateway between tokenizes text again"
        )

    def _difference(self, expected: Sequence[int], actual: Sequence[int]) -> str:
        """Describe the first position at which two token sequences differ; empty if they are equal."""
        if [*expected] == [*actual]:
            return ""
        token_pairs = zip(expected, actual, strict=False)
        shorter_length = min(len(expected), len(actual))
        differs_at = next((index for index, (a, b) in enumerate(token_pairs) if a != b), shorter_length)
        a, b = (self._token(ids[differs_at : differs_at + 1]) for ids in (expected, actual))
        return f"token {differs_at + 1} is {b}, expected {a} ({len(actual)} and {len(expected)} tokens)"

    def _token(self, ids: Sequence[int]) -> str:
        return f"{ids[0]} {self._text(ids)!r}" if ids else "missing"

    def _text(self, ids: Sequence[int]) -> str:
        # A tokenizer raises for an id that is no index.
        return "".join(text for text, _ in self.chat.pieces(ids)) if TOKEN_IDS.holds(ids) else "no token"

    def _finish(self, reason: str | None) -> str:
        if reason not in ("stop", "length"):
            raise ModelError(f"{self.url} broke off the answer: {reason}", transient=reason == "abort")
        return reason

    def _misread(self, error: Exception) -> ModelError:
        kind = type(self).__name__.removesuffix("Server")
        return ModelError(f"{self.url} does not answer as {kind} does: {error}", transient=True)


def best_of(logprobs: Iterable[Any]) -> float | None:
    """Return the largest valid log-probability in a server's list; None without a valid one."""
    return max((logprob for logprob in logprobs if LOGPROBS.holds((logprob,))), default=None)


def _card(cards: Sequence[ModelCard], name: str | None, url: str) -> ModelCard:
    """Return the entry of the model `name`, or of the first model for None; raises UsageError for an unknown
    name."""
    names = [card.id for card in cards]
    if name is not None and name not in names:
        offered_names = f"it offers {', '.join(names[:5])}" if names else "it lists no models"
        raise UsageError(f"{url} has no model {name!r}; {did_you_mean(name, names) or offered_names}")
    chosen_card = next(
        (card for card in cards if card.id == name or (name is None and card.parent is None)), None
    )
    if chosen_card is None:
        raise UsageError(f"{url} lists no models, so it is not a server of token ids; is the URL right?")
    return chosen_card


def _tokenizer_of(card: ModelCard) -> str:
    """Return the source of a model's tokenizer: `root` if it is a folder of this machine or a name on the
    hub, else `id`."""
    root = card.root or card.id
    return root if Path(root).is_dir() or not root.startswith(("/", "~", ".")) else card.id
