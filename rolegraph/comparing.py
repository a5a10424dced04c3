"""`rolegraph compare`: runs, trainings and specs held side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.running import describe
from rolegraph.workflow import Workflow, load

if TYPE_CHECKING:
    from rolegraph.engine.report.compare import Comparison, Side

SHOWN_IN_A_PAGE = 50
"""Tasks that flipped, each way and side, whose episodes a page holds at most."""


def compare(
    *sides: str | Path | Workflow,
    imports: Iterable[str | Path] = (),
    html: str | Path | None = None,
    shown: int = 3,
) -> Comparison:
    """Hold two or more sides against the first of them: folders of runs or trainings, specs, workflows.

    A folder of runs, such as an evaluation's or a sweep's, stands for all that are in it.

    What differs in the resolved specs, key by key; each figure with its interval, and the difference from
    the first side's, paired over the tasks that are the same on both; the tasks that flipped, `shown` of them
    each way with an episode of both sides; tokens and time. A training is compared by the validation of its
    best checkpoint. `html` is a file for all of it as one page that opens offline. Raises SpecError,
    UsageError (fewer than two, a folder that holds no run), DataError for a damaged one, and WorldError.
    """
    from rolegraph.engine.records.jsonl import write_whole
    from rolegraph.engine.report.compare import compare as held
    from rolegraph.engine.report.compare import comparison_page

    each = [one for side in sides for one in _all_of(side)]
    found = held(
        [_side(name, side, imports) for name, side in zip(_names(each), each, strict=True)],
        max(shown, SHOWN_IN_A_PAGE) if html else shown,
    )
    if html:
        write_whole(Path(html), comparison_page(found).encode("utf-8", "replace"))
    return found


def _all_of(side: str | Path | Workflow) -> Sequence[str | Path | Workflow]:
    from rolegraph.engine.records.folder import runs_in

    folder = None if isinstance(side, Workflow) else Path(side)
    return runs_in(folder) if folder and folder.is_dir() else [side]


def _side(name: str, side: str | Path | Workflow, imports: Iterable[str | Path]) -> Side:
    from rolegraph.engine.report.compare import Side, read_side
    from rolegraph.engine.spec.yaml_source import parse_yaml

    if not isinstance(side, Workflow):
        if Path(side).is_dir():
            return read_side(name, Path(side))
        side = load(side, imports=imports)
    info = describe(side, "run", seed=0)
    return Side(name, side.hash, parse_yaml(side.plan.resolved, name).data, info.templates)


def _names(sides: Iterable[str | Path | Workflow]) -> list[str]:
    """Each side by the last part of its path, or all of it where two have the same."""
    paths = [side.source.named_spec if isinstance(side, Workflow) else str(side) for side in sides]
    short = [Path(path).resolve().name for path in paths]
    times = Counter(short)
    names = [name if times[name] == 1 else path for name, path in zip(short, paths, strict=True)]
    again = Counter[str]()
    for at, name in enumerate(names):
        again[name] += 1
        if again[name] > 1:
            names[at] = f"{name} ({again[name]})"
    return names
