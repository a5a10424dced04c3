"""A drawing that can be written as SVG or PNG, and that a notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records.ownership import write_output

SCALE = 2
"""Pixels of a PNG for each pixel of the SVG."""
_KEPT = " !$&'()*+,-./:;=?@[]^_`{|}~"
"""Characters that a URL in double quotes holds as they are, once `&` is escaped for HTML."""


@dataclass(frozen=True, repr=False)
class Drawing:
    """Drawing such as learning curves; a notebook shows it as an image."""

    svg: str
    """The drawing as a self-contained SVG file."""

    @property
    def forms(self) -> Mapping[str, Callable[[], bytes]]:
        """Functions that return the drawing in a form, by the ending of a file in that form."""
        return {"svg": self.svg.encode, "png": self.png}

    def png(self) -> bytes:
        """Return the drawing as a PNG file on white; raises UsageError where resvg-py is not installed."""
        try:
            library: Any = import_module("resvg_py")  # it may not be there to take types from
        except ImportError as error:
            raise UsageError("a PNG needs the library resvg-py: pip install 'rolegraph[png]'") from error
        return bytes(library.svg_to_bytes(svg_string=self.svg, background="white", zoom=SCALE))

    def save(self, file: str | Path, form: str | None = None) -> Path:
        """Write the drawing to a file.

        Args:
            file: Path of the file.
            form: One of `forms`; by default the file's ending.

        Returns:
            The path.

        Raises:
            UsageError: The form is unknown, or resvg-py is not installed.
            WorldError: The file cannot be written.
        """
        path = Path(file)
        form = form or path.suffix.removeprefix(".").lower()
        if form not in self.forms:
            expected = f"expected one of {', '.join(f'.{name}' for name in self.forms)}"
            hint = did_you_mean(form, self.forms, ".{}") or expected
            raise UsageError(f"{path} has no ending of a drawing; {hint}")
        write_output(path, self.forms[form](), form)
        return path

    @property
    def image(self) -> str:
        """The drawing as an HTML image; inline, its style would be that of the whole page."""
        source = quote(self.svg.replace('"', "'").replace("\n", " "), safe=_KEPT).replace("&", "&amp;")
        return f'<img alt="" src="data:image/svg+xml,{source}">'

    def __repr__(self) -> str:
        return f"Drawing, {len(self.svg):,} characters of SVG"

    def _repr_svg_(self) -> str:
        return self.svg
