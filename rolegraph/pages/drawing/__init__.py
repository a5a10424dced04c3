"""Drawings of a spec's roles: Mermaid and SVG.

The stages: `picture` (boxes, arrows and clusters of a spec), `layout` (their places), `svg` and `mermaid`.
Pure, and from the parsed spec alone, so that the spec in a run's folder can be drawn without its vocabulary.
"""

from rolegraph.pages.drawing.picture import Picture, picture_of

__all__ = ["Picture", "picture_of"]
