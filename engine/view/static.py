"""The viewer's pages as one HTML file: lists and their episodes, linked within the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.records.jsonl import write_whole
from rolegraph.engine.view.finding import EpisodeFilter, find
from rolegraph.engine.view.pages import PageLinks, Pages, anchor_of
from rolegraph.engine.view.runs import ViewedRun


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
    where, links = where or EpisodeFilter(), PageLinks()
    readable = [(number, run) for number, run in enumerate(runs) if len(runs) == 1 or not run.fault]
    chosen = [(number, find(run, where, most=most), where) for number, run in readable]
    links.known = {anchor_of(number, row) for number, found, _ in chosen for row in found.rows}
    page = Pages(runs, links, hidden=hidden).static(chosen)
    write_whole(file, page.encode("utf-8", "replace"))
    return len(links.known)
