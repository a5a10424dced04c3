"""What comes of what runs keep, whoever wrote it: episodes, replays, folders to view, report and compare."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from urllib.parse import urlencode

import honest
import httpx
from inputs import CANARY, file_of
from judge_written import FAULT, RESULT, told, write
from rich.console import Console

import rolegraph as rg
from rolegraph.engine.errors import DataError, RolegraphError, UsageError
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import read_episodes
from rolegraph.engine.records.episodes import EpisodeFile
from rolegraph.pages.commands import comparison_parts
from rolegraph.pages.view import open_run
from rolegraph.pages.view.pages import Pages
from rolegraph.pages.view.serving import ServedLinks, app

LOOP = asyncio.new_event_loop()
FOLDER, OTHER = Path("run"), Path("other")


def episodes(line: str) -> str:
    return _read(line, lambda path: ([*read_episodes(path)], EpisodeFile(path).entries()))


def replay(line: str) -> str:
    return _read(line, Replay.from_file)


def _read(line: str, read: Callable[[Path], object]) -> str:
    path = Path("episodes.jsonl")
    write(path.name, f"{json.dumps(honest.EPISODE)}\n{line}\n")
    try:
        read(path)
    except DataError as error:
        told(error)
        assert re.search(r"episodes\.jsonl:\d+: ", str(error)), f"no place: {error}"
        return FAULT
    return RESULT


def _folder(at: Path, files: dict[str, str]) -> None:
    shutil.rmtree(at, ignore_errors=True)
    (at / "episodes").mkdir(parents=True)
    for name, text in files.items():
        write(str(at / name), text)


def _refused(error: RolegraphError) -> str:
    told(error)
    assert isinstance(error, DataError | UsageError), f"blames {type(error).__name__}: {error}"
    assert FOLDER.name in str(error), f"no place: {error}"
    return FAULT


def view(text: str) -> str:
    """The pages of a folder, as a browser asks for them: its list, filtered, and its first episodes."""
    about = json.loads(text)
    _folder(FOLDER, about["files"])
    try:
        run = open_run(FOLDER)
        parts = run.parts()
    except RolegraphError as error:
        return _refused(error)
    query = urlencode({str(key): str(value) for key, value in about["query"].items()}, errors="replace")
    served = httpx.ASGITransport(app(Pages([run], ServedLinks("key")), "key"))
    came = RESULT
    for path in ("/key/0", *(f"/key/0/{part.name}/{n}" for part in parts for n in (0, 1))):
        answer = LOOP.run_until_complete(_got(served, f"{path}?{query}"))
        assert answer.status_code in (200, 400, 409), f"{path} answers {answer.status_code}"
        assert "<html" in answer.text
        came = RESULT if answer.status_code == 200 else FAULT
    try:
        rg.view(FOLDER).write("view.html", hidden=False)
    except RolegraphError as error:
        return _refused(error)
    return came


def leaving(text: str) -> str:
    """What may be sent of a run whose hidden field is a canary: pages, a report, a comparison, chats."""
    about = json.loads(text)
    episode, turned = about["episode"], {**about["episode"], "is_correct": not about["episode"]["is_correct"]}
    spec, info = json.dumps(about["spec"]), {**honest.RUN["run.json"], "hidden": ["gold"]}
    for folder, one in ((FOLDER, episode), (OTHER, turned)):
        run = {"run.json": json.dumps(info), "spec.yaml": spec, "episodes.jsonl": f"{json.dumps(one)}\n"}
        _folder(folder, run)
    info = {**honest.TRAINING["run.json"], "hidden": ["gold"]}
    steps = {"episodes/train-000001.jsonl": f"{json.dumps(episode)}\n", "metrics.jsonl": '{"step": 1}\n'}
    _folder(Path("training"), {"run.json": json.dumps(info), "spec.yaml": spec, **steps})
    rg.view(FOLDER, "training").write("view.html", hidden=False)
    rg.report("training")
    rg.compare(FOLDER, OTHER, html="compare.html")
    Path("chats.jsonl").unlink(missing_ok=True)
    with suppress(UsageError):  # each chat may quote the field
        rg.export_chats(FOLDER, "chats.jsonl")
    shutil.rmtree(OTHER)
    for sent in ("view.html", "training/report.html", "compare.html", "chats.jsonl"):
        whole = Path(sent).read_text() if Path(sent).exists() else ""
        assert CANARY not in whole, f"{sent} quotes a hidden field"
    return RESULT


async def _got(served: httpx.ASGITransport, path: str) -> httpx.Response:
    answer = await served.handle_async_request(httpx.Request("GET", f"http://127.0.0.1{path}"))
    await answer.aread()
    return answer


def report(text: str) -> str:
    _folder(FOLDER, json.loads(text)["files"])
    try:
        rg.report(FOLDER, picture="curves.svg")
    except RolegraphError as error:
        return _refused(error)
    return RESULT


def compare(text: str) -> str:
    """A folder beside an honest one, as page and as the command prints it."""
    files = json.loads(text)["files"]
    _folder(FOLDER, files)
    if not OTHER.exists():
        _folder(OTHER, {name: file_of(value) for name, value in honest.RUN.items()})
    try:
        found = rg.compare(OTHER, FOLDER, html="compare.html")
    except RolegraphError as error:
        return _refused(error)
    printed = Console(file=StringIO(), soft_wrap=True)
    for part in comparison_parts(found, 3):
        printed.print(part, highlight=False, markup=False)
    return RESULT
