"""Sweep over every page: no visible text has a raw float, the name of an enum's member or a Python repr."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.api.sweeping import SweepPointFigures, figures_of_run
from rolegraph.engine.records import Checkpoint, Control, RunFolder, RunInfo, read_episodes
from rolegraph.engine.records.episodes import write_episodes
from rolegraph.local.card import model_card
from rolegraph.pages.report.html import aligned
from rolegraph.pages.report.sweep import sweep_picture
from tests.pages.report.runs import write_run as reported
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import write_run, write_training
from tests.pages.view.test_trace import BY_TURN

RAW = {
    "a float of more than 6 digits": r"\d\.(?=\d*[1-9])\d{7,}",
    "a raw exponent": r"\de[+-]?0\d",
    "a member of an enum": r"\b[A-Z]\w+\.[A-Z][A-Z_]+\b",
    "a Python object": r"object at 0x|namespace\(|\bNone\b|\bTrue\b|\bFalse\b|\bnan\b|<\w+: ",
    "a Python repr": r"\{'|\['|\('\w+',",
    "a failure's name": r"malformed_output",
}


class Quoting(Parsed):
    """Page whose `words` leave out quoted text: what models, specs and tasks' ids say."""

    def handle_data(self, data: str) -> None:
        if not {"pre", "code"} & {*self.open}:
            super().handle_data(data)


def raw(text: str) -> list[str]:
    """Return the faults of a visible text, each with its surroundings."""
    return [
        f"{fault}: {text[max(0, found.start() - 60) : found.end() + 30]!r}"
        for fault, pattern in RAW.items()
        for found in re.finditer(pattern, text)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two runs, a training that compares turns and one with charts, with awkward numbers in them."""
    base = tmp_path_factory.mktemp("plain")
    runs = [write_run(base / "first"), write_run(base / "second", tasks=2)]
    trained = write_training(base / "turns", "solver_verifier_loop", *BY_TURN)
    for file in [RunFolder(run).episodes for run in runs] + [*(trained / "episodes").glob("*-00000?.jsonl")]:
        odd = [
            one._replace(
                task={**one.task, "score": 0.1 + 0.2, "pair": [1e-5, None, {"a": 0.25}], "sure": True},
                metrics={name: value / 3 + 1e-17 for name, value in one.metrics.items()},
                metadata={**one.metadata, "cost": 1.1 * 3, "seen": {"wide": True, "rate": 2 / 3}},
                trajectories=[
                    it._replace(reward=None if it.reward is None else it.reward / 3 + 1e-7)
                    for it in one.trajectories
                ],
            )
            for one in read_episodes(file)
        ]
        write_episodes(file, odd)
    return [*runs, trained, reported(base / "charts")]


def test_no_page_of_the_viewer_shows_a_raw_value(folders: list[Path], tmp_path: Path) -> None:
    queue, known = [f"/{KEY}/"], set[str]()
    faults: dict[str, list[str]] = {}
    while queue:
        path = queue.pop()
        answer = get(path, *folders)
        assert answer.status_code == (307 if "/compare" in path else 200), path
        page = Quoting(answer.text)
        faults |= {path: found} if (found := raw(page.text)) else {}
        links = [link for link in page.links if "/json" not in link and not link.startswith("#")]
        new = [link for link in dict.fromkeys(links) if link not in known and "beside" not in link][:6]
        known.update(links)
        queue += new if path.count("/") < 4 and "?" not in path else []
    faults["beside"] = raw(Quoting(get(f"/{KEY}/2/train-000001/beside?left=0&right=2", *folders).text).text)
    rg.view(*folders).write(tmp_path / "one.html", hidden=True, most=8)
    faults["static"] = raw(Quoting((tmp_path / "one.html").read_text()).text)
    assert not any(faults.values()), json.dumps(faults, indent=1, ensure_ascii=False)


def test_no_page_beside_the_viewer_shows_a_raw_value(folders: list[Path], tmp_path: Path) -> None:
    first, second, trained, charts = folders
    rg.compare(first, second, html=tmp_path / "compare.html")
    rg.compare(charts, trained, html=tmp_path / "trainings.html")
    rg.preview(rg.load("solver_judge")).save(tmp_path / "preview.html")
    rg.preview(rg.load("solver_verifier_loop")).save(tmp_path / "loop.html")
    for name in ("compare", "trainings", "preview", "loop"):
        assert not raw(Quoting((tmp_path / f"{name}.html").read_text()).text), name
    points = [
        SweepPointFigures(run.name, [f"x={0.1 + 0.2:g}"], figures_of_run(run)) for run in (first, second)
    ]
    assert not raw(re.sub(r"<[^>]+>", " ", sweep_picture("x", points)))


def test_the_figures_of_a_column_have_one_number_of_decimals() -> None:
    column = [0.0, 1.0, -0.25, None]
    assert [aligned(value, column) for value in (0.0, 1.0, -0.25)] == ["0.000", "1.000", "−0.250"]
    assert [aligned(value, column, "+") for value in (0.0, 1.0, -0.25)] == ["0.000", "+1.000", "−0.250"]
    assert [aligned(value, [3.0, 12_000.0]) for value in (3.0, 12_000.0)] == ["3", "12,000"]
    assert aligned(1e-5, [1e-5, 0.5]) == "1e-5"


def test_a_model_card_has_three_decimals_and_no_counts_among_its_figures() -> None:
    odd = {
        "correct": 0.1 + 0.2,
        "reward/solver": 1 / 3,
        "n/reward/solver": 6.0,
        "failures/solver/timeout": 2.0,
    }
    saved = Checkpoint(step=3, policies={}, validation={f"validation/{name}": x for name, x in odd.items()})
    control = Control(name="alone", figure="correct", mean=1 / 3, low=0.1 + 0.2, high=2 / 3, n=6)
    info = RunInfo(name="x", hash="h", roles={})
    card = model_card(
        info,
        saved,
        "name: x",
        policy="main",
        base="a/b",
        digest="d",
        merged=False,
        before=None,
        controls=(control,),
    )
    assert not raw(card)
    assert "| reward/solver |" in card and "0.333 [0.300, 0.667]" in card
    assert "n/reward" not in card and "timeout" not in card
