"""Tests that requirements.lock resolves pyproject.toml, and that CI installs it."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
INSTALLED_LOCK = Path(sys.prefix) / "constraints.txt"
"""Lock that the Makefile installed from; `make newest` and `TORCH=…` have another than LOCK."""
NOT_LOCKED = {"rolegraph", "pip", "setuptools"}
"""The project, and packages that a new virtual environment has."""


def locked(file: Path) -> dict[str, str]:
    """Return the versions of a lock, by name, for this Python and platform."""
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if re.match(r"\w", line))
    found = map(Requirement, lines)
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in found
        if one.marker is None or one.marker.evaluate()
    }


def applying(requirements: Iterable[str], extra: str) -> Iterator[Requirement]:
    """Yield the requirements whose marker holds here, with an extra."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def required() -> set[str]:
    """Return the names that `rolegraph[test]` requires, by the metadata of the installed packages."""
    found: set[tuple[str, str]] = set()
    todo = [("rolegraph", "test")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for one in applying(lines, extra):
            todo += [(canonicalize_name(one.name), wanted) for wanted in ("", *one.extras)]
    return {name for name, _ in found}


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="compares the environment that CI installs")
def test_the_installed_packages_are_those_of_the_lock() -> None:
    expected = locked(INSTALLED_LOCK if INSTALLED_LOCK.exists() else LOCK)
    present = {canonicalize_name(one.name): Version(one.version).public for one in distributions()}
    # CPU builds of torch require no CUDA libraries. A lock for another torch says nothing of its build.
    needed = required()
    names = {*expected, *present} - NOT_LOCKED if "torch" in expected else {*expected} & {*present}
    differences = [
        f"{name}: locked {expected.get(name)}, installed {present.get(name)}"
        for name in sorted(names)
        if expected.get(name) != present.get(name) and (name in present or name in needed)
    ]
    assert differences == []


def test_the_lock_meets_every_range_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    ranges = [*project["dependencies"]]
    for group in extras["test"]:
        ranges += [line for extra in Requirement(group).extras for line in extras[extra]]
    versions = locked(LOCK)
    outside = [
        line
        for line in ranges
        for one in [Requirement(line)]
        if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"), prereleases=True)
    ]
    assert outside == [], "run `make lock`"
