"""Tasks of reasoning-gym: rows of plain data, splits that share no question, the package's own scores."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.vocabulary import (
    BadOptions,
    Dataset,
    ItemCall,
    RewardInputs,
    Score,
    Split,
    open_dataset,
)
from rolegraph.engine.vocabulary.isolation import CallTimeout, Isolation
from rolegraph.integrations.reasoning_gym import tasks as reasoning
from tests.roles.vocabulary import reward

package: Any = pytest.importorskip("reasoning_gym")

KINDS: dict[str, dict[str, Any]] = {
    "chain_sum": {},
    "countdown": {},
    "decimal_arithmetic": {"max_num_decimal_places": 2, "min_num_decimal_places": 1},
    "knights_knaves": {},
    "mini_sudoku": {},
    "rearc": {},
    "fraction_simplification": {},
    "spiral_matrix": {},
    "string_insertion": {},
    "tower_of_hanoi": {"min_disks": 2, "max_disks": 3},
}


def opened(split: Split = "train", **options: Any) -> Dataset:
    return open_dataset(ItemCall.parse({"reasoning_gym": options}), split=split, folder=Path())


def rows(limit: int | None = None, split: Split = "train", **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in opened(split, **options).rows(limit)]


def scored(row: dict[str, Any], answer: object) -> Score:
    return reward("reasoning_gym").score(row, answer, RewardInputs({}))


def mangled(answer: str) -> list[str]:
    """Return variants of an answer: too short, too long, in another form."""
    texts = [
        f" {answer} ",
        f"The answer is {answer}",
        f"**{answer}**",
        f"{answer}.",
        answer[: len(answer) // 2],
    ]
    return [
        *texts,
        answer[::-1],
        answer.upper(),
        f"{answer} {answer}",
        str(answer.split()),
        "",
        "(",
        "7",
        "list",
    ]


# rows


def test_rows_are_plain_data_that_hides_what_its_score_needs() -> None:
    made = opened(task="chain_sum", size=5, seed=1)
    found = list(made.rows(None))
    assert made.columns == ("id", "question", "answer", "metadata", "config") == tuple(found[0])
    assert made.hidden == {"answer", "metadata", "config"}
    assert [row["id"] for row in found] == [f"chain_sum-train-{n}" for n in range(5)]
    assert from_json(to_json(found)) == found
    assert pickle.loads(pickle.dumps(made)).hidden == made.hidden


def test_a_seed_gives_the_same_rows_and_a_longer_list_begins_with_the_shorter() -> None:
    tasks: dict[str, Any] = {"tasks": {"chain_sum": 1, "list_functions": 1}}
    long = rows(size=30, seed=1, **tasks)
    assert rows(size=10, seed=1, **tasks) == rows(10, size=30, seed=1, **tasks) == long[:10]
    assert len(long) == 30
    others = rows(10, size=30, seed=2, **tasks)
    assert not {row["question"] for row in others} & {row["question"] for row in long}


def test_the_first_rows_come_before_the_others_are_drawn() -> None:
    assert len(list(islice(opened(task="chain_sum", size=1_000_000).rows(None), 3))) == 3


@pytest.mark.parametrize("kind", ["coin_flip", "tower_of_hanoi", "string_splitting", "self_reference"])
def test_the_splits_share_no_question_whatever_their_seeds_and_however_few_there_are(kind: str) -> None:
    train = {row["question"] for row in rows(task=kind, size=200, seed=1)}
    for seed in (1, 2):
        assert not train & {
            row["question"] for row in rows(task=kind, size=50, seed=seed, split="validation")
        }


def test_a_mixture_has_its_weights_in_every_beginning() -> None:
    found = rows(tasks={"chain_sum": 2, "products": {"weight": 1}, "dice": 0.5}, size=70)
    names = [row["metadata"]["source_dataset"] for row in found]
    assert Counter(names) == {"chain_sum": 40, "products": 20, "dice": 10}
    assert Counter(names[:7]) == {"chain_sum": 4, "products": 2, "dice": 1}
    assert len({row["id"] for row in found}) == 70


def test_each_task_takes_options_of_its_own() -> None:
    options = {"min_terms": 7, "max_terms": 7}
    for row in rows(task="chain_sum", config=options, size=5):
        assert (row["metadata"]["num_terms"], row["config"]) == (7, options)
    mixture = {"chain_sum": {"config": options}, "products": 1}
    terms = [row["metadata"]["num_terms"] for row in rows(tasks=mixture, size=4)]
    assert terms[::2] == [7, 7]
    assert 7 not in terms[1::2]


def test_what_the_package_prints_or_draws_stays_its_own() -> None:
    state, said = random.getstate(), io.StringIO()
    with redirect_stdout(said):
        assert len(rows(tasks={"bf": 1, "list_functions": 1, "pool_matrix": 1}, size=12)) == 12
    assert random.getstate() == state
    assert said.getvalue() == ""


def test_a_draw_that_the_package_fails_at_is_passed_over_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = partial(reasoning.draw, "chain_sum", {}, 0, "train", 0)
    first = rows(task="chain_sum", size=1)[0]
    monkeypatch.setattr(reasoning, "entries", lambda *_: iter([None, first, None, first]))
    assert (len(draw(2)[0]), draw(2)[1]) == (2, 4)
    monkeypatch.setattr(reasoning, "entries", lambda *_: repeat(None))
    with pytest.raises(DataError, match="chain_sum made no train task in 500 tries"):
        draw(1)
    monkeypatch.setattr(reasoning, "entries", lambda *_: repeat(first))
    with pytest.raises(DataError, match="no validation task"):
        reasoning.draw("chain_sum", {}, 0, "validation", 0, 1)


# what cannot be asked for


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs {task"),
        ({"task": "dice", "tasks": {"dice": 1}}, "needs {task"),
        ({"tasks": {}}, "needs {task"),
        ({"tasks": {"dice": 1}, "config": {"num_dice": 3}}, "of several each has its own"),
        ({"task": "mini_sudko"}, "task: unknown reasoning-gym task 'mini_sudko'; did you mean 'mini_sudoku'"),
        (
            {"tasks": {"dice": 1, "dyce": 1}},
            "tasks.dyce: unknown reasoning-gym task 'dyce'; did you mean 'dice'",
        ),
        (
            {"task": "dice", "config": {"num_dise": 3}},
            "config: reasoning-gym task 'dice': num_dise: unknown option",
        ),
        ({"task": "dice", "config": {"size": 3}}, "size: unknown option"),
        ({"task": "dice", "config": {"num_dice": "x"}}, "num_dice: Input should be a valid integer"),
        ({"task": "dice", "config": {"num_dice": -1}}, "num_dice must be"),
        ({"tasks": {"dice": 0}}, "greater than 0"),
        ({"tasks": {"dice": True}}, "dictionary|instance of Share"),
        ({"tasks": {"dice": {"wieght": 1}}}, "wieght"),
        ({"task": "codeio"}, "runs programs"),
        ({"task": "composite"}, "write the names under tasks"),
        ({"task": "dice", "size": 0}, "greater than or equal to 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_with_its_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        opened(**options)


def test_kinds_whose_questions_follow_the_hash_seed_have_the_same_in_every_process() -> None:
    code = (
        "from tests.integrations.reasoning_gym.test_tasks import rows\n"
        "for kind in ('isomorphic_strings', 'polynomial_multiplication', 'ransom_note'):\n"
        "    print(kind, [row['question'] for row in rows(task=kind, size=5)])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    one, other = (
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    )
    assert len(one.stdout.splitlines()) == 3
    assert one.stdout == other.stdout


def test_without_the_package_both_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[reasoning-gym\]'"):
        opened(task="dice")
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[reasoning-gym\]'"):
        reward("reasoning_gym")


def test_the_package_is_imported_by_nobody_who_does_not_ask_for_its_tasks() -> None:
    code = (
        "import sys; from rolegraph.integrations.reasoning_gym import tasks as reasoning; reasoning.reward()"
    )
    code += "; print('reasoning_gym' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# scores


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_package(kind: str) -> None:
    config = KINDS[kind]
    table = package.create_dataset(kind, seed=11, size=20, **config)
    entries = [table[index] for index in range(20)]
    for entry, other in zip(entries, [*entries[1:], entries[0]], strict=True):
        row = dict(reasoning.row_of(entry, config))
        assert from_json(to_json(row)) == row
        assert scored(row, entry["answer"]) == Score(1.0, True)
        for answer in [other["answer"], *mangled(entry["answer"])]:
            try:
                expected = table.score_answer(answer, copy.deepcopy(entry))
            except (ArithmeticError, LookupError, TypeError, ValueError):  # some scorers raise on some texts
                expected = 0.0
            assert scored(row, answer) == Score(expected, expected >= 1.0), answer


def test_the_rows_of_the_dataset_are_scored_with_their_own_options() -> None:
    mixture = {kind: {"config": config} for kind, config in KINDS.items()}
    for row in rows(tasks=mixture, size=2 * len(mixture)):
        assert scored(row, row["answer"]) == Score(1.0, True)
    exact, rough = (
        rows(task="decimal_arithmetic", config={"max_num_decimal_places": places}, size=1)[0]
        for places in (6, 3)
    )
    for row, right in ((exact, False), (rough, True)):
        assert scored(row, str(float(row["answer"]) + 0.0005)).is_correct == right


def test_an_action_that_is_no_text_is_scored_as_its_json() -> None:
    row = rows(task="game_of_life", size=1)[0]
    assert scored(row, json.loads(row["answer"])) == Score(1.0, True)
    assert scored(row, {}) == Score(0.0, False)  # the scorer raises on it


@pytest.mark.parametrize(
    "kind", ["n_queens", "string_insertion", "countdown", "puzzle24", "simple_integration"]
)
def test_an_answer_that_is_code_is_not_run_and_counts_as_none(kind: str, tmp_path: Path) -> None:
    row, trace = rows(task=kind, size=1)[0], tmp_path / "trace"
    code = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    package.get_score_answer_fn(kind)(code, row)
    assert trace.exists()
    trace.unlink()
    assert scored(row, code) == scored(row, "")
    assert not trace.exists()


def test_a_row_that_holds_code_or_is_of_another_dataset_is_an_error_and_not_a_zero() -> None:
    row = rows(task="number_sorting", size=1)[0]
    with pytest.raises(ValueError, match="would run as code"):
        scored({**row, "answer": "__import__('os').getcwd()"}, "[1]")
    for metadata in (None, {}, {"source_dataset": "mini_sudko"}, "text"):
        with pytest.raises(TypeError, match="a row of the dataset reasoning_gym"):
            scored({**row, "metadata": metadata}, "[1]")


def test_every_scorer_that_evaluates_text_is_known() -> None:
    """A new version of the package may have more scorers that `harmless` must know."""
    evaluates = re.compile(r"\b(?:eval|exec|parse_expr|sympify|literal_eval)\(")
    folder = Path(package.__file__).parent
    found = {path.stem for path in folder.rglob("*.py") if evaluates.search(path.read_text(encoding="utf-8"))}
    known = {
        *("binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "number_sorting"),
        *("countdown", "puzzle24", "polynomial_multiplication", "bitwise_arithmetic"),
        *("simple_integration", "intermediate_integration"),
    }
    makes_tasks = {
        "basic_arithmetic",
        "codeio",
        "generators_00_49",
        "generators_50_99",
        "propositional_logic",
    }
    assert found == known | makes_tasks


def test_a_score_is_given_in_a_worker_that_is_stopped_at_its_limit() -> None:
    made = reward({"sum": {"right": {"reward": {"reasoning_gym": {"timeout": 2}}}, "short": "f1"}})
    assert made.timeout == 2
    assert made.facts.labels == ("answer", "metadata")
    row = rows(task="countdown", size=1)[0]

    async def score(*asked: tuple[str, float]) -> list[Score | BaseException]:
        async with Isolation() as isolation:
            waiting = (
                isolation.run(made.score, row, action, RewardInputs({}), limit=limit)
                for action, limit in asked
            )
            return await asyncio.gather(*waiting, return_exceptions=True)

    # A worker imports the package first, which takes seconds where others are busy.
    right, endless = asyncio.run(score((row["answer"], 120.0), ("9**9**9", made.timeout)))
    assert isinstance(right, Score)
    assert right.terms["right"] == 1.0
    assert isinstance(endless, CallTimeout)
