"""Doors: commands, and options of other commands, that folders and packages add to the command line.

A door is found by its entry point in `rolegraph.doors`, so a deleted folder has no door. The module of a door
imports little, because `rolegraph --help` imports all doors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rolegraph.engine.plugins import plugins

_logger = logging.getLogger(__name__)
Section = Literal["Author", "Run", "Train", "Look", "Share"]
"""Section of `rolegraph --help`."""
Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Decorator of a command's function that adds options, and handles their values or passes them on."""


class Verb(NamedTuple):
    """Command as `rolegraph --help` lists it."""

    section: Section
    line: str
    """Description in one line."""
    module: str
    """Module with the click command of this name."""


class Door(NamedTuple):
    """Commands and options that a folder of `rolegraph` or a package adds to the command line."""

    commands: Mapping[str, Verb] = MappingProxyType({})
    """Commands by name."""
    options: Mapping[str, Decorate] = MappingProxyType({})
    """Options by place: the name of a command, `model` for each command that opens a model, or `episodes` for
    `run` and `train`."""


@cache
def doors() -> list[Door]:
    """Return the Door of each folder and package that has one, sorted by name.

    An entry point that is no Door is left out, with a warning.
    """
    registered_doors = plugins("doors")
    for name in [name for name, door_ in registered_doors.items() if not isinstance(door_, Door)]:
        _logger.warning("the door %r is no rolegraph.cli.doors.Door", name)
        del registered_doors[name]
    return [*registered_doors.values()]


def contributions(place: str) -> list[Decorate]:
    """Return the decorators of all doors that add options at a place, such as the command `run`."""
    return [door.options[place] for door in doors() if place in door.options]


def contributed(place: str) -> Decorate:
    """Return a decorator that adds the options of all doors for a place to a command's function."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for add_options in contributions(place):
            command = add_options(command)
        return command

    return decorate
