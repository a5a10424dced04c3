"""Runs in the browser: every episode, its DAG on a time line, and what each turn was credited with and why.

In go folders that runs and trainings write, while they are written; nothing here runs a model or code of a
spec. One walk: `runs` (folders to rows by the index) → `finding` (the rows that are asked for) → `turns`,
`timeline`, `trace` (an episode to plain data) → `pages` (plain data to HTML) → `serving` or `static`.
"""

from rolegraph.engine.view.finding import EpisodeFilter
from rolegraph.engine.view.runs import ViewedRun, open_run
from rolegraph.engine.view.static import write_static

__all__ = ["EpisodeFilter", "ViewedRun", "open_run", "write_static"]
