"""Opens every model that a plan names, starting the local service for those that live on this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine.local import BASE_MODEL, running
from engine.models import open_model
from engine.models.gate import Gate
from engine.models.types import Model
from engine.plan import Plan
from engine.spec.models import ModelRef


@asynccontextmanager
async def open_gates(
    plan: Plan, trusted_url: str | None = None
) -> AsyncGenerator[dict[ModelRef, Gate], None]:
    """A gate for each model of the plan; services and connections end with the context.

    `trusted_url` is an endpoint that the person named outside the spec: keys may be sent there.
    Raises UsageError (a missing key, folder or extra) or WorldError (an endpoint that is down).
    """
    async with AsyncExitStack() as stack:
        gates: dict[ModelRef, Gate] = {}
        for ref in dict.fromkeys(role.model for role in plan.roles):
            model = (
                await _local(ref, stack)
                if ref.provider == "local"
                else await open_model(ref, trusted_url=trusted_url)
            )
            gates[ref] = Gate(model, ref.concurrency)
            stack.push_async_callback(gates[ref].aclose)
        yield gates


async def _local(ref: ModelRef, stack: AsyncExitStack) -> Model:
    folder = Path(ref.name) if ref.name else BASE_MODEL
    service = stack.enter_context(running(folder))
    served = ref.model_copy(
        update={"provider": "tinker", "name": service.model_name, "base_url": service.base_url}
    )
    return await open_model(served, api_key=service.api_key, tokenizer_dir=folder)
