"""Episodes of runs and trainings: pages in the browser, and rows of chats."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolegraph.api.recorded import as_table
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records import RUNS
from rolegraph.engine.records.jsonl import JsonlWriter, json_line
from rolegraph.engine.records.ownership import check_replaceable
from rolegraph.engine.records.staging import staged
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.pages.run_folders import runs_in
from rolegraph.pages.view import EpisodeFilter, ViewedRun, open_run, write_static
from rolegraph.pages.view.chats import chats
from rolegraph.pages.view.finding import FIELDS, find
from rolegraph.pages.view.overview import RunRow, RunsQuery, RunsTable, run_rows
from rolegraph.pages.view.pages import WrittenEpisodes
from rolegraph.pages.view.serving import serve


@dataclass(frozen=True, slots=True, repr=False)
class RunViewer(Summarized):
    """Viewer of runs and trainings; made by `view`.

    Its methods take the filters of the page's URL as keywords: `role`, `failure` (a name, or `any`),
    `correct` (`yes` or `no`), `low` and `high` (of a reward), `task`, `text`, `split`, `step`, `sort`
    (`task`, `low` or `high`).
    """

    runs: Sequence[ViewedRun]
    folders: Sequence[Path] = ()
    """Folders named by the user; `serve` also shows runs that begin in them later."""

    @property
    def hidden(self) -> list[str]:
        """Names of task fields that no prompt may show, from the first episodes."""
        return sorted({field for run in self.runs if not run.fault for field in run.hidden_fields()})

    def summary(self) -> Summary:
        """Return the number of runs, and a row for each with the first figure of each run."""
        rows = self.rows()
        figures = dict.fromkeys(name for row in rows for name in [*row.figures][:1])
        cells = [
            (
                row.name,
                f"{row.kind} of {row.spec}" if row.spec else "",
                row.started.strftime("%Y-%m-%d %H:%M") if row.started else "",
                row.fault or row.status,
                *(row.figures[name].cell if name in row.figures else None for name in figures),
            )
            for row in rows
        ]
        columns = ("run", "spec", "started (UTC)", "status", *figures)
        return Summary(f"RunViewer, {len(rows)} runs", columns, cells)

    def rows(self) -> Sequence[RunRow]:
        """Return the row of each run, the newest first; the row of a damaged run has its fault."""
        return RunsTable(run_rows(self.runs), RunsQuery()).rows

    def table(self) -> Any:
        """Return the list of runs: a row for each, the newest first.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dicts: `folder`, `kind`, `spec`,
            `model`, `seed`, `started`, `seconds`, `status`, the keys that commands set, and each figure, with
            its interval over n tasks as `FIGURE/low`, `FIGURE/high` and `FIGURE/n`.
        """
        return as_table([row.record for row in self.rows()])

    def serve(self, *, port: int = 0, ready: Callable[[str], None] = print, **where: str) -> None:
        """Serve pages on this machine until interrupted.

        Args:
            port: Port to listen at; 0 takes a free one.
            ready: Function that is called with the pages' address. The address holds a key: whoever has it
                can read the runs.
            where: Filters of the first page, as in the class's docstring.

        Raises:
            UsageError: An unknown filter, or an event loop runs already.
            WorldError: The port is taken.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "an event loop is already running, as in a notebook: run `rolegraph view` in a terminal, or "
                "write a file"
            )

        serve(self.runs, self.folders, port=port, where=parse_filters(where), ready=ready)

    def write(self, file: str | Path, *, hidden: bool, most: int = 200, **where: str) -> WrittenEpisodes:
        """Write the pages as one file that opens offline.

        Args:
            file: Path of the file.
            hidden: True to write task fields that no prompt may show, and texts that may quote them.
            most: Largest number of episodes of each run, the first that pass the filters.
            where: Filters of the episodes, as in the class's docstring.

        Returns:
            The number of episodes in the file, and of those that pass the filters and were left out.

        Raises:
            UsageError: An unknown filter.
            DataError: A run's files are damaged.
            WorldError: The file cannot be written.
        """

        return write_static(self.runs, Path(file), hidden=hidden, where=parse_filters(where), most=most)


