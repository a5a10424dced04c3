"""`rolegraph new NAME --data FILE`: a workflow for the rows of a table, with prompts, reward, splits, a test.

A solver answers; README.md of the folder shows how to add a validator. The label's kind decides the parser,
the reward and the words that describe the form of an answer. Three files hold the rows: for training, for
choosing the best weights, and a test set that chooses nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from rolegraph.api.jobs import blocking
from rolegraph.api.workflow import Workflow, load
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.shipped import FIRST_MODEL
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary import ItemCall, Row, open_dataset
from rolegraph.engine.vocabulary.rows import SUFFIXES, row_digest
from rolegraph.outlook.preview import made_up
from rolegraph.starter.columns import Columns, Label, read_columns
from rolegraph.starter.starting import (
    SCHEMA,
    STARTER,
    Files,
    guide_files,
    new_files,
    recorded_tests,
    rendered,
    schema_file,
    workflow_name,
)

MOST_ROWS = 10_000
"""Largest number of rows that are read; a longer table is cut, and a note says so."""
PROMPTS = {
    "solver_system.j2": "data_system.j2.j2",
    "solver.j2": "data_solver.j2.j2",
    "solver_answer.j2": "data_answer.j2.j2",
    "validator.j2": "data_validator.j2.j2",
}
"""Template of each prompt file."""
IMITATED, REINFORCED, BATCH, IMITATION_RATE = 40, 4, 8, 0.001
"""Steps of imitation and of GRPO, rows of a step, and learning rate of the imitation."""
LEAST_ROWS = 20
"""Smallest number of rows with a label that the three files need."""
VALIDATION, TEST = (0.15, 64), (0.25, 128)
"""Share of the rows in each file, with the largest number of rows."""
MOST_COPIES = 3
"""Largest number of copies of a training row of a rare class."""
MOST_KEYS = 8
"""Largest number of keys of an object that the reward compares."""
EXAMPLES_SHOWN = 3
"""Number of examples before a prompt; a label with up to twice as many classes has one example of each
class."""


@dataclass(frozen=True, slots=True)
class StartedData:
    """Files of a new workflow for a table's rows, and the decisions about its columns."""

    files: Sequence[Path]
    notes: Sequence[str]
    """Sentences about the label and the reason for it, its kind, the inputs, and the rows of each file."""
    test_tasks: int
    """Number of rows of the test set, which chooses nothing."""


async def new_for_data_async(folder: str | Path, data: str | Path, label: str | None = None) -> StartedData:
    """Write a workflow for the rows of a table into a new folder: spec, prompts, rows, a test, a README.

    Args:
        folder: The folder, which must be new or empty; its name becomes the workflow's name.
        data: The table: a .csv, .tsv, .jsonl or .parquet file.
        label: Column with the right answer; None to choose it by names and values.

    Returns:
        The files and the decisions.

    Raises:
        UsageError: The folder has files, its name cannot be a workflow's name, no column or several may be
            the label, or too few rows have one.
        DataError: The table cannot be read.
        WorldError: A file cannot be written.
    """
    folder, data = Path(folder), Path(data)
    name = workflow_name(folder)
    table_rows = _read(data)
    rows = table_rows[:MOST_ROWS]
    columns = read_columns(rows, label, data.name)
    labelled, notes = _labelled(rows, columns)
    if len(labelled) < LEAST_ROWS:
        raise UsageError(f"{data.name}: {len(labelled)} rows have a label; expected {LEAST_ROWS} or more")
    splits = _divided(labelled, columns)
    train_size = len(splits["train"])
    if columns.label.kind in ("class", "boolean"):
        splits["train"] = _balanced(splits["train"], columns.fields[columns.label.column])
    template_values = _about(name, columns, splits)
    with new_files(folder) as new_folder:
        new_folder.write(_first_files(name, columns, splits, template_values))
        workflow = load(folder / f"{name}.yaml")
        new_folder.write(await _later_files(workflow, columns, splits["train"], template_values))
    cut_note = [f"only the first {MOST_ROWS:,} rows are used"] if len(table_rows) > MOST_ROWS else []
    return StartedData(
        sorted(new_folder.written),
        [*_decisions(columns), *cut_note, *notes, *_sizes(splits, train_size)],
        len(splits["test"]),
    )


new_for_data = blocking(new_for_data_async)


