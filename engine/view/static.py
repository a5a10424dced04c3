"""The viewer's pages as one HTML file: lists and their episodes, linked within the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.records.jsonl import write_whole
from rolegraph.engine.view.finding import EpisodeFilter, find
from rolegraph.engine.view.pages import Pages, anchor_of
from rolegraph.engine.view.runs import EpisodeLocation, ViewedRun


class _Anchors:
    """Links of the form `#e0-episodes-12`, for the episodes that are in the file."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def listing(self, run: int, where: EpisodeFilter, start: int = 0) -> str:
        return "#"

    def episode(self, run: int, row: EpisodeLocation, where: EpisodeFilter, start: int = 0) -> str | None:
        anchor = anchor_of(run, row)
        return f"#{anchor}" if anchor in self.known and not start else None

    def to(self, *path: object) -> str | None:
        return None


def write_static(
    runs: Sequence[ViewedRun],
    file: Path,
    *,
    hidden: bool,
    where: EpisodeFilter | None = None,
    most: int = 200,
) -> int:
    """Write the matching episodes of runs to one HTML file.

    Args:
        runs: Runs to show.
        file: Path of the file.
        hidden: Whether hidden task fields are shown.
        where: Filter of the episodes.
        most: Largest number of episodes of each run.

    Returns:
        The number of episodes in the file.

    Raises:
        DataError: A run cannot be read.
        WorldError: The file cannot be written.
    """
    where, links = where or EpisodeFilter(), _Anchors()
    readable = [(number, run) for number, run in enumerate(runs) if len(runs) == 1 or not run.fault]
    chosen = [(number, find(run, where, most=most), where) for number, run in readable]
    links.known = {anchor_of(number, row) for number, found, _ in chosen for row in found.rows}
    page = Pages(runs, links, hidden=hidden).static(chosen)
    write_whole(file, page.encode("utf-8", "replace"))
    return len(links.known)
