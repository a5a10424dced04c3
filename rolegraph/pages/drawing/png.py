"""SVG to PNG, by the library resvg-py of the extra `png`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rolegraph.engine.errors import UsageError

SCALE = 2
"""Pixels of a PNG for each pixel of the SVG."""


def png_of(svg: str) -> bytes:
    """Return an SVG as a PNG file on white; raises UsageError where resvg-py is not installed."""
    try:
        library: Any = import_module("resvg_py")  # it may not be there to take types from
    except ImportError as error:
        raise UsageError("a PNG needs the library resvg-py: pip install 'rolegraph[png]'") from error
    return bytes(library.svg_to_bytes(svg_string=svg, background="white", zoom=SCALE))
