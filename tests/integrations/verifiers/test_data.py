"""Tasks of verifiers environments: with a stand-in for the library, and with verifiers itself."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolegraph import api
from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.limits.records import RECORD_PARTS, ROW_TEXT
from rolegraph.engine.vocabulary import BadOptions, Dataset, ItemCall, datasets
from tests.cli.conftest import Command
from tests.edge import ScriptedModel, run_one, write_spec

OLDER = """
import importlib

class Sets:
    dataset = eval_dataset = None
    def get_dataset(self): return self.dataset
    def get_eval_dataset(self): return self.eval_dataset

def load_environment(env, **args):
    return importlib.import_module(env).load_environment(**args)
"""
"""Stand-in for verifiers before v1."""
SUMS = """
import verifiers

def load_environment(most=3):
    print("loading")
    open(MARK, "a").write("loaded ")
    sets = verifiers.Sets()
    sets.dataset = [
        {"example_id": n, "question": f"{n} + 1?", "answer": str(n + 1), "info": '{"level": 0}',
         "prompt": [{"role": "user", "content": f"{n} + 1?"}], "task": "sums", "more": n}
        for n in range(most)
    ]
    return sets
"""
SPEC = """rolegraph: 2
name: sums
data: {train: {verifiers: sums, python: PYTHON}}
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: exact_match
    estimator: grpo
"""

Interpreter = Callable[..., str]


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    """Return a function that makes an interpreter with some modules, given as texts by name."""

    def make(real: str = sys.executable, **modules: str) -> str:
        folder, script = tmp_path / "modules", tmp_path / "python"
        for name, text in modules.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(text)
        script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(folder))} exec {real} "$@"\n')
        script.chmod(0o755)
        return str(script)

    return make


@pytest.fixture
def sums(python: Interpreter, tmp_path: Path) -> str:
    """Return an interpreter with a stand-in for verifiers and an environment, which leaves a mark."""
    return python(verifiers=OLDER, sums=SUMS.replace("MARK", repr(str(tmp_path / "mark"))))


def odd(python: Interpreter, body: str) -> str:
    """Return an interpreter whose environment `odd` is loaded by some lines of Python."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return python(
        verifiers=OLDER, odd=f"import os, sys, time, verifiers\n\ndef load_environment(**args):\n{lines}"
    )


def opened(env: str, *, split: str = "train", **options: Any) -> Dataset:
    return datasets.build(ItemCall.parse({"verifiers": env, **options}), split=split, folder=Path())


def tasks(env: str, limit: int | None = None, **options: Any) -> list[api.Task]:
    return list(opened(env, **options).rows(limit))


def plan_of(folder: Path, python: str, *, allow: bool = True) -> Plan:
    spec = write_spec(folder, SPEC.replace("PYTHON", python))
    return compile_file(spec, allow=["verifiers:sums", f"interpreter:{python}"] if allow else [])


def test_the_tasks_are_the_rows_of_the_environment(sums: str) -> None:
    made = opened("sums", python=sums, args={"most": 2})
    assert made.columns == ("id", "question", "answer", "prompt", "info", "task")
    assert made.hidden == {"answer", "info"}
    assert made.permissions == ("verifiers:sums", f"interpreter:{sums}")
    assert list(made.rows(None)) == [
        {
            "id": f"sums-train-{n}",
            "question": f"{n} + 1?",
            "answer": str(n + 1),
            "prompt": [{"role": "user", "content": f"{n} + 1?"}],
            "info": {"more": n, "level": 0},
            "task": "sums",
        }
        for n in range(2)
    ]


@pytest.mark.parametrize(("options", "limit", "found"), [({}, 2, 2), ({"count": 1}, None, 1), ({}, 0, 0)])
def test_no_more_tasks_are_read_than_asked_for(
    options: dict[str, int], limit: int | None, found: int, sums: str
) -> None:
    assert len(tasks("sums", limit, python=sums, **options)) == found


def test_an_environment_without_a_validation_set_gives_its_training_set_only_where_the_spec_says_so(
    sums: str,
) -> None:
    with pytest.raises(DataError, match="it has no eval set; `split_name: train` takes its other one"):
        tasks("sums", split="validation", python=sums)
    assert len(tasks("sums", split="validation", split_name="train", python=sums)) == 3


