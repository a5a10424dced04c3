"""`rolegraph report`: pages and a picture of trainings; `rolegraph compare`: comparisons of runs or specs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rolegraph.api.jobs import describe
from rolegraph.api.workflow import Workflow, load
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.folder import missing_run
from rolegraph.engine.records.ownership import write_output
from rolegraph.engine.spec.yaml_source import parse_yaml
from rolegraph.pages.report import draw_curves, write_report
from rolegraph.pages.report.compare.comparison import Comparison
from rolegraph.pages.report.compare.comparison import compare as compare_sides
from rolegraph.pages.report.compare.page import FLIPS_OF_PAGE, comparison_page
from rolegraph.pages.run_folders import runs_in
from rolegraph.pages.sides import Side, read_side, read_steps, side_names
from rolegraph.pages.view.pages import write_report_pages


def compare(
    *sides: str | Path | Workflow,
    imports: Iterable[str | Path] = (),
    html: str | Path | None = None,
    shown: int = 3,
    best: bool = False,
    steps: Sequence[int] = (),
) -> Comparison:
    """Compare two or more runs, trainings or specs with the first of them.

    A training is compared by its last validation, and in a second verdict by the validation of its best
    checkpoint.

    Args:
        sides: Folders of runs or trainings, specs (files or names of shipped specs), or workflows. A folder
            of runs, such as an evaluation's or a sweep's, stands for all runs in it.
        imports: Python files that register rewards, parsers and so on, for the specs.
        html: File to write the comparison to, as one page that opens offline; None writes no file.
        shown: Largest number of flipped tasks, in each direction, that are returned with an episode of both
            sides.
        best: True to compare trainings by the validations of their best checkpoints first.
        steps: Steps of a training that are the sides, such as `(10, 30)`; `sides` is then its folder alone.
            They are compared by their validations, or if a step has no validation, by their training
            episodes.

    Returns:
        A verdict on each side; the keys that differ in the resolved specs; each figure with its interval, and
        the difference from the first side, paired over the tasks that both have; the tasks that flipped;
        tokens and time.

    Raises:
        SpecError: A spec has faults.
        UsageError: Fewer than two sides, a folder that holds no run, or a step without episodes.
        DataError: A run's files are damaged.
        WorldError: The page cannot be written.
    """

    comparison = compare_sides(
        _steps(sides, steps) if steps else _sides(sides, imports, best=best),
        max(shown, FLIPS_OF_PAGE) if html else shown,
    )
    if html:
        write_output(Path(html), comparison_page(comparison, best=best).encode("utf-8", "replace"), "html")
    return comparison


def _sides(
    sides: Sequence[str | Path | Workflow], imports: Iterable[str | Path], *, best: bool
) -> list[Side]:
    all_sides = [expanded for side in sides for expanded in _expand(side)]
    paths = [side.source.named_spec if isinstance(side, Workflow) else str(side) for side in all_sides]
    return [_side(name, side, imports, best) for name, side in zip(side_names(paths), all_sides, strict=True)]


def _steps(sides: Sequence[str | Path | Workflow], steps: Sequence[int]) -> list[Side]:
    folders = [Path(side) for side in sides if not isinstance(side, Workflow)]
    if len(folders) != 1 or len(sides) != 1:
        raise UsageError("steps are those of one training; give its folder alone")
    return read_steps(folders[0].resolve().name, folders[0], steps)


def _expand(side: str | Path | Workflow) -> Sequence[str | Path | Workflow]:
    folder = None if isinstance(side, Workflow) else Path(side)
    return runs_in(folder) if folder and folder.is_dir() else [side]


def _side(name: str, side: str | Path | Workflow, imports: Iterable[str | Path], best: bool) -> Side:
    if not isinstance(side, Workflow):
        if Path(side).is_dir():
            return read_side(name, Path(side), best=best)
        path = Path(side)
        if path.parent != Path() and not path.suffix and not path.exists():
            raise missing_run(path)
        side = load(side, imports=imports)
    info = describe(side, "run", seed=0)
    return Side(name, side.hash, parse_yaml(side.plan.resolved, name).data, info.templates)


def report(
    *runs: str | Path,
    out: str | Path | None = None,
    picture: str | Path | None = None,
    figures: Sequence[str] = (),
    home: str = "",
) -> list[Path]:
    """Write `report.html` into the folder of each training; the page opens from disk without a network.

    Args:
        runs: Folders of trainings.
        out: Folder for the report of one training as `index.html`, with pages of the episodes that it links
            to, in place of `report.html`. No page shows a hidden field.
        picture: File to write the learning curves of all trainings to, SVG or PNG by its ending; None writes
            no file.
        figures: Figures of the picture; by default the spec's metrics.
        home: URL of the site that the pages in `out` are part of, to which each page links.

    Returns:
        The paths of the pages.

    Raises:
        UsageError: A folder holds no training; `out` is for several; or the picture has another ending, or
            needs resvg-py.
        DataError: A folder's files are damaged.
        WorldError: A file cannot be written.
    """
    folders = [Path(run) for run in runs]
    if out is not None and len(folders) != 1:
        raise UsageError(f"out is the folder of one training's pages; got {len(folders)} trainings")
    if home and out is None:
        raise UsageError("home is the site of the pages in out; give out")
    if picture is not None:
        draw_curves(folders, figures).save(picture)
    return [
        write_report_pages(folder, Path(out), home) if out else write_report(folder) for folder in folders
    ]
