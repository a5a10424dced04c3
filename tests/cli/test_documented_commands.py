"""Tests that every command line of the documents names a command and flags that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from rolegraph.cli.main import cli
from tests.documents import PAGES, ROOT, TUTORIAL, blocks

COMMAND = re.compile(r"^(?:\S+=\S+ )*(?:\.venv/bin/)?rolegraph ([a-z].*)")
ADDED = "newest"
"""Command of the package in docs/packages.md."""


def lines(page: Path) -> list[str]:
    """Return what follows `rolegraph` on each command line of a page."""
    text = "\n".join(block for _, block in blocks(page, "sh", "console")).replace("\\\n", " ")
    return [found[1] for line in text.splitlines() if (found := COMMAND.match(line))]


@pytest.mark.parametrize("page", [TUTORIAL, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_flags_of_a_page_exist(page: Path) -> None:
    context = click.Context(cli)
    for line in lines(page):
        verb, *words = shlex.split(re.split(r" [&|]| >", line)[0], comments=True)
        if verb == ADDED:
            continue
        command = cli.get_command(context, verb)
        assert command is not None, line
        known = {
            flag for option in command.get_params(context) for flag in (*option.opts, *option.secondary_opts)
        }
        flags = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= known, f"{line}: {flags - known}"
