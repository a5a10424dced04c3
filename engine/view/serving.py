"""HTTP server of the viewer: read-only, at a loopback address, with a secret key in each path.

A page of another site cannot read the pages: it does not know the key, and DNS rebinding is rejected by the
Host header that the browser sends.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rolegraph.engine.errors import DataError, RolegraphError, UsageError
from rolegraph.engine.local.service.serving import listen
from rolegraph.engine.view.finding import EpisodeFilter
from rolegraph.engine.view.pages import PageLinks, Pages
from rolegraph.engine.view.runs import EpisodeLocation, ViewedRun

HOST = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Addresses(PageLinks):
    """URLs of the form `/KEY/RUN?…` and `/KEY/RUN/PART/NUMBER?…`."""

    def __init__(self, key: str) -> None:
        self.key = key

    def listing(self, run: int, where: EpisodeFilter, start: int = 0) -> str:
        return _with(f"/{self.key}/{run}", where.query, start)

    def episode(self, run: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str | None:
        return _with(f"/{self.key}/{run}/{row.part.name}/{row.number}", where.query, start)

    def to(self, *path: object) -> str | None:
        return "/".join(map(str, ("", self.key, *path))) if path else f"/{self.key}/"


def addresses(key: str) -> PageLinks:
    """Return the URLs of the pages that `app` serves under a key."""
    return _Addresses(key)


def app(pages: Pages, key: str) -> Starlette:
    """Return the application that serves the pages under `/{key}/` and answers 404 to everything else."""
    runs = pages.runs

    def keyed(show: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            if not secrets.compare_digest(request.path_params["key"].encode(), key.encode()):
                return Response("Not found", 404, _HEADERS)
            try:
                return show(request)
            except RolegraphError as error:
                code = 400 if isinstance(error, UsageError) else 409 if isinstance(error, DataError) else 500
                return HTMLResponse(_encoded(pages.error(str(error))), code, _HEADERS)

        return answer

    def page(text: str) -> Response:
        return HTMLResponse(_encoded(text), headers=_HEADERS)

    def first(request: Request) -> Response:
        if len(runs) > 1:
            return page(pages.overview())
        return RedirectResponse(f"/{key}/0", headers=_HEADERS)

    def listing(request: Request) -> Response:
        return page(pages.listing(_run(request), *_asked(request)))

    def report(request: Request) -> Response:
        return page(pages.report(_run(request)))

    def episode(request: Request) -> Response:
        row = _row(request, request.path_params["number"])
        return page(pages.episode(_run(request), row, *_asked(request)))

    def download(request: Request) -> Response:
        row = _row(request, request.path_params["number"])
        name = f"{row.part.name}-{row.number}.json"
        headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
        text = json.dumps(runs[_run(request)].read(row).to_dict(), indent=1)
        return Response(text, media_type="application/json", headers=headers)

    def beside(request: Request) -> Response:
        numbers = [_number(request.query_params, side, "") for side in ("left", "right")]
        return page(pages.beside(_run(request), [_row(request, number) for number in numbers]))

    def _asked(request: Request) -> tuple[EpisodeFilter, int]:
        query = request.query_params
        return EpisodeFilter.of(query), _number(query, "from", "0")

    def _row(request: Request, number: int) -> EpisodeLocation:
        run = runs[_run(request)]
        return run.row(run.part(request.path_params["part"]), number)

    def _run(request: Request) -> int:
        number: int = request.path_params["run"]
        if number >= len(runs):
            raise UsageError(f"there are {len(runs)} runs; there is none with the number {number}")
        return number

    routes = [
        Route("/{key}/", keyed(first)),
        Route("/{key}/{run:int}", keyed(listing)),
        Route("/{key}/{run:int}/report", keyed(report)),
        Route("/{key}/{run:int}/{part}/beside", keyed(beside)),
        Route("/{key}/{run:int}/{part}/{number:int}", keyed(episode)),
        Route("/{key}/{run:int}/{part}/{number:int}/json", keyed(download)),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
    made = Starlette(routes=routes, middleware=[hosts])
    made.router.redirect_slashes = False  # a redirect would reveal without the key which paths exist
    return made


def serve(
    runs: Sequence[ViewedRun],
    *,
    port: int = 0,
    where: EpisodeFilter | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve runs until interrupted.

    Args:
        runs: Runs to show.
        port: TCP port; 0 for a free one.
        where: Filter of the first page.
        ready: Function called with the URL of the first page once the port is open.

    Raises:
        DataError: A run cannot be read.
        WorldError: The port is in use or not permitted.
    """
    key, where = secrets.token_urlsafe(16), where or EpisodeFilter()
    pages = Pages(runs, addresses(key))
    if len(runs) == 1:
        pages.listing(0, where)  # fails before the server starts where the run is broken
    with listen(HOST, port) as listener:
        config = uvicorn.Config(
            app(pages, key),
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        address = f"http://{HOST}:{listener.getsockname()[1]}"
        first = pages.links.to() if len(runs) > 1 and not where.query else None
        ready(address + (first or pages.links.listing(0, where)))
        uvicorn.Server(config).run(sockets=[listener])


def _number(query: Mapping[str, str], key: str, default: str) -> int:
    written = query.get(key, default)
    if not written.isdecimal() or len(written) > 12:
        raise UsageError(f"{key} is {written!r}; expected a number from 0")
    return int(written)


def _with(path: str, query: str, start: int) -> str:
    parts = [part for part in (query, f"from={start}" if start else "") if part]
    return f"{path}?{'&'.join(parts)}" if parts else path


def _encoded(page: str) -> bytes:
    """Encode a page as UTF-8; an unpaired surrogate in a model's text becomes a question mark."""
    return page.encode("utf-8", "replace")
