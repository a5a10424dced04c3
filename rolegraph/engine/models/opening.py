"""The one place that opens a model, whatever its provider: for the command, Python, training and the bridge.

`Services` locates a model, and starts a local service for a model of this machine; `Models` opens each model
once, behind one limit. A provider's SDK is imported when a model of that provider is opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.models.checkpoints import with_base
from rolegraph.engine.models.limit import LimitedModel
from rolegraph.engine.models.types import LocalService, ServedModel
from rolegraph.engine.plugins import plugin
from rolegraph.engine.records import saved_weights
from rolegraph.engine.records.weights import copy_weights
from rolegraph.engine.shipped import model_folder
from rolegraph.engine.spec import ModelRef, api_of

if TYPE_CHECKING:
    from rolegraph.engine.compile import Endpoint
    from rolegraph.engine.models.types import Model
    from rolegraph.engine.prompts import ChatFormat


Open = Callable[[ModelRef], Awaitable["Model"]]
_CHECK_SECONDS = 1.0
_importing = threading.Lock()
"""Lock that is held while transformers is imported: its lazy imports are not thread-safe."""


class _LocalKey(NamedTuple):
    """Folder of a local model, and True if it computes in bfloat16."""

    folder: Path
    bf16: bool


class Services(AbstractContextManager["Services"]):
    """The local services, one for each model folder; they are stopped at the end of the block.

    With a `state_dir`, all checkpoints are written into this folder, and checkpoints of other runs are copied
    to it. Without it, a checkpoint is served from the folder of its own run.
    """

    def __init__(self, trusted_url: str | None = None, state_dir: Path | None = None) -> None:
        self._trusted_url, self._state_dir = trusted_url, state_dir
        self._stack = ExitStack()
        self._running: dict[_LocalKey, dict[Path | None, LocalService]] = {}
        """Running services, by model, then by checkpoint folder."""
        self._starting: dict[_LocalKey, threading.Lock] = {}
        """Lock of each model, held while its service starts, so that it starts once."""
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        """Event that is set at the end of the block, and cancels services that are starting."""

    def __exit__(self, *_: object) -> None:
        self._cancelled.set()
        with self._lock, ExitStack() as locks:
            for lock in self._starting.values():
                locks.enter_context(lock)
            self._stack.close()

    def locate(self, ref: ModelRef, *, to_train: bool = False) -> ServedModel:
        """Find or start the service of a model. Blocks while a service starts.

        Args:
            ref: The model. A checkpoint that `saved_weights` finds means its training's weights, and their
                model if `ref` names no model.
            to_train: True to return the weights with the optimizer's state; False for weights to sample from.

        Returns:
            The model at its endpoint.

        Raises:
            UsageError: There is no such folder, or the extra `local` is not installed.
            WorldError: The service does not start.
        """
        ref = with_base(ref)
        checkpoint, weights = ref.checkpoint, None
        if checkpoint is not None and (saved_model := saved_weights(checkpoint)) is not None:
            checkpoint = saved_model.paths.state if to_train else saved_model.paths.sampler
            weights = saved_model.run.weights
        if not ref.served_here:
            hosted_fields = {"provider": api_of(ref.provider), "checkpoint": checkpoint}
            return ServedModel(ref.model_copy(update=hosted_fields), trusted_url=self._trusted_url)
        folder = model_folder(ref.name)
        service = self._service(_LocalKey(folder, ref.bf16), self._state_dir or weights)
        if checkpoint is not None and weights is not None and self._state_dir is not None:
            copy_weights(checkpoint, weights, self._state_dir)
        served_fields = {
            "provider": "tinker",
            "name": service.model_name,
            "base_url": service.base_url,
            "checkpoint": checkpoint,
        }
        return ServedModel(ref.model_copy(update=served_fields), service.api_key, folder)

    async def located(self, ref: ModelRef, *, to_train: bool = False) -> ServedModel:
        """Call `locate` in a thread; import the client while the service starts."""
        ref = with_base(ref)
        if not ref.served_here:
            return self.locate(ref, to_train=to_train)
        folder = model_folder(ref.name)
        plugin("models", "local").check_model_folder(folder)  # fails at once
        served_model, _ = await asyncio.gather(
            asyncio.to_thread(self.locate, ref, to_train=to_train), asyncio.to_thread(_import_client, folder)
        )
        return served_model

    async def open(self, ref: ModelRef) -> Model:
        """Locate a model and open it; raises the errors of `locate` and `open_model`."""
        return await open_served(await self.located(ref))

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """End the block with a WorldError once a local service has died, instead of retrying every call."""
        dead: list[LocalService] = []
        try:
            async with asyncio.timeout(None) as block:
                watch = asyncio.create_task(self._end_with_service(block, dead))
                try:
                    yield
                finally:
                    watch.cancel()
        except TimeoutError:
            if not dead:
                raise
            raise WorldError(
                f"the local service of {dead[0].model_name} has died (too little memory?); finished work is "
                "kept, and --resume does the rest"
            ) from None

    async def _end_with_service(self, block: asyncio.Timeout, died: list[LocalService]) -> None:
        while not died:
            await asyncio.sleep(_CHECK_SECONDS)
            with self._lock:
                services = [service for by_folder in self._running.values() for service in by_folder.values()]
            died += [service for service in services if not await _is_there(service)]
        block.reschedule(asyncio.get_running_loop().time())

    def _service(self, model: _LocalKey, state_dir: Path | None) -> LocalService:
        """Return the service of a model whose checkpoints are in `state_dir`; for None, any service of the
        model."""
        with self._lock:
            starting_lock = self._starting.setdefault(model, threading.Lock())
            services = self._running.setdefault(model, {})
        with starting_lock:
            if state_dir is None and services:
                return next(iter(services.values()))
            if state_dir not in services:
                local_plugin = plugin("models", "local")
                service = local_plugin.borrowed(
                    model.folder, bf16=model.bf16, state_dir=state_dir, cancelled=self._cancelled
                )
                services[state_dir] = self._stack.enter_context(service)
            return services[state_dir]


async def _is_there(service: LocalService) -> bool:
    """Return True while something listens at the service's port."""
    url = urlsplit(service.base_url)
    try:
        _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.close()
        await writer.wait_closed()
    except ConnectionRefusedError:
        return False
    except OSError:  # such as too many open files
        pass
    return True


