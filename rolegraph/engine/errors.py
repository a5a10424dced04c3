"""The exception hierarchy, and helpers for messages.

    RolegraphError (exit code 1)
    ├── UserError (exit code 2)
    │   ├── SpecError
    │   ├── DataError
    │   ├── AdvantageError
    │   ├── FailedRole
    │   └── UsageError
    ├── ModelError
    │   └── ContextFull
    ├── SandboxError
    │   └── UnsupportedProgram
    └── WorldError

A ModelError or SandboxError is recorded as the failure of one turn and does not end a run. A message names
the problem, the place, the expected value and the fix. No message contains an API key.
"""

from __future__ import annotations

import errno
import linecache
import sysconfig
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rolegraph.engine.limits.records import LINE_SHOWN, MESSAGE_TEXT
from rolegraph.engine.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from rolegraph.engine.spec import Diagnostic


class RolegraphError(Exception):
    """Base class of every exception that Rolegraph raises on purpose.

    `exit_code` is the exit code of a command that ends with this error: 1.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the message without secrets."""
        return without_secrets(super().__str__())


class UserError(RolegraphError):
    """Base class of mistakes that the user can fix; exit code 2."""

    exit_code: ClassVar[int] = 2


class SpecError(UserError, ValueError):
    """Raised for a spec that cannot be compiled; `diagnostics` has all faults in file order. Exit code 2."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(str(diagnostic) for diagnostic in self.diagnostics))


class DataError(UserError, ValueError):
    """Raised for a dataset or record file that is missing, unreadable or lacks a column; exit code 2."""

    def __init__(self, problem: str, hint: str = "") -> None:
        """Create the error.

        Args:
            problem: The problem and its place.
            hint: How to fix it, such as the nearest name.
        """
        self.problem, self.hint = without_secrets(problem), hint
        super().__init__("; ".join(filter(None, (problem, hint))))


class AdvantageError(UserError, ValueError):
    """Raised for a reward that is not finite, or advantages of the wrong type or shape; exit code 2."""


class FailedRole(UserError, RuntimeError):
    """Raised for a training step in which every answer of a role failed in the same way; exit code 2."""


class UsageError(UserError, ValueError):
    """Raised for a wrong command, flag, API key or name; exit code 2."""


class ModelError(RolegraphError, RuntimeError):
    """Raised for a model call without an answer; recorded as a failure of the turn.

    `transient` is True for a failure that a retry with backoff may resolve, such as overload or a dropped
    connection. `after` is the pause in seconds that the server asked for, or None.
    """

    def __init__(self, message: str, *, transient: bool = False, after: float | None = None) -> None:
        self.transient, self.after = transient, after
        super().__init__(message)


class ContextFull(ModelError):
    """Raised before a call whose prompt leaves no room for an answer in the model's context."""


class AnswerWithheld(ModelError):
    """Raised if a model refuses to answer, or a filter of its server withholds the answer."""


class SandboxError(RolegraphError, RuntimeError):
    """Raised for a sandboxed program that raised an exception or exceeded a limit.

    The message is the last line of the traceback; `output` is the text that the program had printed.
    """

    def __init__(self, message: str, output: str = "") -> None:
        self.output = output
        super().__init__(message)


class UnsupportedProgram(SandboxError):
    """Raised for a program that needs a part of Python which the sandbox's interpreter lacks."""


class WorldError(RolegraphError, OSError):
    """Raised for a failure of machine or network, such as a full disk or a dead endpoint; exit code 1."""


@contextmanager
def os_errors_as(kind: type[RolegraphError], action: str) -> Generator[None]:
    """Convert an operating system's error in a block to `kind`, with the action and the system's reason.

    Args:
        kind: Class of the error to raise.
        action: Beginning of the message, such as `cannot write PATH`.
    """
    try:
        yield
    except RolegraphError:
        raise
    except OSError as error:
        raise kind(f"{action}: {error.strerror or str(error).strip()}") from error


_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)},
    **{
        code: f"\\u{code:04x}"
        for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    },
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
}
"""Escape sequences of control characters, bidirectional marks and unpaired surrogates, by code point."""
_REPLACED = dict.fromkeys(_ESCAPES, "\ufffd")


def printable(text: str) -> str:
    """Return a text without secrets and with escaped control characters, so that it is safe to print on a
    terminal.

    Args:
        text: Any text, such as a model's answer.

    Returns:
        The text `without_secrets`, with control characters, bidirectional marks and unpaired surrogates as
        `\\x1b` or `\\u202e`.
    """
    text = without_secrets(text)
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def printable_line(line: str) -> str:
    """Return a line that is safe to print, with the same width: tabs become spaces, control characters
    U+FFFD."""
    return line.replace("\t", " ").translate(_REPLACED)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the error of a process that can get no more memory or threads."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def is_out_of_files(error: BaseException) -> bool:
    """Return True for the error of a process that can open no more files or connections, or an error caused
    by it."""
    errors = causes(error)
    return any(isinstance(it, OSError) and it.errno in (errno.EMFILE, errno.ENFILE) for it in errors)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and all errors that caused it, the outermost first."""
    errors = [error]
    for cause in errors:
        if isinstance(cause, BaseExceptionGroup):
            errors += cast("Sequence[BaseException]", cause.exceptions)
        further = cause.__cause__ or cause.__context__
        if further is not None and further not in errors:  # Tinker's error of a token is its own context
            errors.append(further)
    return errors


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut and without secrets; for an empty message, the name of
    the error's type."""
    message = without_secrets(str(error)).strip()
    return (message.splitlines() or [type(error).__name__])[0][: MESSAGE_TEXT.most]