def view(*runs: str | Path) -> RunViewer:
    """Open the folders of runs and trainings, finished or not, to be viewed.

    Args:
        runs: Folders; a folder of runs, such as an evaluation's or a sweep's, stands for all runs in it.
            Without any, all runs of the folder `runs`, the newest first.

    Returns:
        A viewer, whose `serve` shows pages in the browser and whose `write` makes one file.

    Raises:
        UsageError: A folder holds no run, or no folder is given and there is no folder `runs`.
        DataError: A run's files are damaged.
    """

    if not runs and not RUNS.is_dir():
        raise UsageError(f"there is no folder {RUNS}/ here; give the folder of a run, such as runs/mine")
    folders = [Path(run) for run in runs or (RUNS,)]
    opened_runs = [open_run(path) for folder in folders for path in runs_in(folder)]
    if not runs:
        opened_runs.sort(key=lambda run: "" if run.fault else str(run.info.started or ""), reverse=True)
    return RunViewer(opened_runs, folders)


def parse_filters(where: Mapping[str, str]) -> EpisodeFilter:
    """Return the filter of episodes that keyword arguments describe.

    Args:
        where: Filters, as the methods of `RunViewer` take them.

    Returns:
        The filter.

    Raises:
        UsageError: An unknown filter, or an invalid value.
    """
    for name in where:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS) or f"expected one of {', '.join(FIELDS)}"
            raise UsageError(f"episodes cannot be filtered by {name!r}; {hint}")
    return EpisodeFilter.of(where)


def export_chats(
    run: str | Path, file: str | Path, *, hidden: bool = False, force: bool = False, **where: str
) -> int:
    """Write the chats of a run's episodes as rows for supervised fine-tuning, one JSON object a line.

    A row has the chat's `messages` in OpenAI's form, and `task`, `rollout`, `role`, `index` and `reward`.
    Failed and masked turns, and turns in which a tool ran in place of a model, are left out. A conversation
    over several turns or calls is one row; in it, answers of other roles and of masked turns have `weight` 0.
    Chats of roles that show a hidden field (`sees`), or read such a role, are written only with `hidden`.

    Args:
        run: Folder of a run or a training; a folder of runs stands for all of them. Of a training, only
            training episodes are written unless `split` says otherwise.
        file: Path of the file.
        hidden: True to write chats that may quote a hidden field.
        force: True to replace an existing file.
        where: Filters of `view`: `role`, `low`, `high`, `correct`, `task`, `text`, `split`, `step`. `role`,
            `low` and `high` hold for the chat itself, the others for its episode.

    Returns:
        The number of rows.

    Raises:
        UsageError: No such run, an unknown filter, the file exists, or no chat fits.
        DataError: A run's files are damaged.
        WorldError: The file cannot be written.
    """
    file, filters = Path(file), parse_filters(where)
    if not force:
        check_replaceable(file)
    rows = 0
    with staged(file) as staged_file:
        with JsonlWriter(staged_file, "rows") as writer:
            for opened_run in view(run).runs:
                split = filters.split or ("train" if opened_run.info.kind == "train" else "")
                matches = find(opened_run, replace(filters, split=split), most=sys.maxsize, hidden=hidden)
                for row in matches.rows:
                    episode = opened_run.read(row)
                    for chat in chats(episode if hidden else opened_run.without_hidden(episode), filters):
                        writer.append(json_line(chat))
                        rows += 1
        if not rows:
            quoting = sorted({name for opened_run in view(run).runs for name in opened_run.rule.quoting})
            hint = f"; the chats of {', '.join(quoting)} need --hidden" if quoting and not hidden else ""
            raise UsageError(f"{run} has no chat that fits{hint}; nothing was written")
    return rows