def _import_client(folder: Path) -> None:
    """Import the Tinker SDK and the tokenizer library in advance, while the local service starts."""
    Path.cwd()  # raises where the working folder was deleted; torch would abort the process there
    with _importing:
        import rolegraph.engine.models.tinker
        from rolegraph.engine.models.tokenizer import tokenizer_class

        tokenizer_class(folder)
        _ = rolegraph.engine.models.tinker


class Models(AbstractAsyncContextManager["Models"]):
    """The open models of one event loop, each opened once and behind one limit.

    The models are closed at the end of the block, or by `aclose`.
    """

    def __init__(self, open_model: Open) -> None:
        self._open = open_model
        self._opening: dict[ModelRef, asyncio.Task[LimitedModel]] = {}
        self._stack = AsyncExitStack()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the open models, and cancel those that are being opened."""
        for opening_task in self._opening.values():
            opening_task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self._stack.aclose()

    async def model(self, ref: ModelRef) -> LimitedModel:
        """Return a model, opened if it is not open yet.

        Raises:
            UsageError: There is no key, or no such model.
            WorldError: The endpoint does not answer.
        """
        task = self._opening.get(ref)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._opening[ref] = asyncio.create_task(self._opened(ref))
        return await asyncio.shield(task)

    async def table(self, endpoints: Sequence[Endpoint]) -> list[LimitedModel]:
        """Return an open model for each of a plan's endpoints, in the order of the endpoints."""
        return [*await asyncio.gather(*(self.model(endpoint.model) for endpoint in endpoints))]

    async def teacher(self, ref: ModelRef, policy: ChatFormat, role: str) -> LimitedModel:
        """Open a role's teacher model; raises UsageError if its vocabulary differs from the policy's."""
        from rolegraph.engine.models.tinker import TinkerModel

        teacher = await self.model(ref)
        if not isinstance(teacher.model, TinkerModel) or not teacher.model.chat.same_tokens(policy):
            raise UsageError(other_vocabulary(role))
        return teacher

    async def _opened(self, ref: ModelRef) -> LimitedModel:
        model = await self._open(ref)
        if hasattr(model, "aclose"):  # a user's own `open_model` may return a model without it
            self._stack.push_async_callback(model.aclose)
        return LimitedModel(model, ref.concurrency)


def other_vocabulary(role: str) -> str:
    """Return the message that a role's teacher has other tokens than the role's policy."""
    return (
        f"the teacher of {role} has another vocabulary than the policy, so it cannot say how likely the "
        "policy's tokens are; choose a teacher of the same family"
    )


async def open_model(ref: ModelRef) -> Model:
    """Open a model that is served at an endpoint, with the key of the environment; see `open_served`."""
    return await open_served(ServedModel(ref))


async def open_served(served: ServedModel) -> Model:
    """Open a model and check that its endpoint has it.

    Args:
        served: The model at its endpoint.

    Returns:
        The open model, to be closed with `aclose`.

    Raises:
        UsageError: There is no key, no such model or no such file; or the provider is `local`.
        WorldError: Nothing answers at the URL.
    """
    ref = served.ref
    if ref.served_here:
        raise UsageError(
            "A `local` model has no endpoint yet: start the local service first, then open a `tinker` "
            "model with its base_url."
        )
    match ref.provider:
        case "tinker" | "local":
            from rolegraph.engine.models.tinker import open_tinker

            return await open_tinker(served)
        case "openai":
            from rolegraph.engine.models.openai import open_openai

            return await open_openai(served)
        case "replay":
            from rolegraph.engine.models.replay import Replay

            if ref.name is None:
                raise UsageError("The model `replay` needs a file: write `replay:episodes.jsonl`.")
            return Replay.from_file(Path(ref.name), any_prompt=ref.replay_any)
        case _:
            return await plugin("models", ref.provider)(served)