def _read(data: Path) -> list[Row]:
    """Return the rows of a table, at most MOST_ROWS + 1, so that a longer table is noticed."""
    if data.suffix not in SUFFIXES:
        raise UsageError(f"cannot read {data}; expected a file that ends in {', '.join(SUFFIXES)}")
    dataset = open_dataset(ItemCall("file", data.name, {}, has_value=True), split="train", folder=data.parent)
    return [*islice(dataset.rows(None), MOST_ROWS + 1)]


def _labelled(rows: Sequence[Row], columns: Columns) -> tuple[list[Row], list[str]]:
    """Return (rows that have a label, notes).

    The rows have the names of fields instead of columns. The notes count rows without a label, and questions
    with several labels.
    """
    label, fields = columns.label, columns.fields
    labelled_rows: list[Row] = []
    for row, value in zip(rows, label.values, strict=True):
        if value is not None:
            inputs = {fields[column]: row[column] for column in columns.inputs}
            labelled_rows.append({"id": row["id"], **inputs, fields[label.column]: value})
    notes = [f"{n:,} rows without a label are left out"] if (n := len(rows) - len(labelled_rows)) else []
    answers: dict[str, set[str]] = {}
    for row in labelled_rows:
        answers.setdefault(_asked(row, columns), set()).add(str(row[fields[label.column]]))
    if count := sum(len(values) > 1 for values in answers.values()):
        notes.append(f"{count:,} questions have more than one label, so no answer is right every time")
    return labelled_rows, notes


def _asked(row: Row, columns: Columns) -> str:
    return row_digest({columns.fields[column]: row[columns.fields[column]] for column in columns.inputs})


def _divided(rows: Sequence[Row], columns: Columns) -> dict[str, list[Row]]:
    """Divide rows into `train`, `validation` and `test`; rows with equal inputs are in the same file.

    The files depend on the rows' content, not on the order of `rows`, and within a file the order is
    unrelated to the label.

    Raises:
        UsageError: The rows have too few different inputs, or too few rows of each label.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_asked(row, columns), []).append(row)
    splits: dict[str, list[Row]] = {"test": [], "validation": [], "train": []}
    split_sizes = {
        name: min(largest, round(share * len(rows)))
        for name, (share, largest) in (("test", TEST), ("validation", VALIDATION))
    }
    for digest in sorted(groups, key=lambda it: sha256(it.encode()).digest()):
        name = next((it for it, size in split_sizes.items() if len(splits[it]) < size), "train")
        splits[name] += groups[digest]
    train, field = splits["train"], columns.fields[columns.label.column]
    if not all(splits.values()) or not any(row[field] != train[0][field] for row in train):
        raise UsageError(
            "the rows ask too few different things, or have too few rows of each label, to be divided into "
            "train, validation and test"
        )
    return splits


def _balanced(rows: Sequence[Row], field: str) -> list[Row]:
    """Return the rows, with further copies of rows of rare classes, spread over the file.

    Args:
        rows: The rows.
        field: Field of the label.
    """
    counts = Counter(str(row[field]) for row in rows)
    largest_count = max(counts.values())
    copies = {value: min(MOST_COPIES, round(largest_count / count)) for value, count in counts.items()}
    rows_with_copies = [
        (
            sha256(f"{row['id']}:{copy}".encode()).digest(),
            {**row, "id": row["id"] + (f"-{copy}" if copy > 1 else "")},
        )
        for row in rows
        for copy in range(1, copies[str(row[field])] + 1)
    ]
    return [row for _, row in sorted(rows_with_copies, key=lambda pair: pair[0])]


# words of the prompts


def _caption(column: str) -> str:
    """Return a column's name for a prompt: in one line, without characters of the template language."""
    plain_text = " ".join(re.sub(r"[{}%#<>|\[\]\x00-\x1f\x7f-\x9f]", " ", column).replace("_", " ").split())
    return plain_text[:60].strip() or "value"


