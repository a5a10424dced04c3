"""Tasks of verifiers environments, loaded in a separate process, because their code is the environment's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from shutil import which
from typing import Annotated, Any, Literal

from pydantic import Field

from rolegraph.engine.limits.records import ROW_TEXT
from rolegraph.engine.records import check_plain
from rolegraph.engine.vocabulary import DataError, Dataset, Row, Split, dataset_of, require_library
from rolegraph.engine.vocabulary.children import child_environment, supervised
from rolegraph.roles.tables import parse_row

COLUMNS = ("id", "question", "answer", "prompt", "info", "task")
END_SECONDS = 5
"""Seconds that a process has to exit after its output has ended."""
_ID = re.compile(r"(?:\w[\w.-]*/)?(\w[\w.-]*?)(?:@[\w.-]+)?")
"""Pattern of an environment's id, `OWNER/NAME@VERSION`; the group is the name."""


def verifiers(
    env: str,
    /,
    *,
    args: dict[str, Any] | None = None,
    split_name: Literal["train", "eval"] | None = None,
    count: Annotated[int, Field(ge=1)] | None = None,
    hidden: list[str] | None = None,
    python: str | None = None,
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 600.0,
    split: Split = "train",
) -> Dataset:
    """Take the tasks of a verifiers environment: id, question, answer, prompt, info, task.

    env: the environment's id, such as primeintellect/gsm8k; its package is installed, and allowed on the
      command line
    args: the environment's arguments, such as {split: test}
    split_name: which of its datasets, where that is not train for training and eval for validation; a taskset
      of verifiers v1 has one set
    count: how many tasks at most
    hidden: columns that no prompt may show; left out, answer and info
    python: the interpreter of another virtual environment, as an absolute path, which must be allowed, too
    timeout: seconds for loading, and for each further task
    """
    id_match = _ID.fullmatch(env)
    if id_match is None:
        raise ValueError(f"{env!r} is not the id of an environment, such as primeintellect/gsm8k")
    if python is None:
        require_library("verifiers", "verifiers", "tasks of verifiers environments")
    elif not Path(python).is_absolute():
        raise ValueError(
            f"python is {python!r}; expected an absolute path, such as /opt/verifiers/bin/python"
        )
    request = {"env": env, "args": args or {}, "part": split_name, "split": split, "count": count}
    read_rows = partial(_read, env, json.dumps(request), python, timeout)
    dataset = dataset_of(
        read_rows,
        columns=COLUMNS,
        hidden=["answer", "info"] if hidden is None else hidden,
        stem=id_match[1],
        split=split,
        shown=env,
    )
    permissions = [f"verifiers:{env}", *([f"interpreter:{python}"] if python else [])]
    return replace(dataset, permissions=tuple(permissions))


def _read(env: str, request: str, python: str | None, timeout: float) -> Iterator[tuple[int, Row]]:
    """Yield (number, task) for the tasks of an environment, numbered from 1.

    Args:
        env: Id of the environment.
        request: Request to the loading process, as JSON.
        python: Interpreter of the process; None for this one.
        timeout: Seconds for loading, and for each further task.
    """
    process = start_loader(python)
    try:
        assert process.stdin
        with suppress(BrokenPipeError):  # the process has died, as its output will show
            process.stdin.write(request.encode())
            process.stdin.close()
        for number, line in enumerate(_lines(process, env, timeout), 1):
            record: Any = parse_row(line, f"{env}:{number}", check_plain)
            match record:
                case {"row": {**row}}:
                    yield number, row
                case {"error": str(reason)}:
                    raise DataError(f"the verifiers environment {env} cannot be used: {reason}")
                case {"end": True}:
                    return
                case _:
                    raise DataError(f"{env}:{number}: no task")
        with suppress(subprocess.TimeoutExpired):  # a process may close its output and stay
            process.wait(END_SECONDS)
        process.terminate()
        raise DataError(f"the process that loads {env} has ended (exit code {process.wait()})")
    finally:
        process.terminate()
        process.wait()


def start_loader(python: str | None) -> subprocess.Popen[bytes]:
    """Start the process that loads an environment, in this interpreter or in `python`.

    The process's module path contains neither the current folder nor the folder of the script, so that a
    `types.py` there does not replace the standard library's.
    """
    # The environment's code is what the user has allowed: it sees all variables but secrets.
    variables = child_environment(own_code=True)
    if python is not None:  # the packages of this interpreter are not those of the other one
        variables["PYTHONPATH"] = ""
    pipe = subprocess.PIPE
    command = supervised([python or sys.executable, "-P", str(Path(__file__).with_name("rows.py"))])
    if python is not None and which(python) is None:
        raise DataError(f"cannot start the interpreter {python}: there is no such program")
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=variables)


def _lines(process: subprocess.Popen[bytes], env: str, timeout: float) -> Iterator[str]:
    """Yield the lines that a process prints.

    Raises:
        DataError: A line is too long, or comes too late.
    """
    assert process.stdout
    file, partial_line = process.stdout.fileno(), b""
    while wait([file], timeout):
        chunk = os.read(file, 1 << 16)
        if not chunk:
            return
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        if any(len(line) > ROW_TEXT.most for line in (*lines, partial_line)):
            raise DataError(ROW_TEXT.exceeded(f"{env}: a task has"))
        for line in lines:
            yield line.decode(errors="replace")
    raise DataError(f"{env} gives no further task within {timeout:g} s")
