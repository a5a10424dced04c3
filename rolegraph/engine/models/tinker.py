"""Answers from a Tinker service, hosted or at any URL, through the SDK's own sampling client.

In: messages. Out: text and reasoning, with every token id and its log-probability at the sampling
temperature. The chat format is the model's own (`engine/prompts/chat.py`). The caller retries; an
error says whether a retry may help. Opening a model finds every mistake within seconds, before any call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx

from rolegraph.engine.connections import bypass_proxies, client_options, is_here, route
from rolegraph.engine.errors import (
    ContextFull,
    ModelError,
    RolegraphError,
    UsageError,
    WorldError,
    did_you_mean,
)
from rolegraph.engine.models.checkpoints import whereabouts
from rolegraph.engine.models.keys import TINKER
from rolegraph.engine.models.limit import retry_after
from rolegraph.engine.models.openai_answers import says_context_full
from rolegraph.engine.models.tinker_sdk import (
    RetryConfig,
    awaitable,
    capabilities,
    close,
    created,
    has_credentials,
    is_sampleable,
    tinker,
)
from rolegraph.engine.models.tokenizer import open_chat
from rolegraph.engine.models.tokens import SampledTokens, answer_limit, completion, tokenize
from rolegraph.engine.models.types import PROCESS, Completion, Request, ServedModel
from rolegraph.engine.prompts import ChatFormat, TokenizedPrompt
from rolegraph.engine.secrets import without_secrets
from rolegraph.engine.spec import ModelRef

_PROBE_SECONDS = 5.0
_PATIENCE_SECONDS = 10.0
UNANSWERED = 10
"""Number of health checks in a row without an answer after which a service counts as gone: at least a minute
and a half.

