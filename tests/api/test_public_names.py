"""Tests of the public names: few, each on a page with an example, and readable when printed."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode, Step, Trajectory
from tests.cli.conftest import recording as recording
from tests.documents import PAGES

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_there_are_at_most_fifty_public_names_and_each_exists() -> None:
    assert len(rg.__all__) <= 50
    assert all(getattr(rg, name) is not None for name in rg.__all__)


def test_every_public_name_has_a_row_with_an_example() -> None:
    rows = re.findall(r"^\| (`.+?`) \| `(.+?)` \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted(rg.__all__)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "upgrade.md"], ids=lambda it: it.name
)
def test_every_name_that_a_page_calls_exists(page: Path) -> None:
    called = re.findall(r"\b(rg|rolegraph(?:\.[a-z_]+)+)\.([A-Za-z_]\w*)\(", page.read_text(encoding="utf-8"))
    for module, name in called:
        assert hasattr(import_module("rolegraph" if module == "rg" else module), name), f"{module}.{name}"


def test_a_workflow_prints_its_roles() -> None:
    flow = rg.load("solver_judge")
    title, columns, solver, judge = repr(flow).splitlines()
    assert title.startswith("Workflow solver_judge")
    assert columns.split() == ["role", "count", "needs", "reward", "estimator"]
    assert solver.split() == ["solver", "2", "countdown", "grpo"]
    assert judge.split() == ["judge", "1", "solver", "countdown", "reinforce"]


def test_a_result_prints_its_figures(tmp_path: Path, recording: Path) -> None:
    result = rg.run(rg.load("solver_judge", model=f"replay:{recording}"), limit=2, out=tmp_path / "out")
    assert repr(result).splitlines()[0] == f"Run {tmp_path / 'out'}: a run of solver_judge"
    assert "episodes" in repr(result)


def test_what_holds_much_prints_little() -> None:
    text = "word " * 2_000
    step = Step(
        range(2_000), range(2_000), [-0.5] * 2_000, [{"role": "user", "content": text}], text, text, text
    )
    role = Trajectory("solver", steps=(step,) * 4, reward=0.5)
    episode = Episode("t", 0, {"id": "t", "text": text}, [role] * 4)
    flow = rg.load("solver_judge")
    forecast, preview, check = rg.forecast(flow), rg.preview(flow, limit=8), rg.check("solver_judge")
    for shown in (
        step,
        role,
        episode,
        flow,
        flow.plan,
        check,
        forecast,
        preview,
        rg.graph(flow),
        flow.tasks(),
    ):
        forms = [getattr(shown, name, str)() for name in ("__repr__", "__str__", "_repr_html_")]
        assert max(map(len, forms)) < 3_000, type(shown)
    assert len(repr([episode] * 60)) < 5_000
    assert repr(flow.tasks()).splitlines()[0] == f"{len(flow.tasks()):,} rows"


def test_an_episode_is_a_table_in_a_notebook_and_its_texts_stay_texts() -> None:
    step = Step(action="<script>alert(1)</script>\x1b[31m")
    hostile = Trajectory("solver", steps=(step,), reward=0.5)
    episode = Episode("t", 0, {"id": "t"}, [hostile] * 20)
    lines = str(episode).splitlines()
    assert lines[0] == "Episode t:0: not correct" and lines[-1] == "  and 8 more"
    page = episode._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "<script>" not in page and "\x1b" not in page and page.count("<tr>") == 13