class Suggestion(str):
    """Hint such as `did you mean 'judge'?`, with the names in it."""

    wrong: str
    """Misspelt name."""
    right: str
    """Nearest valid name."""
    certain: bool
    """True if no other valid name is equally near."""

    def __new__(cls, wrong: str, right: str, certain: bool, shown: str = "{!r}") -> Suggestion:
        """Create the hint; `shown` is the format of the suggested name."""
        hint = super().__new__(cls, f"did you mean {shown.format(right)}?")
        hint.wrong, hint.right, hint.certain = wrong, right, certain
        return hint

    def __reduce__(self) -> tuple[object, ...]:
        """Return only the text for pickling: a copy in another process is only printed."""
        return str, (str(self),)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name closest to a misspelt one, ignoring case; None if no name is close."""
    return next(iter(_nearest(name, names)), None)


def _nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the known names that are equally close to a misspelt one, closer than all others."""
    import difflib  # slow to import, and needed only for a misspelt name

    spellings: dict[str, list[str]] = {}
    for word in dict.fromkeys(names):
        spellings.setdefault(word.lower(), []).append(word)
    candidates = difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.6)
    # Two swapped letters are the likeliest slip; difflib counts them as two wrong ones.
    anagrams = [word for word in candidates if sorted(word) == sorted(name.lower())]
    matcher = difflib.SequenceMatcher(None, "", name.lower())  # the order of get_close_matches
    ratios: list[float] = []
    for word in candidates:
        matcher.set_seq1(word)
        ratios.append(matcher.ratio())
    best = anagrams or [word for word, ratio in zip(candidates, ratios, strict=True) if ratio == max(ratios)]
    best.sort(key=lambda word: word[0] != name[:1].lower())  # the first letter is seldom wrong
    return [word for key in best for word in reversed(spellings[key])]


def did_you_mean(name: str, names: Iterable[str], shown: str = "{!r}") -> str:
    """Return the hint `did you mean 'judge'?` for a misspelt name.

    Args:
        name: Misspelt name.
        names: Valid names.
        shown: Format of the suggested name.

    Returns:
        The hint, a Suggestion, or an empty string if no known name is close.
    """
    suggestions = _nearest(name, names)
    return Suggestion(name, suggestions[0], len(suggestions) == 1, shown) if suggestions else ""


FOREIGN_ERRORS = (Exception, SystemExit)
"""Errors that a caller of third-party code catches; `SystemExit` is among them, so that `sys.exit` in that
code ends no run."""


@contextmanager
def panics_as_errors() -> Generator[None]:
    """Convert a panic of a Rust library, which is no Exception, to RuntimeError within a block."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # its class cannot be imported
            raise
        raise RuntimeError(describe_error(error)) from None


def describe_error(error: BaseException, *, with_place: bool = False) -> str:
    """Return an error's type and message without secrets, cut to the length that a record keeps.

    Args:
        error: Error of third-party code.
        with_place: True to add `place_of` the error in brackets.
    """
    if with_place and (place := place_of(error)):
        return f"{describe_error(error)} ({place})"
    try:
        message = without_secrets(str(error))[: MESSAGE_TEXT.most]
    except Exception:  # `__str__` may be third-party code, too
        message = ""
    message = message.encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


PLACE_NOTE = "_rolegraph_place"
"""Attribute that carries the place of an error out of a worker process, which keeps the traceback."""
_LIBRARIES = (Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib")).resolve())
"""Folders of Rolegraph and of Python's standard library, whose code is not the user's."""


def place_of(error: BaseException) -> str:
    """Return the place in the user's own code that raised an error, such as `near.py:4: return 1 / 0`.

    Args:
        error: Error that was caught, or that `mark_place` marked in another process.

    Returns:
        File, line and text of the innermost line of the user's code, cut to the length of a faulty line;
        empty if no such code raised it. The path of a file below the working folder is relative to it; for
        any other file, only the name is given.
    """
    if marked_place := getattr(error, PLACE_NOTE, ""):
        return str(marked_place)
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if _is_users(file):
            text = linecache.getline(str(file), line, frame.f_globals).strip()
            place = f"{_shown_file(file)}:{line}: {text}"
    return place[: LINE_SHOWN.most]


def mark_place(error: BaseException) -> None:
    """Store on an error the place in the user's source where it was raised, so that pickling keeps the
    place."""
    if place := place_of(error):
        with suppress(Exception):  # an exception of a foreign class may refuse attributes
            setattr(error, PLACE_NOTE, place)


def _is_users(file: Path) -> bool:
    """Return True if a source file is the user's: not part of Rolegraph, Python's standard library or an
    installed package."""
    path = file.resolve()
    if str(file).startswith("<") or {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return not any(path.is_relative_to(folder) for folder in _LIBRARIES)


def _shown_file(file: Path) -> str:
    """Return a path relative to the working folder; for a file outside of it, only the file's name."""
    with suppress(OSError, ValueError):  # it lies elsewhere, or the working folder was deleted
        return str(file.resolve().relative_to(Path.cwd()))
    return file.name