def test_a_role_answers_the_tasks(sums: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, sums)
    model = ScriptedModel(lambda _: "<answer>2</answer>")
    done = [run_one(plan, model, task) for task in plan.data["train"].rows(2)]
    assert [each.is_correct for each in done] == [False, True]
    assert model.requests[1].messages[0]["content"] == "1 + 1? Answer in <answer></answer>."


def test_nothing_is_loaded_until_tasks_are_read_with_permission(sums: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, sums, allow=False)
    found = check_file(tmp_path / "spec.yaml").diagnostics
    hints = ["--allow verifiers:sums", f"--allow interpreter:{sums}"]
    assert [(each.severity, each.hint) for each in found] == [("warning", hint) for hint in hints]
    with pytest.raises(UsageError, match="only where that is allowed: --allow verifiers:sums --allow interp"):
        list(plan.data["train"].rows(1))
    plan_of(tmp_path, sums)
    assert not (tmp_path / "mark").exists()


def test_a_backend_s_checks_leave_tasks_that_are_not_allowed_unread(
    sums: str, tmp_path: Path, rolegraph: Command
) -> None:
    write_spec(tmp_path, SPEC.replace("PYTHON", sums))
    done = rolegraph("validate", "spec.yaml", "--backend", "tinker")
    assert (done.returncode, "--allow verifiers:sums" in done.stderr) == (0, True), done.stderr
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("words", [("run", "--limit", "1"), ("preview",), ("train",)])
def test_no_command_loads_an_environment_without_permission(
    words: tuple[str, ...], sums: str, tmp_path: Path, rolegraph: Command
) -> None:
    write_spec(tmp_path, SPEC.replace("PYTHON", sums))
    verb, *others = words
    done = rolegraph(verb, "spec.yaml", *others, "--allow", f"interpreter:{sums}")
    assert done.returncode == 2
    assert "--allow verifiers:sums" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "mark").exists()


def test_a_permission_for_one_environment_is_none_for_another(sums: str, tmp_path: Path) -> None:
    write_spec(tmp_path, SPEC.replace("PYTHON", sums))
    plan = compile_file(
        tmp_path / "spec.yaml", allow=["verifiers:sum", "verifiers", "python", "interpreter:/"]
    )
    assert [asked.name for asked in plan.withheld] == ["verifiers:sums", f"interpreter:{sums}"]


def test_another_process_has_the_data_without_loading_it(sums: str, tmp_path: Path) -> None:
    plan = pickle.loads(pickle.dumps(plan_of(tmp_path, sums)))
    assert not (tmp_path / "mark").exists()
    assert len(list(plan.data["train"].rows(None))) == 3


ODD = {
    "raise ValueError('no\\n  luck')": "cannot be used: ValueError: no luck$",
    "sys.exit('bye')": "cannot be used: SystemExit: bye$",
    "os._exit(7)": r"has ended \(exit code 7\)",
    "return None": "it has no train set",
    "time.sleep(60)": "gives no further task within 0.5 s",
    "import nowhere": "ModuleNotFoundError: No module named 'nowhere'",
}
ODD_ROWS = {
    f"'x' * {ROW_TEXT.most + 1}": "limit: row_text",
    f"[[]] * {RECORD_PARTS.most + 1}": "limit: record_parts",
    "object()": "a value is neither text, number, list nor mapping: object",
    "'\\ud800'": "not JSON",
    "float('nan')": "not JSON",
}


@pytest.mark.parametrize("body", ODD)
def test_whatever_an_environment_does_is_a_fault_of_the_data(body: str, python: Interpreter) -> None:
    with pytest.raises(DataError, match=ODD[body]):
        tasks("odd", python=odd(python, body), timeout=0.5 if "sleep" in body else 60)


@pytest.mark.parametrize("value", ODD_ROWS)
def test_a_task_that_no_record_can_hold_is_a_fault_of_the_data(value: str, python: Interpreter) -> None:
    body = f"sets = verifiers.Sets()\nsets.dataset = [{{'prompt': 'p', 'answer': {value}}}]\nreturn sets"
    with pytest.raises(DataError, match=ODD_ROWS[value]):
        tasks("odd", python=odd(python, body))


def test_the_environment_sees_no_key_and_nothing_of_the_current_folder(
    python: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "verifiers.py").write_text("raise SystemExit('the current folder was searched')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PLAIN", "seen")
    body = "sets = verifiers.Sets()\nsets.dataset = [{'prompt': 'p', 'info': dict(os.environ)}]\nreturn sets"
    (task,) = tasks("odd", python=odd(python, body))
    assert task["info"]["PLAIN"] == "seen"
    assert "hf_secret" not in str(task)


