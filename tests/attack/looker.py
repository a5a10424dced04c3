"""Runner for the cases in `folders`: `report`, `view` and `compare` on a folder with a hostile file."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from rolegraph.cli.main import run
from tests.attack.cases import Came
from tests.pages.view.runs import write_run, write_training


@cache
def honest(kind: str) -> Path:
    """Write a valid run folder of a kind."""
    if kind == "run":
        return write_run(Path("honest-run").absolute(), tasks=1)
    folder = write_training(Path("honest-train").absolute(), steps=1, tasks=1)
    figures = {"step": 1.0, "correct": 0.5, "reward/solver": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(figures) + "\n")
    return folder


def look(source: str) -> Came:
    """Run the three commands on a case's folder and return their output."""
    kind, file, place, value = json.loads(source)
    folder = Path("hostile").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(honest(kind), folder)
    path = folder / file
    path.write_bytes(value.encode(errors="surrogateescape") if place is None else changed(path, place, value))
    said: list[str] = []
    for words in (
        ["report", str(folder)],
        ["view", str(folder), "--static", "page.html"],
        ["compare", str(folder), str(honest("run"))],
    ):
        out, errors = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = run(words)
        text = out.getvalue() + errors.getvalue()
        said.append(f"{words[0]} {code}: {text}")
        odd = {c for c in text if not c.isprintable() and c != "\n"}
        if code not in (0, 1, 2) or "internal error" in text or "Traceback" in text or odd:
            return Came("raised", f"{odd or ''} {said[-1]}"[:600])
        if len(errors.getvalue()) > 6_000:
            return Came("raised", f"says too much: {said[-1][:300]}")
    return Came("told", "\n".join(said)[:600])


def changed(path: Path, place: str, value: object) -> bytes:
    """Return a file's content with the value at a path of its first JSON document replaced."""
    text = path.read_text()
    first, rest = (text, "") if path.suffix == ".json" else text.split("\n", 1)
    whole: Any = json.loads(first)
    *way, last = (
        [int(key) if key.isdecimal() else key for key in place.split(".")] if place.count(".") else [place]
    )
    at = whole
    for key in way:
        at = at[key]
    at[last] = value
    return f"{json.dumps(whole)}\n{rest}".encode()
