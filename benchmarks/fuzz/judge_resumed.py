"""What comes of the folder of a run, training or sweep that is resumed or exported, by whomever.

The user's machine has a spec, keys and an endpoint; a stranger's has a name of its own. Nothing is written
outside of the folder, no code of the stranger is imported, no key goes to the stranger, and none stands in a
file or a message.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import honest
from inputs import file_of
from judge_said import KEYS, LOOP, STRANGER, resolve_stranger, server
from judge_written import FAULT, RESULT, told, write
from watching import written_within

import rolegraph as rg
from rolegraph import api
from rolegraph.api.jobs import describe
from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.records.run_folders import newest
from rolegraph.engine.records.sweep import newest_sweep

FOLDER, SETTINGS = Path("run"), Path("settings")
MANY = 100
"""Episodes beyond which a run is not made: the user sees their number and stops it."""


@cache
def _names() -> dict[str, str]:
    """Write the user's spec; return what the names with $ stand for."""
    os.environ |= {**KEYS, "XDG_CONFIG_HOME": str(SETTINGS.absolute())}
    resolve_stranger()
    url = server().url
    names = {"$url": url, "$stranger": url.replace("127.0.0.1", STRANGER), "$outside": str(Path.cwd() / "x")}
    names["$code"] = str(Path("code.py").absolute())
    os.environ["TINKER_BASE_URL"] = url
    Path("own").mkdir(exist_ok=True)
    write("own/x.yaml", _named(honest.OWN_SPEC, names))
    write("own/tasks.jsonl", file_of(honest.ROWS))
    write("code.py", "open('imported', 'w').close()\n")
    run, training = (
        describe(rg.load("own/x.yaml", model=model, base_url=f"{url}/v1"), "run")
        for model in ("openai:tiny", "tinker:tiny")
    )
    return {**names, "$hash": run.hash, "$trained": training.hash, "$plain": rg.load("own/x.yaml").hash}


def _named(text: str, names: dict[str, str]) -> str:
    for name, value in sorted(names.items(), reverse=True):  # a name may begin with another
        text = text.replace(name, value)
    return text


def _write(files: dict[str, str], names: dict[str, str]) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, text in files.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        write(str(FOLDER / name), _named(text, names))


def _link(name: str) -> None:
    """Make a name in the folder a link to a file outside, with the content that was there."""
    path, outside = FOLDER / name, Path("linked").absolute()
    if path.is_dir():
        return
    outside.write_bytes(path.read_bytes() if path.is_file() else b"")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(outside)


def _completion(_: object) -> tuple[int, str, str]:
    return 200, "application/json", json.dumps(honest.COMPLETION)


def _run() -> None:
    job = rg.RunJob.resume(FOLDER)
    _ = job.done
    if job.episodes <= MANY:
        _on_loop(job.run)


def _sweep() -> None:
    job = rg.SweepJob.resume(FOLDER, kind="eval" if (FOLDER / "seed=1" / "base").exists() else "run")
    for point in job.points:
        _ = point.finished
    job.write_results()


def _train() -> None:
    job = rg.TrainingJob.resume(FOLDER)
    _ = job.done, job.steps, job.folder.best(), job.folder.controls()


def _eval() -> None:
    flow = rg.load("own/x.yaml", model="openai:tiny", base_url=f"{server().url}/v1")
    settings = {"tasks": 2, "rollouts": 1, "seed": 1, "resume": True}
    job = api.EvaluationJob.create(flow, "run/best", out=FOLDER / "seed=1", **settings)
    _ = [side.done for side in job.sides]


def _newest() -> None:
    if (FOLDER / "sweep.json").exists():
        newest_sweep(Path(), "run")
    else:
        newest(Path(), kind="run")


DOINGS: dict[str, Callable[[], object]] = {
    "run": _run,
    "sweep": _sweep,
    "train": _train,
    "eval": _eval,
    "export": lambda: _on_loop(lambda: rg.export_async(FOLDER)),
    "newest": _newest,
}


def _on_loop(work: Callable[[], object]) -> None:
    """Run a coroutine on the loop of the server."""
    LOOP.run_until_complete(work())  # type: ignore[arg-type]


def resumed(text: str) -> str:
    about = json.loads(text)
    names = _names()
    _write(about["files"], names)
    for name in about.get("links", ()):
        _link(name)
    server().reply, came = _completion, RESULT
    server().heads.clear()
    try:
        with written_within(FOLDER, SETTINGS):
            DOINGS[about["do"]]()
    except RolegraphError as error:
        told(error)
        assert not _has_key(str(error).encode(errors="replace")), f"a key is shown: {error}"
        came = FAULT
    finally:  # also where it hung
        _check_leaks()
    return came


def _check_leaks() -> None:
    assert not Path("imported").exists(), "code of the folder was imported"
    to_stranger = b"".join(head for head in server().heads if STRANGER.encode() in head)
    assert not _has_key(to_stranger), f"a key is sent: {to_stranger[-400:]!r}"
    for file in FOLDER.rglob("*"):
        assert not (file.is_file() and _has_key(file.read_bytes())), f"a key is in {file}"


def _has_key(data: bytes) -> bool:
    return any(key.encode() in data for key in KEYS.values())
