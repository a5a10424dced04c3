"""Entry point of the command: runs a subcommand, and turns errors into one message and an exit code.

0 is success, 1 a fault of the environment (an endpoint is down, a disk is full), 2 a fault of the user (a
spec, a flag, a key), 130 an interruption, 141 a closed pipe. `--debug` anywhere on the command line shows the
traceback.
"""

from __future__ import annotations

import codecs
import errno
import gc
import importlib
import logging
import os
import signal
import stat
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedWriter, FileIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, NoReturn, get_args

import click

from rolegraph.api import (
    RolegraphError,
    SpecError,
    UsageError,
    did_you_mean,
    is_out_of_files,
    is_out_of_memory,
    printable,
)
from rolegraph.cli import options as options  # registers the completion of bash
from rolegraph.cli.doors import Section, Verb, contributions, doors
from rolegraph.cli.output import colour
from rolegraph.engine.plugins import plugin, plugin_names

VERBS = {
    "validate": Verb("Author", "Check specs and show every fault.", "rolegraph.cli.checks"),
    "test": Verb("Author", "Run a spec's tests on recorded answers.", "rolegraph.cli.checks"),
    "list": Verb("Author", "Show the specs and the vocabulary that a spec may use.", "rolegraph.cli.list_"),
    "skill": Verb("Author", "Print the language in two pages, as a skill for agents.", "rolegraph.cli.list_"),
    "schema": Verb("Author", "Write the JSON Schema of a spec, for an editor.", "rolegraph.cli.list_"),
    "trust": Verb("Author", "Let the rolegraph.toml of a folder count.", "rolegraph.cli.trusting"),
    "run": Verb("Run", "Run a spec on its tasks and write the episodes.", "rolegraph.cli.running"),
    "eval": Verb("Run", "Compare a checkpoint with its base model.", "rolegraph.cli.running"),
    "train": Verb("Train", "Train the roles of a spec.", "rolegraph.cli.training"),
    "episodes": Verb("Look", "List the episodes of a run that fit an expression.", "rolegraph.cli.episodes"),
    "show": Verb("Look", "Print the texts of an episode.", "rolegraph.cli.episodes"),
    "eject": Verb("Share", "Write a spec as code for another project.", "rolegraph.cli.ejecting"),
}
"""Commands of this package; doors add others."""
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
_OPEN_FILES = 10_240
"""Number of open files that a command may have if the hard limit allows it; macOS grants no more."""
INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + 13
"""Exit code after the reader of a pipe has closed it, as in `rolegraph list | head -1`: that of SIGPIPE,
which Windows lacks."""
COLLECT_AFTER = 100_000
"""Number of allocations between garbage collections, twice the number of objects that a subcommand's imports
make.

With Python's default of 700, collections take a sixth of the import time.
"""


