"""Answers from a Tinker service, hosted or at any URL, through the SDK's own sampling client.

In: messages. Out: text and reasoning, with every token id and its log-probability at the sampling
temperature. The chat format is the model's own (`engine.models.chat`). Retrying is the scheduler's business:
an error here says whether it would help.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import difflib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import tinker
from tinker.lib.retry_handler import RetryConfig  # pyright: ignore[reportMissingTypeStubs]
from tinker.types import RequestErrorCategory

from engine.errors import ModelError, RolegraphError, UsageError, WorldError
from engine.models.chat import ChatFormat, Prompt
from engine.models.keys import TINKER, redact
from engine.models.tokenizer import load_tokenizer
from engine.models.types import Completion, Request
from engine.spec.models import ModelRef

_PROBE_SECONDS = 5.0
_OPEN_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_CLOSE_SECONDS = 5.0

_logger = logging.getLogger(__name__)
# What the SDK logs comes back as errors too; without a handler of its own Python prints it on the terminal.
logging.getLogger("tinker").addHandler(logging.NullHandler())


class TinkerModel:
    """A sampling client and the chat format of its model.

    `context` is the longest prompt and answer together, in tokens, where the service says. `service` is
    closed with the model; None leaves that to whoever opened it.
    """

    def __init__(
        self,
        client: tinker.SamplingClient,
        chat: ChatFormat,
        *,
        url: str,
        context: int | None = None,
        key: str | None = None,
        service: tinker.ServiceClient | None = None,
    ) -> None:
        self._client = client
        self._chat = chat
        self._url = url
        self._context = context
        self._key = key
        self._service = service
        self._pulse = _Pulse(url)

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError."""
        prompt = self._chat.prompt(request.messages)
        params = self._params(request, prompt)
        call = asyncio.ensure_future(
            self._client.sample(tinker.ModelInput.from_ints(list(prompt.ids)), 1, params).coroutine()
        )
        try:
            while not (await asyncio.wait({call}, timeout=_PATIENCE_SECONDS))[0]:
                # The SDK waits for minutes on a service that is gone.
                await self._pulse.check()
            sequence = call.result().sequences[0]
        except asyncio.CancelledError:
            raise
        except RolegraphError as error:
            raise ModelError(str(error), transient=True) from error
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            raise ModelError(redact(_said(error), self._key), transient=_is_transient(error)) from error
        finally:
            call.cancel()
        ids, logprobs = sequence.tokens, sequence.logprobs or []
        if logprobs and len(logprobs) != len(ids):
            raise ModelError(f"{self._url} gave {len(logprobs)} log-probabilities for {len(ids)} tokens.")
        thought, text = self._chat.answer(ids, stop=request.sampling.stop, thinking=prompt.thinking)
        return Completion(
            text=text,
            thought=thought,
            prompt_ids=prompt.ids,
            response_ids=ids,
            logprobs=logprobs,
            finish_reason=sequence.stop_reason,
        )

    async def aclose(self) -> None:
        """End the session, unless somebody else opened it."""
        if self._service is None:
            return
        try:
            await asyncio.wait_for(self._service.close("success").result_async(), _CLOSE_SECONDS)
        except (tinker.TinkerError, TimeoutError) as error:
            # The run is over and has its answers; the service forgets a silent session by itself.
            _logger.debug("Closing the session at %s: %s", self._url, error)

    def _params(self, request: Request, prompt: Prompt) -> tinker.SamplingParams:
        sampling = request.sampling
        max_tokens = sampling.max_tokens
        if self._context is not None:
            room = self._context - len(prompt.ids)
            if room < 1:
                raise ModelError(
                    f"The prompt does not fit: it has {len(prompt.ids)} tokens, and the model's context is "
                    f"{self._context} tokens, prompt and answer together."
                )
            max_tokens = min(max_tokens, room)
        # The wire takes texts or token ids, not both.
        stop: Sequence[str] | Sequence[int] | None = self._chat.end_ids or None
        if sampling.stop:
            stop = [*sampling.stop, *self._chat.end_texts]
        return tinker.SamplingParams(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed,
            stop=stop,
        )


async def open_tinker(
    ref: ModelRef,
    *,
    api_key: str | None = None,
    tokenizer_dir: Path | None = None,
    trusted_url: str | None = None,
) -> TinkerModel:
    """Open `ref.name`, or its `checkpoint`, or the service's first model. Arguments as in `open_model`."""
    url = TINKER.url(ref.base_url)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    key = _find_key(url, api_key, trusted_url)
    if ref.checkpoint is not None and not ref.checkpoint.startswith("tinker://"):
        raise UsageError(
            f"checkpoint: {ref.checkpoint!r} is not a path of weights; it starts with tinker://."
        )
    await _probe(url)
    service = tinker.ServiceClient(base_url=url, api_key=key)
    try:
        # The SDK's constructors wait for the network.
        client, context = await asyncio.to_thread(_connect, service, ref, url, key)
        name = client.get_base_model()
        tokenizer = await asyncio.to_thread(load_tokenizer, tokenizer_dir or hub_name(name))
    except BaseException:
        service.close("errored")
        raise
    return TinkerModel(
        client, ChatFormat(tokenizer, name), url=url, context=context, key=key, service=service
    )


