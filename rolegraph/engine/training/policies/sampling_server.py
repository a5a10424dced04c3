"""Sampling from a policy in training at a vLLM or SGLang server, which loads the policy's adapter after each
update."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import ServedModel, open_served
from rolegraph.engine.models.download import fetch_adapter
from rolegraph.engine.models.tinker import Pulse
from rolegraph.engine.models.tinker_sdk import tinker
from rolegraph.engine.models.token_server import TokenServer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records.confined import make_folder


@dataclass(frozen=True, slots=True)
class SamplingServer:
    """vLLM or SGLang server that samples for one policy."""

    model: TokenServer
    folder: Path
    """Folder of the adapters, which the server sees at the same path."""
    policy: str

    @classmethod
    @asynccontextmanager
    async def open(
        cls, served: ServedModel, chat: ChatFormat, folder: Path, policy: str
    ) -> AsyncGenerator[SamplingServer, None]:
        """Open a server; raises the errors of `open_served`, and UsageError if its tokenizer differs from
        that of `chat`."""
        model = await open_served(served)
        try:
            if not isinstance(model, TokenServer) or not model.chat.same_tokens(chat):
                raise UsageError(
                    f"train.sample_from: {served.ref} has another vocabulary than the model that is trained"
                )
            yield cls(model, folder, policy)
        finally:
            await model.aclose()

    async def load(
        self, client: tinker.TrainingClient, rest: tinker.RestClient, pulse: Pulse, version: int
    ) -> TokenServer:
        """Load a policy's current weights on the server, and return a model that samples with them.

        Args:
            client: The policy's training client.
            rest: A client of the same service.
            pulse: The service's health check.
            version: Number of updates of the weights.

        Raises:
            ModelError: The server does not load the adapter.
            Exception: As `fetch_adapter`.
        """
        folder = (self.folder / f"{self.policy}-{version:06d}").absolute()
        old_folders = [path for path in self.folder.glob(f"{self.policy}-[0-9]*") if path.name != folder.name]
        await asyncio.to_thread(make_folder, folder)
        await fetch_adapter(client, rest, pulse, folder)
        # Trainings may share a server: the name has the run's folder, and a digest of its path.
        run = self.folder.absolute().parent
        digest = hashlib.sha256(bytes(run)).hexdigest()[:8]
        await self.model.load_adapter(f"{run.name}-{digest}-{self.policy}", version, str(folder))
        for path in old_folders:  # the server may read the folder of the adapter in use again
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        return self.model
