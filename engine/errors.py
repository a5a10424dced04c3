"""Every error Rolegraph raises on purpose, and whose mistake each one is.

    RolegraphError
    ├── UserError            the person can mend it: exit code 2
    │   ├── SpecError        a spec is wrong; carries every diagnostic of the file
    │   ├── DataError        a dataset or a file of records is missing, unreadable or lacks a column
    │   ├── AdvantageError   a reward, signal or estimator gave what nothing can learn from
    │   └── UsageError       a command, flag, key or name is wrong
    ├── ModelError           one call to a model failed: becomes a named failure, not the end of a run
    │   └── ContextFull      what it would be asked leaves no room for an answer
    ├── SandboxError         a program that a model wrote failed: likewise
    └── WorldError           the machine or network failed: exit code 1

A message says what happened, where, what was expected and how to mend it. No message carries a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rolegraph.engine.spec import Diagnostic


class RolegraphError(Exception):
    """Root of the family; `exit_code` is what the command line returns for it."""

    exit_code: ClassVar[int] = 1


class UserError(RolegraphError):
    """A mistake that the person at the keyboard can mend."""

    exit_code: ClassVar[int] = 2


class SpecError(UserError, ValueError):
    """A spec that cannot be compiled; `diagnostics` holds all its faults, in file order."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(str(diagnostic) for diagnostic in self.diagnostics))


class DataError(UserError, ValueError):
    """A dataset or a file of records that is missing, unreadable, or lacks a column that the spec reads."""


class AdvantageError(UserError, ValueError):
    """A reward that is no finite number, an advantage of the wrong type, an estimator's wrong shape."""


class UsageError(UserError, ValueError):
    """A wrong flag, a missing key, a name that nothing answers to."""


class ModelError(RolegraphError, RuntimeError):
    """One model call that gave no answer.

    `transient` says whether the same call may succeed later (overload, a dropped connection);
    only then is it worth a retry with backoff. `after` is how many seconds the server asks to wait before.
    """

    def __init__(self, message: str, *, transient: bool = False, after: float | None = None) -> None:
        self.transient, self.after = transient, after
        super().__init__(message)


class ContextFull(ModelError):
    """A call that was not made, because its prompt leaves no room in the model's context for an answer."""


class SandboxError(RolegraphError, RuntimeError):
    """A program that a model wrote raised something, or was over a limit.

    The message is one line, as Python says it; `output` is what the program had printed by then.
    """

    def __init__(self, message: str, output: str = "") -> None:
        self.output = output
        super().__init__(message)


class WorldError(RolegraphError, OSError):
    """The machine or the network failed: an endpoint is down, a disk is full, a service died."""


_UNSEEN = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)},
    **{
        code: f"\\u{code:04x}"
        for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    },
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
}
"""What moves a cursor, colours or turns a text round, and half characters; how each is written instead."""
_UNSEEN_MARK = dict.fromkeys(_UNSEEN, "\ufffd")


def printable(text: str) -> str:
    """A text from elsewhere as a terminal may be given it: control characters are spelt out."""
    return text if text.isascii() and text.isprintable() else text.translate(_UNSEEN)


def printable_line(line: str) -> str:
    """As `printable`, of the same width: tabs are spaces, and a mark stands for what cannot be shown."""
    return line.replace("\t", " ").translate(_UNSEEN_MARK)


def first_line(error: BaseException) -> str:
    """What a library's error says, without the advice that follows it; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one, whatever its case, or None where none is close."""
    import difflib  # only for whoever made a slip

    spelt = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=3, cutoff=0.6)
    # Two letters that changed places are the likeliest slip, which difflib takes for two others.
    swapped = [word for word in close if sorted(word) == sorted(name.lower())]
    return next((spelt[word] for word in (*swapped, *close)), None)


def did_you_mean(name: str, known: Iterable[str], shown: str = "{!r}") -> str:
    """The hint `did you mean 'judge'?` for a misspelt name; empty where nothing known is close.

    `shown` is how the name stands in it, where it is not simply quoted.
    """
    close = nearest(name, known)
    return f"did you mean {shown.format(close)}?" if close else ""
