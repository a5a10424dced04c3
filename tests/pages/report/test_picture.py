"""Tests that the learning curves of several runs are one self-contained SVG."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
from pathlib import Path
from shutil import which
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

import rolegraph as rg
from rolegraph.engine.errors import UsageError
from rolegraph.pages.drawing.drawing import Drawing
from rolegraph.pages.report import draw_curves
from tests.pages.report.runs import write_lines, write_run

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def lines(picture: str, kind: str) -> int:
    found = ElementTree.fromstring(picture).findall(f"{SVG}g/{SVG}polyline")
    return sum(f"line {kind}" in element.attrib["class"] for element in found)


def test_runs_of_one_spec_share_a_panel_for_each_figure_with_their_mean(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1, 2)]
    picture = draw_curves(runs).svg
    assert {"correct", "solver_acc", "judge_acc", "seed 0", "seed 1", "seed 2", "mean"} <= set(texts(picture))
    assert (lines(picture, "thin"), lines(picture, "mean")) == (9, 3)


def test_one_run_is_one_bold_line_without_a_legend(tmp_path: Path) -> None:
    picture = draw_curves([write_run(tmp_path / "run")]).svg
    assert (lines(picture, "bold"), lines(picture, "mean")) == (3, 0)
    assert "seed 0" not in texts(picture)


def test_the_mean_ends_where_the_shortest_run_ends(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    for run, values in zip(runs, ([0.0, 1.0, 0.5], [1.0, 0.0]), strict=True):
        write_lines(run / "metrics.jsonl", [{"step": n, "x": value} for n, value in enumerate(values)])
    picture = ElementTree.fromstring(draw_curves(runs, ["x"]).svg)
    (mean,) = [
        element
        for element in picture.findall(f"{SVG}g/{SVG}polyline")
        if "line mean" in element.attrib["class"]
    ]
    heights = [point.split(",")[1] for point in mean.attrib["points"].split()]
    assert len(heights) == 2
    assert len(set(heights)) == 1


def test_any_figure_may_be_asked_for(tmp_path: Path) -> None:
    picture = draw_curves([write_run(tmp_path / "run")], ["kl/solver", "correct"]).svg
    assert {"kl/solver", "correct"} <= set(texts(picture))


def test_runs_of_different_specs_are_told_apart_by_name(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name=name) for name in ("one", "two")]
    assert {"one, seed 0", "two, seed 0"} <= set(texts(draw_curves(runs).svg))


def test_runs_of_different_specs_are_not_averaged_whatever_their_names(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1, 2)]
    info = runs[2] / "run.json"
    info.write_text(info.read_text().replace("1f0c9a7e2b", "77aa00bb11"))
    picture = draw_curves(runs, ["judge_acc"]).svg
    assert {
        "solver_judge 1f0c9a, seed 0",
        "solver_judge 1f0c9a, mean",
        "solver_judge 77aa00, seed 2",
    } <= set(texts(picture))
    assert "solver_judge 77aa00, mean" not in texts(picture)
    assert (lines(picture, "thin"), lines(picture, "mean"), lines(picture, "bold")) == (2, 1, 1)


def test_runs_of_one_seed_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("long", "short")]
    assert {"seed 0 (long)", "seed 0 (short)"} <= set(texts(draw_curves(runs).svg))


def test_a_figure_that_no_run_has_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run has the figure 'juge_acc'; did you mean 'judge_acc'\?"):
        draw_curves([write_run(tmp_path / "run")], ["juge_acc"])
    with pytest.raises(UsageError, match=r"no run has the figure 'x{158}…$"):
        draw_curves([tmp_path / "run"], ["x" * 5_000])


def test_a_run_without_a_step_has_nothing_to_draw(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="no step is finished yet"):
        draw_curves([run])


def test_hostile_names_do_not_break_the_picture(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(at), name=f"<b>&\x01{at}") for at in range(2)]
    assert "<b>&\ufffd0, seed 0" in texts(draw_curves(runs).svg)


def test_the_picture_loads_nothing(tmp_path: Path) -> None:
    picture = draw_curves([write_run(tmp_path / "run")]).svg
    assert picture.count("http") == 1  # the SVG namespace
    assert "url(" not in picture
    assert "@import" not in picture


def test_a_run_alone_has_its_interval_and_its_plot_is_a_file_or_an_image(tmp_path: Path) -> None:
    run = rg.Run(write_run(tmp_path / "run"))
    plot = run.plot("correct")
    assert 'class="band' in plot.svg and 'class="band' not in run.plot("correct", beside=[run.folder]).svg
    assert plot.save(tmp_path / "curves.svg").read_text(encoding="utf-8").startswith(plot.svg)
    if importlib.util.find_spec("resvg_py"):
        assert plot.save(tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="no ending of a drawing"):
        plot.save(tmp_path / "curves.pdf")
    address = re.search(r'src="data:image/svg\+xml,([^"]*)"', run._repr_html_())  # pyright: ignore[reportPrivateUsage]
    assert address and ElementTree.fromstring(unquote(html.unescape(address[1]))).tag.endswith("svg")


def test_a_png_has_its_texts_with_the_fonts_of_linux(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs the extra `png`")
    listed = (
        subprocess.run(["fc-list"], capture_output=True, text=True, check=False) if which("fc-list") else None
    )
    if not listed or not re.search("DejaVu Sans|Liberation Sans|Noto Sans|Arial", listed.stdout):
        pytest.skip("needs a font")
    plot = rg.Run(write_run(tmp_path / "run")).plot("correct")
    without = Drawing(re.sub(r"<text.*?</text>", "", plot.svg))
    assert len(plot.png()) > len(without.png())
