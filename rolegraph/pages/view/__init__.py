"""Viewer of runs in the browser: episodes, their DAG on a time line, and the credit of each turn.

The viewer reads folders of runs and trainings, also unfinished ones; it runs no model and no code of a spec.
Data flows through `runs` (folders to rows), `overview` (the table of runs), `finding` (filter) and `listing`
(rows of episodes), `turns`, `timeline`, `trace` and `cards` (an episode to plain data), `pages` (plain
data to HTML, also as one file), and `serving`.
"""

from rolegraph.pages.view.finding import EpisodeFilter
from rolegraph.pages.view.pages import write_static
from rolegraph.pages.view.runs import ViewedRun, open_run

__all__ = ["EpisodeFilter", "ViewedRun", "open_run", "write_static"]
