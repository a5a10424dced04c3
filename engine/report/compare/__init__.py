"""Runs, trainings and specs held side by side: what differs in what they are, and in what came of them.

The stages: `sides` (a folder to plain data), `differences` (specs, key by key), `comparison` (figures with
intervals, tasks that flipped, and all of it as HTML).
"""

from rolegraph.engine.report.compare.comparison import (
    Comparison,
    FigureRow,
    TaskFlip,
    TaskFlips,
    compare,
    comparison_page,
)
from rolegraph.engine.report.compare.differences import KeyDifference
from rolegraph.engine.report.compare.sides import Side, read_side

__all__ = [
    "Comparison",
    "FigureRow",
    "KeyDifference",
    "Side",
    "TaskFlip",
    "TaskFlips",
    "compare",
    "comparison_page",
    "read_side",
]
