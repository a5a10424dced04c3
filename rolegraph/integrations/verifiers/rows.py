"""Process that loads an environment of verifiers and writes its tasks as lines of JSON.

Input: a request on standard input. Output: `{"row": …}` for each task, then `{"end": true}`, or
`{"error": …}`. The interpreter may belong to another virtual environment, so this file runs as a script, and
imports only the standard library and verifiers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

Row = dict[str, Any]
Request = Mapping[str, Any]
"""Request for a dataset's tasks, with `env`, `args`, `part` ("train", "eval", or None to follow `split`),
`split` and `count`."""

_OWN = ("example_id", "prompt", "question", "answer", "info", "task")
"""Columns of a verifiers dataset that become columns of the tasks, or are left out."""


class NotUsable(Exception):
    """Reason why an environment gives no tasks."""


def rows(request: Request) -> Iterator[Row]:
    """Yield the tasks of an environment: of a verifiers v1 taskset, else of the result of `load_environment`.

    Raises:
        NotUsable: Verifiers is not installed, or the environment lacks the requested tasks.
        Exception: Any error of the environment.
    """
    if importlib.util.find_spec("verifiers") is None:
        raise NotUsable(f"verifiers is not installed for {sys.executable}: pip install verifiers")
    library: Any = importlib.import_module("verifiers")
    taskset = None if importlib.util.find_spec("verifiers.v1") is None else _taskset(library, request)
    if taskset is not None:
        return _taskset_rows(taskset, request)
    return _dataset_rows(library.load_environment(request["env"], **request["args"]), request)


def _taskset(library: Any, request: Request) -> Any:
    """Load the v1 taskset of an environment; None for an environment from before verifiers v1."""
    loaders: Any = importlib.import_module("verifiers.v1.utils.loaders")
    try:
        config = loaders.taskset_config_type(request["env"])
    except (TypeError, AttributeError):  # the package exports no taskset
        if hasattr(library, "load_environment"):  # importing it takes seconds
            return None
        raise
    return loaders.load_taskset(config.model_validate({**request["args"], "id": request["env"]}))


def _taskset_rows(taskset: Any, request: Request) -> Iterator[Row]:
    if request["part"] is not None:
        raise NotUsable("it is a taskset, which has one set of tasks: choose by `args`, not by `split_name`")
    if taskset.INFINITE and request["count"] is None:
        raise NotUsable("its taskset has no end: say how many tasks by `count`")
    common_fields = {*importlib.import_module("verifiers.v1").TaskData.model_fields}
    for task in islice(taskset, request["count"]):
        data = task.data.model_dump(mode="json")
        fields = {name: value for name, value in data.items() if name not in common_fields}
        prompt: str | list[Row] = data["prompt"] or []
        messages: list[Row] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if data["system_prompt"]:
            messages = [{"role": "system", "content": data["system_prompt"]}, *messages]
        yield {
            **({"id": data["id"]} if data.get("id") else {}),
            "question": task.data.prompt_text,
            "answer": fields.pop("answer", None),
            "prompt": messages,
            "info": _info(fields.pop("info", None), fields),
            "task": data["name"] or "",
        }


def _dataset_rows(environment: Any, request: Request) -> Iterator[Row]:
    subset = request["part"] or ("train" if request["split"] == "train" else "eval")
    names = ("eval_dataset", "eval_dataset_source") if subset == "eval" else ("dataset", "dataset_source")
    if all(getattr(environment, name, None) is None for name in names):
        other_part = "train" if subset == "eval" else "eval"
        raise NotUsable(f"it has no {subset} set; `split_name: {other_part}` takes its other one")
    dataset = environment.get_eval_dataset() if subset == "eval" else environment.get_dataset()
    for row in islice(dataset, request["count"]):
        other_columns = {name: value for name, value in row.items() if name not in _OWN}
        question = row.get("question")
        yield {
            "question": _last_user_text(row["prompt"]) if question is None else question,
            "answer": row.get("answer"),
            "prompt": row["prompt"],
            "info": _info(row.get("info"), other_columns),
            "task": row.get("task") or "",
        }


def _info(info: Any, others: Row) -> Any:
    """Return a row's `info`, parsed if it is JSON text, and merged over `others`.

    Args:
        info: Value of the column `info`.
        others: Fields of the row that have no column.
    """
    if isinstance(info, str) and info.startswith("{"):
        info = json.loads(info)
    if info is None:
        return others
    return {**others, **cast("Row", info)} if isinstance(info, Mapping) else info


def _last_user_text(prompt: str | Iterable[Mapping[str, Any]]) -> str:
    if isinstance(prompt, str):
        return prompt
    texts = [str(message["content"]) for message in prompt if message["role"] == "user"]
    return texts[-1] if texts else ""


def _written(value: Any) -> str:
    """Return a date as text.

    Raises:
        TypeError: The value is no date, and JSON has no form for it.
    """
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a value is neither text, number, list nor mapping: {type(value).__name__}")


def _reason(error: BaseException) -> str:
    message = " ".join(str(error).split())[:600]
    cause = f" ({error.__cause__})"[:200] if error.__cause__ else ""
    return message if isinstance(error, NotUsable) else f"{type(error).__name__}: {message}{cause}"


def main() -> None:
    """Read a request as JSON from standard input, and write its tasks to standard output, one JSON object per
    line."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the environment prints goes to standard error
    try:
        for row in rows(json.load(sys.stdin)):
            output.write(json.dumps({"row": row}, default=_written) + "\n")
        output.write(json.dumps({"end": True}) + "\n")
    except BrokenPipeError:  # the reader wants no further rows
        os._exit(0)
    except (Exception, SystemExit) as error:  # an environment may raise anything
        output.write(json.dumps({"error": _reason(error)}) + "\n")
    output.flush()
    os._exit(0)  # an environment may leave threads and exit handlers


if __name__ == "__main__":
    main()
