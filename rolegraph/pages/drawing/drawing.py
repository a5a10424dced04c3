"""A drawing that can be written as SVG or PNG, and that a notebook shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.ownership import write_output
from rolegraph.pages.drawing.png import png_of

_KEPT = " !$&'()*+,-./:;=?@[]^_`{|}~"
"""Characters that a URL in double quotes holds as they are, once `&` is escaped for HTML."""


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """Drawing such as learning curves; a notebook shows it as an image."""

    svg: str
    """The drawing as a self-contained SVG file."""

    def png(self) -> bytes:
        """Return the drawing as a PNG file on white; raises UsageError where resvg-py is not installed."""
        return png_of(self.svg)

    def save(self, file: str | Path) -> Path:
        """Write the drawing to a file.

        Args:
            file: Path of the file, which ends in `.svg` or `.png`.

        Returns:
            The path.

        Raises:
            UsageError: The file has another ending, or resvg-py is not installed.
            WorldError: The file cannot be written.
        """
        path = picture_path(file)
        data = self.png() if path.suffix == ".png" else self.svg.encode()
        write_output(path, data, path.suffix[1:])
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


def picture_path(file: str | Path) -> Path:
    """Return the path of a drawing.

    Raises:
        UsageError: The path ends in neither `.svg` nor `.png`.
    """
    path = Path(file)
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"{path} is neither .svg nor .png, the forms of a picture")
    return path