class _Verbs(click.Group):
    """Command group that imports a command's module only when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_verbs(), *plugin_names("commands")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _verbs().get(cmd_name)
        if verb is None:
            return plugin("commands", cmd_name) if cmd_name in plugin_names("commands") else None
        try:
            module = importlib.import_module(verb.module)
        except ImportError as error:
            raise UsageError(f"the command {cmd_name} cannot be loaded: {error}") from error
        commands = [value for value in vars(module).values() if isinstance(value, click.Command)]
        command = next((command for command in commands if command.name == cmd_name), None)
        if command is None:
            raise UsageError(f"the command {cmd_name} is not in {verb.module}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(verb.section, name, verb.line) for name, verb in _verbs().items()]
        for name in plugin_names("commands"):
            rows.append(("From packages", name, _summary(name)))
        width = max(len(name) for _, name, _ in rows)
        for title in (*get_args(Section), "From packages"):
            if lines := [(name.ljust(width), line) for section, name, line in rows if section == title]:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"no such command {name!r}: {_instead_of(name, names)}")
        return super().resolve_command(ctx, args)


def _instead_of(name: str, names: Sequence[str]) -> str:
    """Return the command to type in place of an unknown command."""
    from rolegraph.api import shipped_specs
    from rolegraph.cli.list_ import KINDS
    from rolegraph.cli.output import command as command_line

    if name.endswith((".yaml", ".yml")) or name in shipped_specs():
        return f"type {command_line('run', name)}"
    if name in KINDS:
        return f"type {command_line('list', name)}"
    return did_you_mean(name, names, "rolegraph {}") or "`rolegraph --help` lists the commands"


def _named_here(error: click.ClickException) -> str:
    """Return a line with what to type after a usage error.

    The errors are a command without its SPEC, and an option with the name of a command or of a key of specs;
    other errors give an empty text.
    """
    from rolegraph.api import setting_named, specs_here
    from rolegraph.cli.output import command as command_line

    if isinstance(error, click.NoSuchOption) and (name := error.option_name.lstrip("-")) in _verbs():
        return f"next: {command_line(name)}\n"
    if isinstance(error, click.NoSuchOption) and (setting := setting_named(error.option_name.lstrip("-"))):
        return f"{error.option_name} is a key of the spec: write {setting}=VALUE\n"
    context = error.ctx if isinstance(error, click.MissingParameter) else None
    is_spec = context is not None and "SPEC" in error.format_message()
    if context is not None and is_spec and (local_specs := specs_here()):
        return f"next: {command_line(context.command.name or '', local_specs[0])}\n"
    return ""


@cache
def _verbs() -> Mapping[str, Verb]:
    """Return all commands by name; `eject` only if a door has a target for it."""
    verbs = {name: verb for door in doors() for name, verb in door.commands.items()} | VERBS
    return {name: verb for name, verb in verbs.items() if name != "eject" or contributions("eject")}


def _summary(name: str) -> str:
    """Return the first sentence of an installed command's help, or the reason why the command cannot be
    loaded."""
    try:
        return plugin("commands", name).get_short_help_str(80)
    except UsageError as error:
        return str(error)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(None, "-V", "--version", package_name="rolegraph", prog_name="rolegraph")
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; with any command."
)
def cli() -> None:
    """Declare a multi-role LLM workflow in YAML; run it, and get Episodes to train on.

    \b
    rolegraph run solver_judge                 a shipped spec, on the model that comes with it
    rolegraph train solver_judge               teach its roles, and see what they learn
    rolegraph run my.yaml --model openai:gpt-5 roles.solver.count=4
    rolegraph validate specs/*.yaml
    """


class Interrupted(KeyboardInterrupt):
    """Raised to end a command after a signal; `exit_code` is 128 plus the signal's number."""

    codes: ClassVar[list[int]] = []
    """Exit codes of the signals received since the command began."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number
        self.codes.append(self.exit_code)


def main() -> None:
    """Run the command and exit."""
    gc.set_threshold(COLLECT_AFTER)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as of nohup
        signal.signal(signal.SIGHUP, _end)
    _open_streams()
    _raise_open_files()
    code = run(sys.argv[1:])
    # Everything that was opened is closed by now. Tearing the interpreter down takes time, and native threads
    # of the Tinker SDK sometimes abort in it.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or CLOSED_PIPE
    except (OSError, ValueError):
        code = code or 1
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _interrupt(number: int, _frame: object) -> NoReturn:
    """Handle a signal as Ctrl-C is handled, so that open folders are closed and their locks removed."""
    raise Interrupted(number)


class _Output(FileIO):
    """Standard stream that drops text after its reader has gone: all text for a closed terminal, and progress
    for a closed pipe.

    After its terminal has closed, a command saves its work, or continues if it ignores SIGHUP.
    """

    def write(self, text: Any) -> int:
        """Write to the stream.

        Raises:
            OSError: The write fails, except at a closed terminal or a closed pipe of stderr.
        """
        try:
            return super().write(text)
        except OSError as error:
            is_lost = error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
            if not is_lost and (error.errno, self.fileno()) != (errno.EPIPE, 2):
                raise
            return len(text)


def _end(number: int, frame: object) -> None:
    """Handle the first SIGHUP like SIGTERM, and ignore the second, which the shell sends."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        _interrupt(number, frame)
    signal.raise_signal(signal.SIGTERM)


def _raise_open_files() -> None:
    """Raise the soft limit of open files, because the shells of macOS set 256, fewer than a run's
    connections."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted_limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted_limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted_limit, hard))


def _has_no_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _open_streams() -> None:
    """Open the null device for each closed standard stream; let the open output streams accept every
    character.

    A file would otherwise get a closed stream's number, and a library that prints would write into the file.
    An ASCII stream becomes UTF-8, as in click; in other encodings, missing characters are escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream: TextIOWrapper | None = getattr(sys, name)
        if stream is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this stream's
            setattr(sys, name, os.fdopen(file, "w" if number else "r"))
        elif number:
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            new_stream = TextIOWrapper(
                BufferedWriter(_Output(number, "w", closefd=False)),
                encoding="utf-8" if is_ascii else stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
            )
            setattr(sys, name, new_stream)
            setattr(sys, f"__{name}__", new_stream)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; errors are printed to standard error.

    Args:
        arguments: The command line without the program's name.

    Returns:
        0, 1, 2, or 128 plus the number of a signal; see the module's docstring.
    """
    Interrupted.codes.clear()
    sys.argv = ["rolegraph", *arguments]  # a run notes this command line, however the process was started
    with _printed_warnings():
        code = _run(arguments)
    if code in (1, 2) and _has_no_working_folder():
        click.echo("error: the working folder was deleted; `cd` into another", err=True)
        return 2
    return code


@contextmanager
def _printed_warnings() -> Generator[None]:
    """Print the warnings of the library's loggers during a block; a run's log has them as well."""
    printer, logger = _WarningPrinter(logging.WARNING), logging.getLogger("rolegraph")
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


class _WarningPrinter(logging.Handler):
    """Handler that prints log entries as warnings to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one entry."""
        with suppress(OSError, ValueError):  # standard error is closed or full
            click.echo(printable(f"warning: {record.getMessage()}"), err=True)


def _run(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word != "--debug"]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    try:
        result = cli.main(words, prog_name="rolegraph", standalone_mode=False, color=colour())
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        text = StringIO()
        error.show(text)
        text.write(_named_here(error))
        click.echo(printable(text.getvalue()), nl=False, err=True)
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click raises Abort from it
        click.echo(printable(" ".join(["interrupted", *getattr(cause, "__notes__", ())])), err=True)
        return getattr(cause, "exit_code", INTERRUPTED)
    except SystemExit:  # click's, for a closed pipe alone
        return CLOSED_PIPE
    except Exception as error:
        if Interrupted.codes:  # pydantic wraps what a handler raises in a serializer, without a cause
            click.echo("interrupted", err=True)
            return Interrupted.codes[-1]
        if "--debug" in arguments:
            import traceback

            click.echo(printable(traceback.format_exc()), err=True)
        elif isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("rolegraph."):
            click.echo(f"error: this needs {error.name}, which is not installed", err=True)
            return 2
        elif isinstance(error, FileNotFoundError) and _has_no_working_folder():
            return 2
        elif is_out_of_files(error):
            click.echo(printable(f"error: too many open files; raise `ulimit -n` ({error})"), err=True)
        elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            file_name = printable(str(error.filename))
            click.echo(f"error: file name too long: {file_name[:80]}…", err=True)
            return 2
        elif isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
            click.echo(f"error: cannot write the output: {error.strerror}", err=True)
        elif is_out_of_memory(error):
            click.echo(printable(f"error: not enough memory ({type(error).__name__}: {error})"), err=True)
            click.echo(
                "Finished work is kept; --resume goes on with more memory or less --concurrency.", err=True
            )
        elif isinstance(error, RolegraphError):
            click.echo(printable(str(error) if isinstance(error, SpecError) else f"error: {error}"), err=True)
        else:
            click.echo(printable(f"internal error: {type(error).__name__}: {error}"), err=True)
            click.echo("This is a bug in Rolegraph; run again with --debug for the traceback.", err=True)
        return error.exit_code if isinstance(error, RolegraphError) else 1
