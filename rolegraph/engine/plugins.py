"""Parts of installed packages, found by entry points: the integrations of this package, and those of others.

`docs/packages.md` has the protocol of each group. Only the groups of the vocabulary have registries, too
(`engine/vocabulary/registry.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points
from pathlib import Path
from typing import Any, Literal

from rolegraph.engine.errors import FOREIGN_ERRORS, UsageError, describe_error, did_you_mean

Group = Literal[
    "backends",
    "call_forms",
    "clusters",
    "commands",
    "doors",
    "engines",
    "models",
    "observers",
    "reports",
    "trackers",
    "trainers",
]
"""Kind of plug-in; plug-ins of a kind register under the entry-point group `rolegraph.KIND`."""
_LOGGER = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[1]


@cache
def own_points(group: str) -> Mapping[str, EntryPoint]:
    """Return Rolegraph's own entry points of a group, by name, without reading those of other packages.

    Entry points of an integration whose folder was deleted are left out.

    Raises:
        UsageError: Rolegraph is not installed.
    """
    try:
        points = Distribution.from_name("rolegraph").entry_points
    except PackageNotFoundError as error:
        raise UsageError(
            "Rolegraph is not installed, so its parsers, rewards and so on cannot be found; "
            "in a checkout: pip install -e ."
        ) from error
    return {point.name: point for point in points.select(group=group) if _is_there(point)}


def _is_there(point: EntryPoint) -> bool:
    """Return True if the file of an entry point's module exists."""
    file = _PACKAGE.parent.joinpath(*point.module.split("."))
    return file.with_suffix(".py").exists() or (file / "__init__.py").exists()


def points_of(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of all packages by name; not cached, because a notebook may install a package
    meanwhile.

    Rolegraph's own entry point takes precedence over one of the same name.
    """
    return {
        **{point.name: point for point in entry_points(group=group) if not _is_own(point)},
        **own_points(group),
    }


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "rolegraph"


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that declares an entry point."""
    return point.dist.name if point.dist else "an installed package"


def plugin_names(group: Group) -> list[str]:
    """Return the names of a group's entry points, sorted."""
    return sorted(points_of(f"rolegraph.{group}"))


def plugin(group: Group, name: str) -> Any:
    """Import and return the object that a package registered under a name.

    Args:
        group: Kind of the part.
        name: Name of the entry point.

    Raises:
        UsageError: No package has the name, or the module cannot be imported.
    """
    points, kind = points_of(f"rolegraph.{group}"), group.removesuffix("s")
    if name not in points:
        expected_names = f"expected one of {', '.join(sorted(points))}" if points else "no package has any"
        raise UsageError(f"no {kind} {name!r}; {did_you_mean(name, points) or expected_names}")
    return load_point(points[name], kind)


def plugins(group: Group) -> dict[str, Any]:
    """Import and return all parts of a group, by name, in the order of their names.

    A part that needs a deleted folder of Rolegraph is left out; so is, with a warning, any other part that
    cannot be imported.
    """
    plugins_by_name: dict[str, Any] = {}
    for name in plugin_names(group):
        try:
            plugins_by_name[name] = plugin(group, name)
        except UsageError as error:
            missing_module = getattr(error.__cause__, "name", None) or ""
            if not missing_module.startswith("rolegraph."):
                _LOGGER.warning("%s", error)
    return plugins_by_name


def optional_plugin(group: Group, name: str) -> Any | None:
    """Return the object that a package registered under a name, as `plugin` does; None if no package has the
    name."""
    return plugin(group, name) if name in points_of(f"rolegraph.{group}") else None


def load_point(point: EntryPoint, kind: str) -> Any:
    """Import and return the object of an entry point; raise UsageError if the import fails.

    Args:
        point: The entry point.
        kind: Kind of the object, for the message.
    """
    try:
        return point.load()
    except FOREIGN_ERRORS as error:  # importing the module runs the package's own code
        noun = f"the {kind} {point.name!r} of {package_of(point)}"
        raise UsageError(f"{noun} cannot be loaded: {describe_error(error)}") from error