A process that is stopped (SIGSTOP), swapped out or deadlocked accepts connections and never answers. Checks
are counted instead of seconds, since a client may have been stopped itself.
"""
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 60.0
_PAUSE_SECONDS = 60.0
"""Least number of seconds between two warnings that the service pauses."""
NO_RETRIES = RetryConfig(enable_retry_logic=False)
"""`LimitedModel` retries failed calls; the SDK's own retries would go on for minutes."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class _PauseHandler(logging.Handler):
    """Handler of the SDK's log that passes on messages that the SDK is waiting, at most one per minute and
    logger.

    While an account's bill is open, or a service is short of room, the SDK waits, for an hour and more. Its
    other entries are dropped: they are also raised as errors.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next: dict[str, float] = {}
        """Time of `monotonic` from which the next message is passed on, by logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a log entry which says that the SDK is waiting, if its logger's next one is due; drop any
        other entry."""
        text, time_now = record.getMessage(), time.monotonic()
        if "paused" in text and time_now >= self._next.get(record.name, time_now):
            self._next[record.name] = time_now + _PAUSE_SECONDS
            _logger.warning("the Tinker service: %s", text)


# Without a handler Python prints what the SDK logs on the terminal.
logging.getLogger("tinker").addHandler(_PauseHandler())


@dataclass(eq=False)
class TinkerModel:
    """Model at a Tinker service: a sampling client, and the chat format that turns messages to tokens.

    `context` is the largest number of tokens of prompt and answer together; None if the service does not
    state it. `service` is closed with the model; None leaves it open. `weight_version` is the number of
    updates of the weights.
    """

    client: tinker.SamplingClient
    chat: ChatFormat
    url: str
    context: int | None = None
    service: tinker.ServiceClient | None = None
    weight_version: int | None = None

    def __post_init__(self) -> None:
        self._pulse = Pulse(self.url)

    async def complete(self, request: Request) -> Completion:
        """Sample an answer to one request at the Tinker service, and return it; raises ModelError."""
        prompt = await tokenize(self.chat, request)
        params = self._params(request, prompt)
        sampling_future = self.client.sample(tinker.ModelInput.from_ints(list(prompt.ids)), 1, params)
        sequence = (await self._answer(sampling_future)).sequences[0]
        tokens = SampledTokens(sequence.tokens, sequence.logprobs or [], sequence.stop_reason)
        return completion(self.chat, request, prompt, tokens, self.url, self.weight_version)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[Any]:
        """Return the log-probabilities of given response tokens, [T], at temperature 1; raises ModelError."""
        tokens = tinker.ModelInput.from_ints([*prompt_ids, *response_ids])
        return (await self._answer(self.client.compute_logprobs(tokens)))[len(prompt_ids) :]

    async def aclose(self) -> None:
        """Close the session, unless another caller opened it."""
        if self.service is None:
            return
        try:
            if (closing_future := close(self.service, "success")) is not None:
                await asyncio.wait_for(closing_future.result_async(), _CLOSE_SECONDS)
        except (tinker.TinkerError, httpx.HTTPError, TimeoutError) as error:
            # The run has its answers, and the service drops a silent session by itself.
            _logger.debug("Closing the session at %s: %s", self.url, error)

    async def _answer(self, future: Awaitable[T] | Future[T]) -> T:
        """Await a call of the SDK and return its result.

        Raises:
            ModelError: The call failed.
            UsageError: The service refuses the key or the account.
            WorldError: The session has ended.
        """
        try:
            return await self._pulse.result(future)
        except WorldError as error:
            raise ModelError(str(error), transient=True) from error
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            if (final_error := final_refusal(error, self.url)) is not None:
                raise final_error from error
            delay = retry_after(error.response.headers) if isinstance(error, tinker.APIStatusError) else None
            message = service_message(error)
            if says_context_full(message):
                raise ContextFull(message) from error
            if isinstance(error, tinker.APIStatusError) and error.status_code in (404, 410):
                text = f"{self.url} no longer has the session or its weights ({message})"
                raise WorldError(f"{text}; --resume continues from what is saved") from error
            raise ModelError(message, transient=_is_transient(error), after=delay) from error

    def _params(self, request: Request, prompt: TokenizedPrompt) -> tinker.SamplingParams:
        sampling = request.sampling
        # The wire takes texts or token ids, not both.
        stops: Sequence[str] | Sequence[int] | None = self.chat.end_ids or None
        if sampling.stop:
            stops = [*sampling.stop, *self.chat.end_texts]
        return tinker.SamplingParams(
            max_tokens=answer_limit(prompt, sampling.max_tokens, self.context),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed,
            stop=stops,
        )


class Pulse:
    """Waiter for the SDK's calls that checks the service's health meanwhile, at most every 5 s for all calls
    together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._checked = -_PATIENCE_SECONDS
        self._unanswered = 0
        """Number of health checks in a row without an answer."""
        self._fault = ""
        """Reason why the service counts as gone; empty while it counts as reachable."""

    async def result(self, future: Awaitable[T] | Future[T]) -> T:
        """Wait for the result of an SDK call.

        Raises the SDK's errors, and WorldError if the service is gone: the SDK alone would wait for ever.
        """
        call = asyncio.ensure_future(awaitable(future))
        try:
            while not (await asyncio.wait({call}, timeout=_PATIENCE_SECONDS))[0]:
                await self._check()
            return call.result()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise  # the caller was cancelled, not the call
            raise WorldError(f"The call to {self._url} was dropped by the SDK.") from None
        finally:
            call.cancel()

    async def _check(self) -> None:
        """Raise WorldError if the service is gone; a slow service counts as alive for `UNANSWERED` checks."""
        async with self._lock:
            if time.monotonic() - self._checked >= _PATIENCE_SECONDS / 2:
                self._fault = await self._look()
                self._checked = time.monotonic()
            if self._fault:
                raise WorldError(f"The Tinker service at {self._url} is gone: {self._fault}")

    async def _look(self) -> str:
        """Send a health check; return the reason why the service counts as gone, or an empty text."""
        try:
            await get_health(self._url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return str(error) or type(error).__name__
        except httpx.HTTPError as error:
            self._unanswered += 1
            no_answer = (
                f"{self._unanswered} health checks in a row without an answer in {_PROBE_SECONDS:g} s each"
            )
            if self._unanswered >= UNANSWERED:
                return f"{no_answer} ({type(error).__name__}). Its process may be stopped or out of memory."
            if self._unanswered == 2:  # a single slow one is no news
                _logger.warning("The Tinker service at %s is silent: %s; still waiting", self._url, no_answer)
        else:
            self._unanswered = 0
        return ""


async def get_health(url: str) -> int:
    """Return the HTTP status of a service's health check; raises httpx.HTTPError within seconds."""
    address = f"{url}/api/v1/healthz"
    client = httpx.AsyncClient(timeout=_PROBE_SECONDS, **client_options(url))
    async with client as http, http.stream("GET", address) as answer:
        return answer.status_code  # the body is not read


def _is_transient(error: BaseException) -> bool:
    """Return True if the same call may succeed later; a wrapper error of the SDK is judged by its cause."""
    match error:
        case tinker.RequestFailedError():
            return error.category is not tinker.types.RequestErrorCategory.User
        case tinker.APIStatusError():
            return error.status_code in (408, 409, 410, 429) or error.status_code >= 500
        case tinker.APIConnectionError() | httpx.TransportError() | TimeoutError():
            return True
        case tinker.APIResponseValidationError() | ValueError():
            return True  # not a Tinker answer: a gateway under load may send such a thing
        case _:
            return error.__cause__ is not None and _is_transient(error.__cause__)


def final_refusal(error: BaseException, url: str) -> UsageError | None:
    """Return the error that ends a run because a service refuses the key or the account; None for any other
    error.

    Args:
        error: An error of the SDK. The SDK fetches a result by another request; if that is refused, the
            refusal is the cause of a ValueError.
        url: The service's URL.
    """
    refusal = error
    while not isinstance(refusal, tinker.APIStatusError):
        if refusal.__cause__ is None:
            return None
        refusal = refusal.__cause__
    reason = service_message(refusal)
    match refusal.status_code:
        case 401 | 403:
            text = (
                f"{url} refuses the key in {TINKER.key_variable} ({reason}); put a valid one in that variable"
            )
            return UsageError(f"{text}, and continue with --resume what was under way")
        case 402:
            text = f"{url} does not serve this account until its billing is settled ({reason})"
            return UsageError(f"{text}; --resume continues what was under way")
        case _:
            return None


def service_message(error: BaseException) -> str:
    """Return the message of an error of the Tinker SDK, without secrets, request and future ids."""
    text = (without_secrets(str(error)) or type(error).__name__).removeprefix("Request failed: ")
    return text.partition(" for self.request_id=")[0]


@dataclass(frozen=True, slots=True)
class TinkerSession:
    """An open session with a Tinker service."""

    service: tinker.ServiceClient
    url: str
    key: str | None
    lengths: Mapping[str, int | None]
    """Context length in tokens of each model that the service offers; None if unknown."""


async def open_session(served: ServedModel) -> TinkerSession:
    """Open a session with the service of a model; errors as in `open_served`."""
    ref, trusted_url = served.ref, served.trusted_url
    url = TINKER.url(ref.base_url)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    key = _find_key(url, served.api_key, trusted_url)
    if ref.checkpoint is not None and not ref.checkpoint.startswith("tinker://"):
        raise UsageError(
            f"checkpoint: {ref.checkpoint!r} is not a path of weights; expected a path that starts with tinker://."
        )
    bypass_proxies(url)
    await _probe(url)
    # A service of this machine keeps the session for as long as this process lives, even if it is suspended.
    metadata = {PROCESS: str(os.getpid())} if is_here(url) else None
    create_client = partial(tinker.ServiceClient, base_url=url, api_key=key, user_metadata=metadata)
    with saying_why(url):
        async with asyncio.timeout(_OPEN_SECONDS):  # the SDK blocks, and tries for five minutes
            service = await created(create_client)
    try:
        with saying_why(url):
            async with asyncio.timeout(_OPEN_SECONDS):
                models = (await capabilities(service, url, key)).supported_models
        lengths = {m.model_name: m.max_context_length for m in models if m.model_name and is_sampleable(m)}
        return TinkerSession(service, url, key, lengths)
    except BaseException:
        close(service, "errored")
        raise


async def open_tinker(served: ServedModel) -> TinkerModel:
    """Open the model or checkpoint that `served` names, or the service's first model; see `open_served`."""
    session = await open_session(served)
    try:
        client, name = await _connect(session, served.ref)
        chat = await open_chat(name, served.tokenizer_dir)
    except BaseException:
        close(session.service, "errored")
        raise
    return TinkerModel(
        client,
        chat,
        url=session.url,
        context=session.lengths.get(name),
        service=session.service,
        weight_version=served.weight_version,
    )


async def _probe(url: str) -> None:
    """Raise WorldError within seconds if no Tinker service answers at `url`."""
    try:
        status = await get_health(url)
    except httpx.HTTPError as error:
        raise WorldError(
            f"No Tinker service answers at {url} ({str(error) or type(error).__name__}){route(url)}. Is it "
            "running, and is the URL right?"
        ) from error
    if 300 <= status < 400:  # the SDK would follow the redirect and send the key along
        raise UsageError(f"{url} redirects; give the URL of the service itself.")
    if status == 404:
        raise UsageError(f"{url} answers, but not as a Tinker service does. Is the URL right?")
    if status >= 500:
        raise WorldError(f"The Tinker service at {url} fails its health check with status {status}.")


def _find_key(url: str, explicit: str | None, trusted_url: str | None) -> str | None:
    """Return the key for `url`; None if the SDK has credentials of its own (`tinker auth login`)."""
    if not explicit and not TINKER.trusts(url, trusted_url):
        raise UsageError(TINKER.withheld(url))
    key = TINKER.key(url, explicit=explicit, trusted_url=trusted_url)
    if key is not None and not key.startswith(("tml-", "eyJ")):
        raise UsageError(f"{TINKER.key_variable}: this is not a Tinker key; one starts with `tml-`.")
    if key is None and not has_credentials():
        raise UsageError(
            f"{TINKER.key_variable} is not set, and {url} needs a key. Put the key in that environment "
            "variable (a service that checks no keys takes any value that starts with `tml-`)."
        )
    return key


async def _connect(session: TinkerSession, ref: ModelRef) -> tuple[tinker.SamplingClient, str]:
    """Create the sampling client of a model; return it with the name of its base model."""
    create_client = partial(
        session.service.create_sampling_client,
        model_path=ref.checkpoint,
        base_model=None if ref.checkpoint else model_of(session, ref),
        retry_config=NO_RETRIES,
    )
    try:
        with saying_why(session.url):
            async with asyncio.timeout(_OPEN_SECONDS):
                client = await created(create_client)
                name = client.get_base_model()  # some services look for the weights only now
    except _REFUSALS as error:
        raise UsageError(_no_such_model(ref, session, service_message(error))) from error
    quiet(client)
    return client, name


_REFUSALS = (tinker.NotFoundError, tinker.BadRequestError, tinker.UnprocessableEntityError)


@contextmanager
def saying_why(url: str) -> Generator[None, None, None]:
    """Convert errors of the Tinker SDK within a block to UsageError or WorldError with the service's URL.

    Errors in `_REFUSALS` are not converted: the caller explains them.
    """
    try:
        yield
    except _REFUSALS:
        raise
    except TimeoutError as error:
        raise WorldError(f"The Tinker service at {url} gave no model in {_OPEN_SECONDS:.0f} s.") from error
    except RolegraphError:
        raise
    except Exception as error:  # the SDK asserts fields that services of other versions do not send
        if (
            isinstance(error, tinker.RequestFailedError)
            and error.category is tinker.types.RequestErrorCategory.User
        ):
            raise
        if (final_error := final_refusal(error, url)) is not None:
            raise final_error from error
        reason = service_message(error)
        # Older SDKs tell the service's error as a cause.
        if any(isinstance(cause, tinker.TinkerError | httpx.HTTPError) for cause in (error, error.__cause__)):
            raise WorldError(f"Cannot open a model at {url}: {reason}") from error
        raise WorldError(
            f"The Tinker service at {url} answers otherwise than tinker {tinker.__version__} expects "
            f"({type(error).__name__}: {reason}). Install the version of tinker that the service pins."
        ) from error


def quiet(client: tinker.SamplingClient | tinker.TrainingClient) -> None:
    """Make the SDK's event loop log errors of cancelled calls at debug level instead of printing them."""

    def note(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        _logger.debug("Left over in the SDK's loop: %s", context.get("exception") or context.get("message"))

    client.holder.get_loop().set_exception_handler(note)


def model_of(session: TinkerSession, ref: ModelRef) -> str:
    """Return the model's name in `ref`, or if it names no model, the name of the service's first."""
    names, url = [*session.lengths], session.url
    if ref.name:
        return ref.name
    if not names:
        raise WorldError(f"The Tinker service at {url} offers no model to sample from.")
    if url == TINKER.default_url:
        raise UsageError(f"Which model? Write `tinker:NAME`; {url} offers {_some(names)}.")
    return names[0]


def _no_such_model(ref: ModelRef, session: TinkerSession, reason: str) -> str:
    url, names = session.url, [*session.lengths]
    if ref.checkpoint:
        return f"{url} cannot sample from {ref.checkpoint!r}: {reason} {whereabouts(ref.checkpoint)}"
    guess = did_you_mean(ref.name or "", names)
    hint = f" {guess[0].upper()}{guess[1:]}" if guess else f" It offers {_some(names)}." if names else ""
    return f"{url} cannot sample from {ref.name!r}: {reason}{hint}"


def _some(names: Sequence[str]) -> str:
    more_names = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more_names
