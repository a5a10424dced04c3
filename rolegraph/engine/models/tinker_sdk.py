"""The Tinker SDK, imported without torch, and its calls whose form depends on its version, 0.24 to 0.38.

Other modules take `tinker` from here. Services pin different versions. In older ones, calls that create a
client block until the service has made it, samples come as futures of `concurrent.futures`, and a session
cannot be closed: it ends when its process stops the heartbeats.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

from rolegraph.engine.connections import client_options

T = TypeVar("T")


class _LazyTorch(ModuleType):
    """Stand-in for torch that imports it when an attribute is first read."""

    _lock = threading.Lock()

    def withdraw(self) -> None:
        """Remove the stand-in, so that later imports find torch itself."""
        with self._lock:
            if sys.modules.get("torch") is self:
                del sys.modules["torch"]

    def __getattr__(self, name: str) -> Any:
        self.withdraw()
        return getattr(import_module("torch"), name)


@contextmanager
def _deferred_torch() -> Generator[None]:
    """Put a stand-in in torch's place for imports within the block, if torch is installed and not yet loaded.

    The SDK imports torch for conversions of tensors, which few commands make. Without torch a short command
    takes two thirds of the CPU time, and 135 MB instead of 315 MB.
    """
    spec = None if "torch" in sys.modules else find_spec("torch")
    if spec is None:
        yield
        return
    stand_in = sys.modules["torch"] = _LazyTorch("torch")
    stand_in.__spec__ = spec  # without one, find_spec("torch") fails
    try:
        yield
    finally:
        stand_in.withdraw()


with _deferred_torch():
    import tinker as tinker
    from tinker.lib.retry_handler import RetryConfig as RetryConfig  # pyright: ignore[reportMissingTypeStubs]


def _use_own_clients() -> None:
    """Patch the SDK so that its HTTP clients use `client_options` (proxies, certificates), for which it has
    no option.

    Clients with a transport of their own, the default since SDK 0.38, keep it; it reads NO_PROXY.
    """
    sdk: Any = import_module("tinker._base_client")

    class Client(sdk.AsyncHttpxClientWrapper):
        def __init__(self, **options: Any) -> None:
            settings = {} if "transport" in options else client_options(str(options["base_url"]))
            super().__init__(**settings, **options)  # pyright: ignore[reportUnknownMemberType]

    sdk.AsyncHttpxClientWrapper = Client


_use_own_clients()


def awaitable(call: Awaitable[T] | Future[T]) -> Awaitable[T]:
    """Convert the future or awaitable that an SDK call returned to an awaitable."""
    if isinstance(call, Awaitable):  # futures of SDK 0.38 are of both kinds
        return call
    return asyncio.wrap_future(call)


async def created(call: Callable[[], tinker.APIFuture[T] | T]) -> T:
    """Run a blocking SDK call in a daemon thread, and return the client that it creates; a future is awaited.

    In a daemon thread, a call without an answer does not keep the process alive.
    """
    future = Future[Any]()
    future.set_running_or_notify_cancel()  # a cancelled caller must not cancel it: the thread sets its result

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="tinker-create", daemon=True).start()
    result = await asyncio.wrap_future(future)
    return cast("T", await result.result_async() if isinstance(result, tinker.APIFuture) else result)


def rest_client(service: tinker.ServiceClient, url: str, key: str | None) -> tinker.RestClient:
    """Return a client for those endpoints of a service that need no session."""
    if hasattr(tinker, "RestClient"):
        return tinker.RestClient(base_url=url, api_key=key)
    return service.create_rest_client()  # pyright: ignore[reportDeprecated]


async def capabilities(
    service: tinker.ServiceClient, url: str, key: str | None
) -> tinker.types.GetServerCapabilitiesResponse:
    """Return the service's capabilities, which list its models."""
    client = await created(partial(rest_client, service, url, key))  # the first one sends requests
    if hasattr(client, "get_server_capabilities"):
        return await created(client.get_server_capabilities)
    return await created(service.get_server_capabilities)  # pyright: ignore[reportDeprecated]


async def archive_url(rest: tinker.RestClient, run: str, checkpoint: str) -> str:
    """Return the URL of a sampler checkpoint's archive; raises AttributeError if the SDK lacks this call."""
    call = cast("Any", rest).get_checkpoint_archive_url(run, checkpoint)
    return cast("str", (await awaitable(call)).url)


def close(
    service: tinker.ServiceClient, status: Literal["success", "errored"]
) -> tinker.APIFuture[None] | None:
    """Start to end a session, and return the future; None if the SDK cannot end sessions."""
    return service.close(status) if hasattr(service, "close") else None


def has_credentials() -> bool:
    """Return True if the SDK has its own login (`tinker auth login`), so that it needs no key."""
    return hasattr(tinker, "auth") and tinker.auth.tinker_has_credentials()


def is_sampleable(model: tinker.types.SupportedModel) -> bool:
    """Return False if the service says that a model cannot be sampled from."""
    return cast("bool | None", getattr(model, "sampleable", None)) is not False
