"""Progress of a run or a training in a notebook: one output that is replaced, without widgets."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from rolegraph.api.progress import NoteProgress
from rolegraph.engine.records import Event, Observer

RENEWED = 0.2
"""Least number of seconds between two states of the bar, since each is a message to the browser."""


def is_notebook() -> bool:
    """Return True in the process of a notebook's kernel."""
    shell: Any = import_module("IPython").get_ipython()
    return hasattr(shell, "kernel")


class NotebookProgress(NoteProgress):
    """Steps, the latest note and the episodes of its activity, as HTML bars or as a line of text."""

    def __init__(self, steps: int | None = None) -> None:
        super().__init__("episodes", steps=steps)
        self._began = monotonic()

    @property
    def _bars(self) -> list[tuple[str, int, int]]:
        """(name, number done, total) of each bar; the total is 0 if unknown."""
        visible_tasks = (task for task in self.progress.tasks if task.visible)
        return [(task.description, int(task.completed), int(task.total or 0)) for task in visible_tasks]

    def __repr__(self) -> str:
        counts = (f"{name} {finished}/{total}" if total else name for name, finished, total in self._bars)
        return f"{', '.join(counts)}, {monotonic() - self._began:.0f} s"

    def _repr_html_(self) -> str:
        html_parts = [
            f'{escape(name)} <progress max="{total}" value="{finished}"></progress> {finished:,} of {total:,}'
            if total
            else escape(name)
            for name, finished, total in self._bars
        ]
        return f"<div>{' · '.join(html_parts)} · {monotonic() - self._began:.0f} s</div>"


@contextmanager
def notebook_bars(observe: Observer, steps: int | None) -> Generator[Observer]:
    """Show the progress of a run or a training below a notebook's cell for the time of a block.

    Args:
        observe: Function that gets each event as well.
        steps: For a training: number of its steps.

    Returns:
        A context manager that yields the observer for the work in the block.
    """
    # tqdm, which libraries import, looks for ipywidgets and warns in the middle of the output.
    warnings.filterwarnings("ignore", "IProgress not found")
    bars = NotebookProgress(steps)
    output: Any = import_module("IPython.display").display(bars, display_id=True)
    last_shown = monotonic()

    def watch(event: Event) -> None:
        nonlocal last_shown
        bars.observe(event)
        if monotonic() - last_shown > RENEWED:
            last_shown = monotonic()
            output.update(bars)
        observe(event)

    try:
        yield watch
    finally:
        output.update(bars)
