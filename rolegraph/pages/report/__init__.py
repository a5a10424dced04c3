"""Report of a training as one HTML page that opens offline, and its learning curves as one SVG picture.

The input is the folder that a training run writes; the package imports no model and no trainer. The stages:
`reading` and `digest` (files to plain data), `panels` (data to charts), `charts` (numbers to SVG),
`page` (all of it to HTML, with `html` for what other pages share), `picture` (curves of several runs).
"""

from rolegraph.pages.report.page import write_report
from rolegraph.pages.report.picture import draw_curves

__all__ = ["draw_curves", "write_report"]
