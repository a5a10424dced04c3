"""The tools of one episode: opened at their first use, closed when it ends; and what they give, as text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from rolegraph.engine.limits.tools import TOOL_CLOSE_SECONDS, TOOL_TEXT
from rolegraph.engine.records import check_recordable
from rolegraph.engine.vocabulary import Function, Tool, ToolError
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS


class OpenTools:
    """The tools of one episode, each open once, whoever asks for it."""

    def __init__(self) -> None:
        self._opened: dict[int, asyncio.Future[Sequence[Function]]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def functions(self, tool: Tool) -> Sequence[Function]:
        """A tool's functions; raises what opening it raises."""
        if id(tool) not in self._opened:
            opened = self._opened[id(tool)] = asyncio.get_running_loop().create_future()
            self._keepers.append(asyncio.create_task(self._keep(tool, opened)))
        # Others may wait for it, too.
        return await asyncio.shield(self._opened[id(tool)])

    async def _keep(self, tool: Tool, opened: asyncio.Future[Sequence[Function]]) -> None:
        """Hold a tool open. In a task of its own, because some can only be closed where they were opened."""
        assert tool.open is not None
        try:
            async with tool.open() as functions:
                opened.set_result(functions)
                await self._over.wait()
        except FOREIGN_ERRORS as error:
            if opened.done():
                return  # it did what it was asked; how it ends is nobody's concern
            del self._opened[id(tool)]  # whoever asks next tries again
            opened.set_exception(error)
            opened.exception()  # it is told to whoever asked, if anybody still does

    async def close(self) -> None:
        """Close whatever is open, within seconds."""
        self._over.set()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=TOOL_CLOSE_SECONDS.most)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)


def result_text(name: str, result: object) -> str:
    """What a tool gave, as text; raises ToolError for what cannot be sent to a model and recorded."""
    try:
        check_recordable(result)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        if len(text) <= TOOL_TEXT.most:
            text.encode()  # half a character can be sent to nobody
            return text
    except UnicodeError:
        raise ToolError(f"{name} gave text that is not valid Unicode") from None
    except ValueError as error:
        raise ToolError(f"{name} gave neither text nor a JSON value: {error}") from None
    raise ToolError(TOOL_TEXT.exceeded(f"{name} gave"))