def hub_name(name: str) -> str:
    """Where the tokenizer of a Tinker model is: the service adds a variant to some hub names.

    >>> hub_name("Qwen/Qwen3-8B:peft:131072"), hub_name("org/model/variant"), hub_name("/models/mine")
    ('Qwen/Qwen3-8B', 'org/model', '/models/mine')
    """
    if Path(name).is_dir() or name.startswith(("/", ".")):
        return name
    return "/".join(name.partition(":")[0].split("/")[:2])


class _Pulse:
    """Whether the service still takes connections; asked at most once in a while, for all calls together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._checked = -_PATIENCE_SECONDS
        self._fault: WorldError | None = None

    async def check(self) -> None:
        """Raises WorldError for a service that is gone; one that is only slow is alive."""
        async with self._lock:
            if time.monotonic() - self._checked >= _PATIENCE_SECONDS / 2:
                self._fault = await self._ask()
                self._checked = time.monotonic()
            if self._fault is not None:
                raise WorldError(str(self._fault))

    async def _ask(self) -> WorldError | None:
        try:
            await _get_health(self._url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return WorldError(f"The Tinker service at {self._url} is gone: {error or type(error).__name__}")
        except httpx.HTTPError as error:
            _logger.debug("Slow health check at %s: %s", self._url, error)
        return None


async def _get_health(url: str) -> int:
    async with httpx.AsyncClient(timeout=_PROBE_SECONDS) as http:
        return (await http.get(f"{url}/api/v1/healthz")).status_code


async def _probe(url: str) -> None:
    """Fail within seconds where nothing answers."""
    try:
        status = await _get_health(url)
    except httpx.HTTPError as error:
        raise WorldError(
            f"No Tinker service answers at {url} ({str(error) or type(error).__name__}). Is it running, and "
            "is the URL right?"
        ) from error
    if status == 404:
        raise UsageError(f"{url} answers, but not as a Tinker service does. Is the URL right?")
    if status >= 500:
        raise WorldError(f"The Tinker service at {url} is not well: its health check answers {status}.")


def _find_key(url: str, explicit: str | None, trusted_url: str | None) -> str | None:
    """The key for `url`; None where the SDK has credentials of its own (`tinker auth login`)."""
    if not explicit and not TINKER.trusts(url, trusted_url):
        raise UsageError(TINKER.withheld(url))
    key = TINKER.key(url, explicit=explicit, trusted_url=trusted_url)
    if key is not None and not key.startswith(("tml-", "eyJ")):
        raise UsageError(f"{TINKER.key_variable}: this is not a Tinker key; one starts with `tml-`.")
    if key is None and not tinker.auth.tinker_has_credentials():
        raise UsageError(
            f"{TINKER.key_variable} is not set, and {url} needs a key. Put the key in that environment "
            "variable (a service that checks no keys takes any value that starts with `tml-`)."
        )
    return key


def _connect(
    service: tinker.ServiceClient, ref: ModelRef, url: str, key: str | None
) -> tuple[tinker.SamplingClient, int | None]:
    """The sampling client that `ref` asks for, and its model's context length. Blocks."""
    names: list[str] = []
    try:
        capabilities = tinker.RestClient(base_url=url, api_key=key).get_server_capabilities()
        models = capabilities.result(timeout=_OPEN_SECONDS).supported_models
        names = [model.model_name for model in models if model.model_name and model.sampleable is not False]
        name = ref.name if ref.name or ref.checkpoint else _only_model(names, ref, url)
        client = service.create_sampling_client(
            model_path=ref.checkpoint,
            base_model=name,
            retry_config=RetryConfig(enable_retry_logic=False),
        ).result(timeout=_OPEN_SECONDS)
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise UsageError(f"{url} refuses the key in {TINKER.key_variable}.") from error
    except (tinker.NotFoundError, tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
        raise UsageError(_no_such_model(ref, url, names, redact(_said(error), key))) from error
    except (concurrent.futures.TimeoutError, TimeoutError) as error:
        raise WorldError(f"The Tinker service at {url} gave no model in {_OPEN_SECONDS:.0f} s.") from error
    except (tinker.TinkerError, httpx.HTTPError) as error:
        raise WorldError(f"Cannot open a model at {url}: {redact(_said(error), key)}") from error
    lengths = {model.model_name: model.max_context_length for model in models}
    return client, lengths.get(client.get_base_model())


def _only_model(names: Sequence[str], ref: ModelRef, url: str) -> str:
    if not names:
        raise WorldError(f"The Tinker service at {url} offers no model to sample from.")
    if ref.base_url is None:
        raise UsageError(f"Which model? Write `tinker:NAME`; {url} offers {_some(names)}.")
    return names[0]


def _no_such_model(ref: ModelRef, url: str, names: Sequence[str], reason: str) -> str:
    wanted = ref.checkpoint or ref.name
    close = difflib.get_close_matches(ref.name or "", names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else f" It offers {_some(names)}." if names else ""
    return f"{url} cannot sample from {wanted!r}: {reason}{hint}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later. An error of the SDK's wrapping is judged by its cause."""
    match error:
        case tinker.RequestFailedError():
            return error.category is not RequestErrorCategory.User
        case tinker.APIStatusError():
            return error.status_code in (408, 409, 410, 429) or error.status_code >= 500
        case tinker.APIConnectionError() | httpx.TransportError() | TimeoutError():
            return True
        case _:
            return error.__cause__ is not None and _is_transient(error.__cause__)


def _said(error: BaseException) -> str:
    """What went wrong, without the SDK's own identifiers."""
    text = (str(error) or type(error).__name__).removeprefix("Request failed: ")
    return text.partition(" for self.request_id=")[0]