def test_a_question_is_the_last_text_of_the_user_where_a_row_has_none(python: Interpreter) -> None:
    prompt = [{"role": role, "content": f"{role} {n}"} for n in (1, 2) for role in ("user", "assistant")]
    body = f"sets = verifiers.Sets()\nsets.dataset = [{{'prompt': {prompt}}}]\nreturn sets"
    (task,) = tasks("odd", python=odd(python, body))
    assert (task["question"], task["answer"], task["info"]) == ("user 2", None, {})


def test_an_interpreter_without_verifiers_is_named_with_the_command() -> None:
    bare = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    with pytest.raises(DataError, match=r"verifiers is not installed for \S+: pip install verifiers"):
        tasks("sums", python=bare)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    with pytest.raises(DataError, match=f"cannot start the interpreter {missing}: there is no such program"):
        tasks("sums", python=missing)


@pytest.mark.parametrize("env", ["../sums", "/etc", "a/b/c", "", "a b"])
def test_an_id_is_a_name(env: str) -> None:
    with pytest.raises(BadOptions, match="is not the id of an environment"):
        opened(env, python=sys.executable)


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is not None, reason="verifiers is installed")
def test_without_the_library_the_extra_is_named() -> None:
    with pytest.raises(UsageError) as told:
        opened("gsm8k")
    need = "tasks of verifiers environments need the library verifiers"
    assert str(told.value) == f"{need}: pip install 'rolegraph[verifiers]'"


# verifiers itself

TASKSET = """
import verifiers.v1 as vf

print("loading")

class SumData(vf.TaskData):
    answer: str
    level: int
    info: dict[str, int]

class SumConfig(vf.TasksetConfig):
    most: int = 3

class SumTask(vf.Task[SumData]):
    pass

class Sums(vf.Taskset[SumTask, SumConfig]):
    INFINITE = ENDLESS

    def load(self):
        for n in range(10**9 if self.INFINITE else self.config.most):
            own = {"answer": str(n + 1), "level": n, "info": {"n": n}}
            data = SumData(prompt=f"{n} + 1?", system_prompt="Be brief.", **own)
            yield SumTask(data, self.config.task)

__all__ = ["Sums"]
"""


@pytest.fixture
def with_verifiers(python: Interpreter) -> str:
    """Return an interpreter with verifiers, and with tasksets of this file."""
    real = os.environ.get("VERIFIERS_PYTHON") or sys.executable
    if real == sys.executable and importlib.util.find_spec("verifiers") is None:
        pytest.skip("needs verifiers: install it, here or for the interpreter that VERIFIERS_PYTHON names")
    return python(
        real,
        sums=TASKSET.replace("ENDLESS", "False"),
        endless=TASKSET.replace("ENDLESS", "True"),
        no_set="x = 1",
    )


@pytest.mark.verifiers
def test_a_taskset_of_v1_gives_its_tasks(with_verifiers: str) -> None:
    first, second = tasks("owner/sums", python=with_verifiers, args={"most": 2})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "0 + 1?"}]
    assert first == {
        "id": "sums-train-0",
        "question": "0 + 1?",
        "answer": "1",
        "prompt": messages,
        "info": {"level": 0, "n": 0},
        "task": "",
    }
    assert second["info"] == {"level": 1, "n": 1}


@pytest.mark.verifiers
def test_a_taskset_without_end_needs_a_count(with_verifiers: str) -> None:
    with pytest.raises(DataError, match="its taskset has no end: say how many tasks by `count`"):
        tasks("endless", python=with_verifiers)
    assert [task["answer"] for task in tasks("endless", 2, python=with_verifiers, count=9)] == ["1", "2"]


@pytest.mark.verifiers
@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("sums", {"args": {"most": "many"}}, "ValidationError: .*most"),
        ("sums", {"split_name": "eval"}, "one set of tasks: choose by `args`"),
        ("no-set", {}, "no_set"),
        ("nowhere", {}, "'nowhere' not found"),
    ],
)
def test_what_verifiers_cannot_load_is_told_in_its_words(
    env: str, options: dict[str, Any], said: str, with_verifiers: str
) -> None:
    with pytest.raises(DataError, match=said):
        tasks(env, python=with_verifiers, **options)
