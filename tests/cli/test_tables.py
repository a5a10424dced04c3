"""Tests of tables and the progress bar in narrow terminals: no figure is cut."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rolegraph.cli.terminal import add_row, make_table
from tests.cli.conftest import ENVIRONMENT, Command
from tests.terminals import read_terminal

REPLAYED = ("--replay-any", "--limit", "10")
NAMES = st.text("abcdefgh_", min_size=1, max_size=45)
FIGURES = st.from_regex(r"[0-9]{1,9}\.[0-9]{3}( \*)?", fullmatch=True)


@given(
    names=st.lists(NAMES, min_size=1, max_size=4),
    width=st.integers(50, 120),
    columns=st.integers(1, 12),
    data=st.data(),
)
def test_no_figure_is_cut_and_every_row_names_its_figures(
    names: list[str], width: int, columns: int, data: st.DataObject
) -> None:
    headings = [f"figure{at}" for at in range(columns)]
    table = make_table("name", *headings)
    rows = [data.draw(st.lists(FIGURES, min_size=columns, max_size=columns)) for _ in names]
    for name, row in zip(names, rows, strict=True):
        add_row(table, name, *row)
    out = StringIO()
    Console(file=out, width=width).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = [cell for line in lines for cell in re.findall(r"\d+\.\d{3}(?: \*)?", line)]
    assert sorted(shown) == sorted(cell for row in rows for cell in row)
    assert all(sum(heading in line.split() for line in lines) == 1 for heading in headings)
    assert "…" not in out.getvalue()


@pytest.mark.parametrize("width", ["80", "60"])
def test_the_end_of_a_run_is_whole_in_a_narrow_terminal(
    width: str, rolegraph: Command, recording: Path
) -> None:
    done = rolegraph("run", "solver_judge", "--model", f"replay:{recording}", *REPLAYED, COLUMNS=width)
    assert done.returncode == 0, done.stderr
    for heading in ("role", "runs", "reward", "right", "tokens", "out", "s/call", "failures"):
        assert heading in done.stdout.split()


@pytest.mark.parametrize("width", ["80", "60"])
def test_the_bar_keeps_count_and_times_beside_long_metrics(
    width: str, recording: Path, tmp_path: Path
) -> None:
    metrics = [f"episode.metrics.a_metric_with_a_long_name_{n}={n} + judge.right" for n in (1, 2, 3)]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rolegraph", "run", "solver_judge", *metrics]
    with subprocess.Popen(
        [*command, "--model", f"replay:{recording}", *REPLAYED],
        cwd=tmp_path,
        env={**ENVIRONMENT, "COLUMNS": width, "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
    assert process.returncode == 0, shown
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).rpartition("solver_judge")[2]
    assert "10/10" in last and re.search(r"\d:\d\d:\d\d", last)
    values = re.findall(r"\b[234]\.000", last)
    assert len(values) == 3 or re.sub(r"\s", "", last).count("a_metric_with_a_long_name_") == 3
