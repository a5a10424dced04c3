"""`rolegraph migrate`: files of version 1 of the language, rewritten in version 2."""

from __future__ import annotations

from pathlib import Path

import click

from rolegraph import api
from rolegraph.cli import options


@click.command("migrate")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=options.NamedPath())
def migrate_command(files: tuple[Path, ...]) -> int:
    """Rewrite FILES of version 1 of the language in version 2, in place.

    A file is a spec, its tests, or a page of Markdown with specs in YAML blocks; of a folder, such as that
    of a run, all files in it are taken. Comments, order, quotes and anchors stay. Each file that was
    changed is printed. What cannot be rewritten is named with its line, and the exit code is 1; so are
    specs in strings of Python. What means something else in version 2 has a note. A file of version 2 is
    left alone.
    """
    from rolegraph.migrate.files import find_files, migrate_file

    exit_code = 0
    for path in [*find_files(files)]:
        result = migrate_file(path)
        if result.is_changed:
            click.echo(api.printable(str(path)))
        for line, message in result.notes:
            click.echo(api.printable(f"{path}:{line}: note: {message}"), err=True)
        for line, message in result.problems:
            exit_code = 1
            click.echo(api.printable(f"{path}:{line}: {message}"), err=True)
    return exit_code
