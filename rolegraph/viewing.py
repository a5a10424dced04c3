"""`rolegraph view`: runs and trainings in the browser, or as one file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.engine.errors import UsageError

if TYPE_CHECKING:
    from rolegraph.engine.view import ViewedRun


@dataclass(frozen=True, slots=True)
class RunViewer:
    """Runs to look at; see `view`.

    A filter is given as the page's address has it, by keyword: `role`, `failure` (a name, or `any`),
    `correct` (`yes` or `no`), `low` and `high` (of a reward), `task`, `text`, `split`, `step`, `sort` (`low`
    or `high`). UsageError is raised for what fits none of them.
    """

    runs: Sequence[ViewedRun]

    @property
    def hidden(self) -> list[str]:
        """The task fields that no prompt may show and that some of the first episodes have."""
        return sorted({field for run in self.runs for field in run.hidden_fields()})

    def serve(self, *, port: int = 0, ready: Callable[[str], None] = print, **where: str) -> None:
        """Serve pages on this machine until interrupted, and give their address to `ready`.

        The address holds the key: who has it can read the runs. Raises WorldError for a port that is taken,
        UsageError where an event loop runs.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "an event loop is running here already, as in a notebook: look at the run with "
                "`rolegraph view` in a terminal, or write a file"
            )
        from rolegraph.engine.view import EpisodeFilter
        from rolegraph.engine.view.serving import serve

        serve(self.runs, port=port, where=EpisodeFilter.of(_known(where)), ready=ready)

    def write(self, file: str | Path, *, hidden: bool, most: int = 200, **where: str) -> int:
        """Write the same as one file that opens offline: the first `most` episodes of each run that fit.

        `hidden` says whether it may show hidden fields. Returns how many episodes there are in it. Raises
        DataError and WorldError.
        """
        from rolegraph.engine.view import EpisodeFilter, write_static

        return write_static(
            self.runs, Path(file), hidden=hidden, where=EpisodeFilter.of(_known(where)), most=most
        )


def view(*runs: str | Path) -> RunViewer:
    """Look at the folders of runs and trainings, finished or not.

    A folder of runs, such as an evaluation's or a sweep's, stands for all that are in it. Raises UsageError
    for a folder that holds none, DataError for a damaged one.
    """
    from rolegraph.engine.records.folder import runs_in
    from rolegraph.engine.view import open_run

    if not runs:
        raise UsageError("which run? Give the folder of one, such as runs/mine")
    return RunViewer([open_run(folder) for run in runs for folder in runs_in(Path(run))])


def _known(where: dict[str, str]) -> dict[str, str]:
    from rolegraph.engine.errors import did_you_mean
    from rolegraph.engine.view.finding import FIELDS

    for name in where:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS) or f"there is {', '.join(FIELDS)}"
            raise UsageError(f"episodes cannot be filtered by {name!r}; {hint}")
    return where
