"""Opens a `TinkerModel` from a `ModelRef`: key, endpoint, sampling client, tokenizer.

Every mistake is found here, within seconds, before any call is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import tinker
from tinker.lib.retry_handler import RetryConfig  # pyright: ignore[reportMissingTypeStubs]
from tinker.types import RequestErrorCategory

from rolegraph.engine.errors import UsageError, WorldError, did_you_mean
from rolegraph.engine.local import PROCESS, is_loopback
from rolegraph.engine.models.keys import TINKER, bypass_proxies, redact
from rolegraph.engine.models.tinker import TinkerModel, get_health, said
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.shipped import MODELS
from rolegraph.engine.spec import ModelRef

_OPEN_SECONDS = 60.0
NO_RETRIES = RetryConfig(enable_retry_logic=False)
"""`LimitedModel` retries; the SDK would for minutes."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TinkerSession:
    """An open session with a Tinker service."""

    service: tinker.ServiceClient
    url: str
    key: str | None
    lengths: Mapping[str, int | None]
    """The models on offer, each with its context length in tokens; None where unknown."""


async def open_session(
    ref: ModelRef, *, api_key: str | None = None, trusted_url: str | None = None
) -> TinkerSession:
    """Open a session with the service of `ref`; arguments and errors as in `open_model`."""
    url = TINKER.url(ref.base_url)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    key = _find_key(url, api_key, trusted_url)
    if ref.checkpoint is not None and not ref.checkpoint.startswith("tinker://"):
        raise UsageError(
            f"checkpoint: {ref.checkpoint!r} is not a path of weights; expected one that starts with tinker://."
        )
    bypass_proxies(url)
    await _probe(url)
    # A service of this machine keeps the session for as long as this process lives, even if it is suspended.
    here = {PROCESS: str(os.getpid())} if is_loopback(urlsplit(url).hostname or "") else None
    service = tinker.ServiceClient(base_url=url, api_key=key, user_metadata=here)
    try:
        # The SDK's constructors wait for the network.
        return TinkerSession(service, url, key, await asyncio.to_thread(_offered, url, key))
    except BaseException:
        service.close("errored")
        raise


async def open_tinker(
    ref: ModelRef,
    *,
    api_key: str | None = None,
    tokenizer_dir: Path | None = None,
    trusted_url: str | None = None,
) -> TinkerModel:
    """Open `ref.name`, or its `checkpoint`, or the service's first model. Arguments as in `open_model`."""
    session = await open_session(ref, api_key=api_key, trusted_url=trusted_url)
    try:
        client = await asyncio.to_thread(_connect, session, ref)
        name = client.get_base_model()
        chat = await open_chat(name, tokenizer_dir)
    except BaseException:
        session.service.close("errored")
        raise
    return TinkerModel(
        client,
        chat,
        url=session.url,
        context=session.lengths.get(name),
        key=session.key,
        service=session.service,
    )


async def open_chat(name: str, tokenizer_dir: Path | None) -> ChatFormat:
    """Load the chat format of a model; without a folder, its tokenizer is found by the model's name."""
    source = tokenizer_dir or MODELS.get(name) or hub_name(name)
    return ChatFormat(await asyncio.to_thread(load_tokenizer, source), name)


def hub_name(name: str) -> str:
    """Return the hub name of a Tinker model's tokenizer: the service adds a variant to some hub names.

    >>> hub_name("Qwen/Qwen3-8B:peft:131072"), hub_name("org/model/variant"), hub_name("/models/mine")
    ('Qwen/Qwen3-8B', 'org/model', '/models/mine')
    """
    if Path(name).is_dir() or name.startswith(("/", ".")):
        return name
    return "/".join(name.partition(":")[0].split("/")[:2])


async def _probe(url: str) -> None:
    """Raise within seconds where no Tinker service answers."""
    try:
        status = await get_health(url)
    except httpx.HTTPError as error:
        raise WorldError(
            f"No Tinker service answers at {url} ({str(error) or type(error).__name__}). Is it running, and "
            "is the URL right?"
        ) from error
    if 300 <= status < 400:  # the SDK would follow the redirect and send the key along
        raise UsageError(f"{url} redirects; give the URL of the service itself.")
    if status == 404:
        raise UsageError(f"{url} answers, but not as a Tinker service does. Is the URL right?")
    if status >= 500:
        raise WorldError(f"The Tinker service at {url} fails its health check with status {status}.")


def _find_key(url: str, explicit: str | None, trusted_url: str | None) -> str | None:
    """Return the key for `url`; None where the SDK has credentials of its own (`tinker auth login`)."""
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


def _offered(url: str, key: str | None) -> dict[str, int | None]:
    with saying_why(url, key):
        capabilities = tinker.RestClient(base_url=url, api_key=key).get_server_capabilities()
        models = capabilities.result(timeout=_OPEN_SECONDS).supported_models
    return {m.model_name: m.max_context_length for m in models if m.model_name and m.sampleable is not False}


def _connect(session: TinkerSession, ref: ModelRef) -> tinker.SamplingClient:
    """Create the sampling client of `ref`. Blocks."""
    try:
        with saying_why(session.url, session.key):
            client = session.service.create_sampling_client(
                model_path=ref.checkpoint,
                base_model=None if ref.checkpoint else model_of(session, ref),
                retry_config=NO_RETRIES,
            ).result(timeout=_OPEN_SECONDS)
    except _REFUSALS as error:
        raise UsageError(_no_such_model(ref, session, redact(said(error), session.key))) from error
    quiet(client)
    return client


_REFUSALS = (tinker.NotFoundError, tinker.BadRequestError, tinker.UnprocessableEntityError)


@contextmanager
def saying_why(url: str, key: str | None) -> Generator[None, None, None]:
    """Turn the SDK's errors into ours; `_REFUSALS`, which the caller explains, pass unchanged."""
    try:
        yield
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise UsageError(f"{url} refuses the key in {TINKER.key_variable}.") from error
    except _REFUSALS:
        raise
    except TimeoutError as error:
        raise WorldError(f"The Tinker service at {url} gave no model in {_OPEN_SECONDS:.0f} s.") from error
    except (tinker.TinkerError, httpx.HTTPError) as error:
        if isinstance(error, tinker.RequestFailedError) and error.category is RequestErrorCategory.User:
            raise
        raise WorldError(f"Cannot open a model at {url}: {redact(said(error), key)}") from error


def quiet(client: tinker.SamplingClient | tinker.TrainingClient) -> None:
    """Log, rather than print, calls that fail in the SDK's own loop after they were cancelled."""
    client.holder.get_loop().set_exception_handler(_note_leftover)


def _note_leftover(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
    _logger.debug("Left over in the SDK's loop: %s", context.get("exception") or context.get("message"))


def model_of(session: TinkerSession, ref: ModelRef) -> str:
    """Return the model's name in `ref`, or the name of the service's first model."""
    names, url = [*session.lengths], session.url
    if ref.name:
        return ref.name
    if not names:
        raise WorldError(f"The Tinker service at {url} offers no model to sample from.")
    if url == TINKER.default_url:
        raise UsageError(f"Which model? Write `tinker:NAME`; {url} offers {_some(names)}.")
    return names[0]


def _no_such_model(ref: ModelRef, session: TinkerSession, reason: str) -> str:
    wanted, url, names = ref.checkpoint or ref.name, session.url, [*session.lengths]
    close = did_you_mean(ref.name or "", names)
    hint = f" {close[0].upper()}{close[1:]}" if close else f" It offers {_some(names)}." if names else ""
    return f"{url} cannot sample from {wanted!r}: {reason}{hint}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
