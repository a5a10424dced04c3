"""Pages of the viewer, as requested without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import httpx
from starlette.applications import Starlette

from rolegraph.pages.view.pages import Pages
from rolegraph.pages.view.runs import open_run
from rolegraph.pages.view.serving import ServedLinks, app

KEY = "the-key"
VOID = {"meta", "input", "br", "wbr"}


def get(path: str, *folders: Path, host: str = "127.0.0.1:8080", method: str = "GET") -> httpx.Response:
    """Return the application's response, with the runs opened anew."""
    runs = [open_run(folder) for folder in folders]
    return request(app(Pages(runs, ServedLinks(KEY)), KEY), path, host=host, method=method)


def request(
    served: Starlette, path: str, *, host: str = "127.0.0.1:8080", method: str = "GET"
) -> httpx.Response:
    """Return an application's response."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=served)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path)

    return asyncio.run(asked())


class Parsed(HTMLParser):
    """Tags, attributes, visible text and script contents of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src", "action"):
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("li", "option") and self.open[-1] != tag:
            return
        while self.open[-1] in ("option",) and tag != self.open[-1]:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)