def _about(name: str, columns: Columns, splits: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return the variables for the templates of the folder."""
    label, field = columns.label, columns.fields[columns.label.column]
    answer = _caption(label.column)
    return {
        "name": name,
        "field": field,
        "answer": answer,
        "inputs": [(_caption(column), columns.fields[column]) for column in columns.inputs],
        "form": _form(label),
        "is_json": label.kind == "fields",
        "description": f"Answers {answer!r} from {', '.join(_caption(it) for it in columns.inputs)}.",
        "words": f"{name}.yaml",
        "model": FIRST_MODEL,
        "tests": len(splits["test"]),
        "imitated": IMITATED,
        "reinforced": REINFORCED,
        "batch": BATCH,
        "imitation_rate": IMITATION_RATE,
        "sizes": {split: len(rows) for split, rows in splits.items()},
        "reward": "",
        "allow": [],
        "rewarded": "solver",
        "split": "train",
    }


def _form(label: Label) -> str:
    """Return the sentence that names the form of an answer."""
    answer = _caption(label.column)
    match label.kind:
        case "class" | "boolean":
            words = [_caption(word) if "{" in word else word for word in label.classes]
            return f"Answer with one of: {', '.join(words)}."
        case "rating":
            values = sorted(map(int, label.classes))
            return f"Answer with a number from {values[0]} to {values[-1]}."
        case "number":
            return "Answer with a number alone."
        case "text":
            return f"Answer with the {answer} alone."
        case "long text":
            return f"Answer with the {answer}."
        case "fields":
            return f"Answer with a JSON object with the keys {', '.join(map(_caption, _keys(label)))}."


# parser, reward and length of an answer


def _parser(label: Label) -> object:
    match label.kind:
        case "class" | "boolean":
            return {"one_of": [*label.classes]}
        case "rating" | "number":
            return "number"
        case "text" | "long text":
            return "text"
        case "fields":
            return {"json": {"type": "object", "required": _keys(label)}}


def _rewarded(label: Label, field: str) -> dict[str, object]:
    """Return the keys of a role that set its reward."""
    match label.kind:
        case "class" | "boolean":
            return {"reward": {"exact_match": {"field": field}}}
        case "text":
            return {"reward": {"exact_match": {"field": field, "punctuation": False}}}
        case "number":
            return {"reward": {"close_to": {"field": field}}}
        case "long text":
            return {"reward": {"f1": {"field": field}}}
        case "rating":
            right_condition, near_condition = f"action == task.{field}", f"(action - task.{field}) | abs == 1"
            # A quarter for a rating next to the right one; half would pay for always saying the middle one.
            return {"reward": f"({right_condition}) + 0.25 * ({near_condition})", "right": right_condition}
        case "fields":
            keys = [json.dumps(key, ensure_ascii=False) for key in _keys(label)]
            key_tests = [f"(action[{key}] == task.{field}[{key}])" for key in keys]
            return {"reward": f"({' + '.join(key_tests)}) / {len(keys)}", "right": " and ".join(key_tests)}


def _keys(label: Label) -> list[str]:
    """Return the keys that all objects of a label have, in the order of the first object, at most MOST_KEYS.

    Raises:
        UsageError: The objects have no key in common.
    """
    objects: list[Mapping[str, Any]] = [value for value in label.values if value is not None]
    shared_keys = set(objects[0]).intersection(*objects)
    keys = [key for key in objects[0] if key in shared_keys][:MOST_KEYS]
    if not keys:
        raise UsageError(f"the objects of {label.column!r} have no key in common; --label COLUMN")
    return keys


def _tokens(label: Label) -> int:
    """Return the largest number of tokens of an answer: a token for each byte of the longest label, which a
    tokenizer may need for digits and rare scripts, and two for a first space and the end."""
    texts = [_written(label, value) for value in label.values if value is not None]
    return max(8, min(256, 2 + max(len(text.encode()) for text in texts)))


def _written(label: Label, value: object) -> str:
    """Return the text of an answer that equals a label's value."""
    return json.dumps(value, ensure_ascii=False) if label.kind == "fields" else str(value)


def _spec(name: str, columns: Columns, about: Mapping[str, Any]) -> dict[str, Any]:
    label, field = columns.label, about["field"]
    few_classes = 2 * EXAMPLES_SHOWN
    has_few = bool(label.classes) and len(label.classes) <= few_classes
    examples: dict[str, Any] = {"count": len(label.classes) if has_few else EXAMPLES_SHOWN, "sees": [field]}
    if label.classes:
        examples["by"] = field
    return {
        "rolegraph": 2,
        "name": name,
        "description": about["description"],
        "model": f"local:{FIRST_MODEL}",
        "data": {
            "train": "train.jsonl",
            "validation": "validation.jsonl",
            "hidden": [field],
            "examples": examples,
        },
        "roles": {
            "solver": {
                "system": "solver_system.j2",
                "prompt": "solver.j2",
                "examples": "solver_answer.j2",
                "parser": _parser(label),
                **_rewarded(label, field),
                "estimator": "grpo",
                "sampling": {"max_tokens": _tokens(label)},
            },
        },
        "episode": {"correct": "solver.right"},
        "train": {
            "steps": IMITATED + REINFORCED,
            "batch_size": BATCH,
            "rollouts": 8,
            # A label is the right answer: imitation teaches rows that no sampled answer gets right, too.
            "stages": [
                {
                    "imitation": {"solver": "solver_answer.j2"},
                    "steps": IMITATED,
                    "learning_rate": IMITATION_RATE,
                }
            ],
            "lora": {"rank": 16},
            "validation": {"every": 11, "tasks": min(32, about["sizes"]["validation"]), "rollouts": 1},
        },
    }


# files


def _first_files(
    name: str, columns: Columns, splits: Mapping[str, Sequence[Row]], about: Mapping[str, Any]
) -> Files:
    """Return the spec, prompts and rows by file name, which are needed to load the workflow."""
    spec = dump_yaml(_spec(name, columns, about))
    schema_line = f"# yaml-language-server: $schema={SCHEMA}\n"
    rows = {
        f"{split}.jsonl": b"".join(json_line(dict(row)) for row in group) for split, group in splits.items()
    }
    prompts = {f"prompts/{file}": rendered(STARTER, template, about) for file, template in PROMPTS.items()}
    return {f"{name}.yaml": f"{schema_line}{spec}".encode(), **prompts, **rows}


async def _later_files(
    made: Workflow, columns: Columns, train: Sequence[Row], about: Mapping[str, Any]
) -> Files:
    """Return README, AGENTS.md, the test with its recorded answers, and the JSON Schema, by file name."""
    label, field = columns.label, about["field"]
    right_task, wrong_task = train[:2]  # the two tasks that the test runs
    wrong_answer = next(row[field] for row in train if row[field] != wrong_task[field])
    answers = [(right_task, right_task[field]), (wrong_task, wrong_answer)]
    tasks = {task["id"]: task for task in made.tasks("train", None)}
    episodes = [
        await made_up(made.plan, tasks[row["id"]], texts={"solver": _written(label, value)})
        for row, value in answers
    ]
    return {
        **guide_files("data_README.md.j2", about),
        **recorded_tests(episodes, about),
        SCHEMA: schema_file([]),
    }


# decisions, in words


def _decisions(columns: Columns) -> Iterator[str]:
    label = columns.label
    yield f"label: {label.column!r}, {label.why}; another: --label COLUMN"
    yield f"kind: {_kind(label)}"
    yield f"inputs: {', '.join(map(repr, columns.inputs))}"
    for column, reason in columns.left_out.items():
        yield f"left out: {column!r}, because {reason}"
    for column, field in columns.fields.items():
        if column != field:
            yield f"renamed: {column!r} is the field {field}"


def _kind(label: Label) -> str:
    listed = ", ".join(f"{value} ({count})" for value, count in label.classes.items())
    match label.kind:
        case "class" | "boolean":
            return f"{label.kind}, {len(label.classes)} values: {listed}; the reward is 1 for the right one"
        case "rating":
            return f"rating: {listed}; the reward is 1 for the right one, 0.25 for the next to it"
        case "number":
            return "number; the reward is 1 for the right one"
        case "text":
            return "short text; the reward is 1 for the right one, whatever its case and punctuation"
        case "long text":
            return "long text; the reward is the share of common words (F1)"
        case "fields":
            return f"object with {', '.join(_keys(label))}; the reward is the share of right values"


def _sizes(splits: Mapping[str, Sequence[Row]], different: int) -> Iterator[str]:
    sizes = [f"{len(splits[name]):,} {name}" for name in ("train", "validation", "test")]
    yield f"rows: {', '.join(sizes)}; test chooses nothing"
    if len(splits["train"]) > different:
        text = f"balance: training rows of rare labels stand up to {MOST_COPIES} times"
        yield f"{text} ({different:,} without the copies)"
