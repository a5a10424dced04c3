"""HTTP server of the viewer: read-only, at a loopback address, with a secret key in each path.

A page of another site cannot read the pages: it does not know the key, and DNS rebinding is rejected by the
Host header that the browser sends.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from rolegraph.engine.errors import DataError, RolegraphError, SpecError, UsageError
from rolegraph.pages.view.finding import EpisodeFilter
from rolegraph.pages.view.overview import RunsQuery
from rolegraph.pages.view.pages import ComparisonQuery, PageLinks, Pages
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun
from rolegraph.serving.server import bounded_server, listen

HOST = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ServedLinks(PageLinks):
    """URLs of the served pages, of the form `/KEY/RUN?…` and `/KEY/RUN/PART/NUMBER?…`."""

    def __init__(self, key: str) -> None:
        self.key = key

    def listing(self, run: int, where: EpisodeFilter, start: int = 0) -> str:
        """Return the URL of a run's list with this filter, from row `start` on."""
        return _with(f"/{self.key}/{run}", where.query, start)

    def episode(self, run: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str | None:
        """Return the URL of an episode's page, which keeps the filter of the list."""
        return _with(f"/{self.key}/{run}/{row.part.name}/{row.number}", where.query, start)

    def to(self, *path: object) -> str | None:
        """Return the URL of a page from the parts of its path; without parts, the URL of the overview."""
        return "/".join(map(str, ("", self.key, *path))) if path else f"/{self.key}/"


def app(pages: Pages, key: str) -> Starlette:
    """Return the application that serves the pages under `/{key}/` and answers 404 to everything else."""
    runs = pages.runs

    def page(text: str, code: int = 200) -> Response:
        # An unpaired surrogate in a model's text becomes a question mark.
        return HTMLResponse(text.encode("utf-8", "replace"), code, _HEADERS)

    def saved(text: str, name: str) -> Response:
        headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}.html"'}
        return HTMLResponse(text.encode("utf-8", "replace"), headers=headers)

    def failed(request: Request, error: Exception) -> Response:
        code = (
            400 if isinstance(error, UsageError | SpecError) else 409 if isinstance(error, DataError) else 500
        )
        return page(pages.error(str(error)), code)

    def first(request: Request) -> Response:
        pages.add_new()
        asked = request.query_params
        lists = (asked.getlist("pick"), asked.getlist("column"))
        return page(pages.overview(RunsQuery.of(asked.get("sort", ""), asked.get("search", ""), *lists)))

    def listing(request: Request) -> Response:
        return page(pages.listing(_run(request), *_asked(request)))

    def compare(request: Request) -> Response:
        parameters = request.query_params
        picked = RunsQuery.of("", "", parameters.getlist("pick")).picked
        steps = [_whole("step", step) for step in parameters.getlist("step")]
        if len(picked) < 2 and not (picked and steps):  # of too few, the list of runs is where to pick others
            pick_query = "&".join(f"pick={number}" for number in picked)
            return RedirectResponse(f"/{key}/?{pick_query}" if pick_query else f"/{key}/", headers=_HEADERS)
        query = ComparisonQuery([*map(_known, picked)], steps, "best" in parameters)
        if "file" in parameters:
            return saved(pages.comparison_file(query), "comparison")
        return page(pages.compare(query))

    def report(request: Request) -> Response:
        if "file" in request.query_params:
            return saved(pages.report(_run(request), as_file=True), _name(request, "report"))
        return page(pages.report(_run(request)))

    def listing_file(request: Request) -> Response:
        where, _ = _asked(request)
        text = pages.listing_file(_run(request), where, hidden="hidden" in request.query_params)
        return saved(text, _name(request, "episodes"))

    def episode_file(request: Request) -> Response:
        row = _row(request)
        text = pages.episode_file(_run(request), row, hidden="hidden" in request.query_params)
        return saved(text, _name(request, f"{row.part.name}-{row.number}"))

    def episode(request: Request) -> Response:
        return page(pages.episode(_run(request), _row(request), *_asked(request)))

    def download(request: Request) -> Response:
        row = _row(request)
        name = f"{row.part.name}-{row.number}.json"
        headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
        text = json.dumps(runs[_run(request)].read(row).to_dict(), indent=1)
        return Response(text, media_type="application/json", headers=headers)

    def beside(request: Request) -> Response:
        number = _run(request)
        return page(
            pages.beside(*((number, _row(request, _number(request, side))) for side in ("left", "right")))
        )

    def elsewhere(request: Request) -> Response:
        return page(pages.elsewhere(_run(request), _row(request)))

    def other(request: Request) -> Response:
        parameters = request.path_params
        run = _known(parameters["other_run"])
        other_row = runs[run].row(runs[run].folder.part(parameters["other_part"]), parameters["other"])
        return page(pages.beside((_run(request), _row(request)), (run, other_row)))

    def _asked(request: Request) -> tuple[EpisodeFilter, int]:
        return EpisodeFilter.of(request.query_params), _number(request, "from", "0")

    def _row(request: Request, number: int | None = None) -> EpisodeLocation:
        run, parameters = runs[_run(request)], request.path_params
        return run.row(
            run.folder.part(parameters["part"]), parameters["number"] if number is None else number
        )

    def _name(request: Request, page: str) -> str:
        return f"{re.sub(r'[^a-zA-Z0-9._-]', '_', runs[_run(request)].folder.path.name)}-{page}"

    def _run(request: Request) -> int:
        return _known(request.path_params["run"])

    def _known(number: int) -> int:
        if number >= len(runs):
            raise UsageError(f"there are {len(runs)} runs, numbered from 0; run {number} does not exist")
        return number

    routes = [
        Route("/", first),
        Route("/compare", compare),
        Route("/{run:int}", listing),
        Route("/{run:int}/report", report),
        Route("/{run:int}/file", listing_file),
        Route("/{run:int}/{part}/beside", beside),
        Route("/{run:int}/{part}/{number:int}", episode),
        Route("/{run:int}/{part}/{number:int}/json", download),
        Route("/{run:int}/{part}/{number:int}/file", episode_file),
        Route("/{run:int}/{part}/{number:int}/elsewhere", elsewhere),
        Route("/{run:int}/{part}/{number:int}/beside/{other_run:int}/{other_part}/{other:int}", other),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
    keyed = Starlette(routes=[Mount("/{key}", routes=routes)], exception_handlers={RolegraphError: failed})
    keyed.router.redirect_slashes = False  # without the key, all paths get the same answer

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        given_key: str = scope["path"].split("/")[1]
        is_authorized = secrets.compare_digest(given_key.encode(), key.encode())
        await (keyed if is_authorized else Response("Not found", 404, _HEADERS))(scope, receive, send)

    return Starlette(routes=[Mount("/", answer)], middleware=[hosts])


def serve(
    runs: Sequence[ViewedRun],
    folders: Sequence[Path] = (),
    *,
    port: int,
    where: EpisodeFilter,
    ready: Callable[[str], None],
) -> None:
    """Serve the pages of runs over HTTP on this machine until interrupted.

    Args:
        runs: Runs to show.
        folders: Folders whose new runs are shown, too.
        port: TCP port; 0 for a free one.
        where: Filter of the first page.
        ready: Function called with the URL of the first page once the port is open.

    Raises:
        DataError: A run cannot be read.
        WorldError: The port is in use or not permitted.
    """
    key = secrets.token_urlsafe(16)
    pages = Pages(runs, ServedLinks(key), folders=folders)
    if len(runs) == 1:
        pages.listing(0, where)  # fails before the server starts where the run is broken
    with listen(HOST, port) as listener:
        address = f"http://{HOST}:{listener.getsockname()[1]}"
        first_page = pages.links.to() if len(runs) > 1 and not where.query else None
        ready(address + (first_page or pages.links.listing(0, where)))
        bounded_server(app(pages, key)).run(sockets=[listener])


def _number(request: Request, key: str, default: str = "") -> int:
    return _whole(key, request.query_params.get(key, default))


def _whole(key: str, written: str) -> int:
    if not written.isdecimal() or len(written) > 12:
        raise UsageError(f"{key} is {written!r}; expected a number from 0")
    return int(written)


def _with(path: str, query: str, start: int) -> str:
    parts = [part for part in (query, f"from={start}" if start else "") if part]
    return f"{path}?{'&'.join(parts)}" if parts else path
