"""Tests of functions registered by decorators: return values, options, and where the functions run."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.compile.resolve import digest
from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import FailureName, GroupKey
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.training.advantages.estimates import estimate
from rolegraph.engine.vocabulary import (
    Import,
    ItemCall,
    RewardInputs,
    datasets,
    estimators,
    import_file,
    metrics,
    parsers,
    rewards,
)


@pytest.mark.parametrize(
    ("earned", "score"),
    [
        (0.5, rg.Score(0.5, False)),
        (1, rg.Score(1.0, True)),
        (True, rg.Score(1.0, True)),
        (False, rg.Score(0.0, False)),
        (np.float32(2.0), rg.Score(2.0, True)),
        (rg.Score(0.25, True), rg.Score(0.25, True)),
    ],
    ids=str,
)
def test_a_reward_may_return_a_number_a_bool_or_a_score(earned: object, score: rg.Score) -> None:
    @rg.reward("mine", pure=True)
    def mine(task: Any, action: Any) -> Any:
        return earned

    reward = rewards.build(ItemCall("mine"))
    assert reward.score({}, "x", RewardInputs({})) == score
    assert reward.timeout is None


def test_anything_else_is_named() -> None:
    @rg.reward(pure=True)
    def nothing(task: Any, action: Any) -> Any:
        return None

    with pytest.raises(
        TypeError, match="nothing returned None; expected a number, True or False, or a Score"
    ):
        rewards.build(ItemCall("nothing")).score({}, "x", RewardInputs({}))


def test_a_plain_reward_has_a_time_limit_and_hides_its_labels() -> None:
    @rg.reward("mine", labels=["answer"], timeout=5)
    def mine(task: Any, action: Any) -> float:
        return 1.0

    reward = rewards.build(ItemCall("mine"))
    assert (reward.timeout, reward.facts.labels, reward.facts.fields) == (5, ("answer",), ("answer",))


def test_keyword_only_parameters_are_the_options_of_a_spec() -> None:
    @rg.reward("mine", pure=True)
    def mine(task: Any, action: Any, *, longest: int = 80) -> float:
        """More where it is short.

        longest: in characters
        """
        return float(len(action) < longest)

    assert (
        rewards.build(ItemCall.parse({"mine": {"longest": 2}})).score({}, "abc", RewardInputs({})).reward == 0
    )
    assert rewards.summary("mine") == "More where it is short."
    assert [(o.name, o.default, o.line) for o in rewards.options("mine")] == [
        ("longest", 80, "in characters")
    ]
    with pytest.raises(api.vocabulary.BadOptions, match="longest"):
        rewards.build(ItemCall.parse({"mine": {"longest": "many"}}))


def test_a_function_of_other_parameters_is_refused_at_once() -> None:
    with pytest.raises(
        rg.UsageError, match=r"a reward is a function of \(task, action\).*mine takes \(action\)"
    ):

        @rg.reward("mine")
        def mine(action: Any) -> float:
            return 1.0


@pytest.mark.parametrize("decorator", [rg.reward, rg.parser, rg.estimator, rg.metric, rg.dataset])
def test_a_decorator_without_its_parentheses_says_how_it_is_written(decorator: Any) -> None:
    kind = decorator.__name__
    with pytest.raises(rg.UsageError) as refused:

        @decorator
        def mine(task: Any, action: Any) -> float:
            return 1.0

    assert str(refused.value) == f'@rg.{kind} takes a name: write @rg.{kind}("mine")'


def test_a_cell_of_a_notebook_may_be_run_again_and_another_name_is_taken() -> None:
    for worth in (0.25, 0.5):

        @rg.reward("mine", pure=True)
        def mine(task: Any, action: Any, *, of: float = worth) -> float:
            return of

    assert rewards.build(ItemCall("mine")).score({}, "", RewardInputs({})).reward == 0.5
    with pytest.raises(ValueError, match="reward 'countdown' is registered already"):
        rg.reward("countdown")(lambda task, action: 1.0)


def test_what_a_cell_of_a_notebook_holds_is_the_code_of_its_function() -> None:
    digests = [cell("brief", worth) for worth in (0.25, 0.5, 0.5)]
    assert digests[0] != digests[1] == digests[2]


def test_a_cell_whose_lines_are_another_text_has_no_digest() -> None:
    """A file beside the notebook may have the name of a cell, and be no Python."""
    source = "@rg.reward('prose')\ndef prose(task, action):\n    return 1.0\n"
    exec(compile(source, "<prose>", "exec"), {"rg": rg, "__name__": "a_notebook"})
    linecache.cache["<prose>"] = (99, None, ["Prose (with no end\n"], "<prose>")
    assert digest(rewards.factory("prose")) == "unknown"


def cell(name: str, worth: float) -> str:
    """Register a reward in a notebook cell and return the digest of its code."""
    source = f"@rg.reward({name!r})\ndef {name}(task, action):\n    return {worth}\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    exec(compile(source, "<cell>", "exec"), {"rg": rg, "__name__": "a_notebook"})
    return digest(rewards.factory(name))


def importing(file: Path, *lines: str) -> None:
    file.write_text("\n".join(["import rolegraph as rg", *lines]))
    import_file(file)


BRIEF = ['@rg.reward("brief", pure=True)', "def brief(task, action):", "    return 0.25"]


def test_two_functions_of_one_name_in_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    with pytest.raises(rg.UsageError, match="'brief' is registered already") as refused:
        importing(file, *BRIEF, "", *BRIEF)
    said = f"by brief in {file}, line 2; choose another name for brief in {file}, line 6"
    assert said in str(refused.value)


def test_a_file_that_has_changed_may_be_imported_anew(tmp_path: Path) -> None:
    importing(tmp_path / "rewards.py", *BRIEF)
    importing(tmp_path / "rewards.py", "", "WORTH = 0.5", *BRIEF[:-1], "    return WORTH")
    assert rewards.build(ItemCall("brief")).score({}, "", RewardInputs({})).reward == 0.5


def test_a_file_that_has_not_changed_may_be_imported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_rewards.py").write_text("\n".join(["import rolegraph as rg", *BRIEF]))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_own_rewards")
    importlib.reload(module)
    del sys.modules["my_own_rewards"]
    importlib.import_module("my_own_rewards")
    assert rewards.imported_from("brief") == Import("my_own_rewards", str(tmp_path / "my_own_rewards.py"))


def test_a_parsers_value_error_is_a_malformed_output() -> None:
    @rg.parser("whole", default=0)
    def whole(text: str) -> int:
        return int(text)

    parser = parsers.build(ItemCall("whole"))
    assert (parser.parse("7", {}), parser.default) == (7, 0)
    with pytest.raises(rg.ParseFailure, match="invalid literal") as failed:
        parser.parse("seven", {})
    assert failed.value.name is FailureName.MALFORMED_OUTPUT


def test_an_estimator_sees_the_rewards_of_one_group() -> None:
    @rg.estimator("finest", min_group=2)
    def grpo(rewards: Any) -> Any:
        return rewards - rewards.max()

    estimator = estimators.build(ItemCall("finest"))
    groups = [Group(GroupKey("t", "r"), (), "r")]
    assert estimator.compute is not None
    (advantages,) = estimator.compute([np.array([1.0, 0.0])], groups)
    assert (estimator.name, estimator.min_group, advantages.tolist()) == ("finest", 2, [0.0, -1.0])


def test_an_estimator_that_gives_too_few_is_named_with_its_role() -> None:
    @rg.estimator("mine")
    def best(rewards: Any) -> list[float]:
        return [1.0]

    members = [Member("t", n, rg.Trajectory("solver"), 0, 0, reward) for n, reward in enumerate((1.0, 0.0))]
    group = Group(GroupKey("t", "solver"), members, "solver")
    said = r"the estimator mine of solver gave advantages of shape \[1\] for the group of solver 1, task t, "
    with pytest.raises(AdvantageError, match=said):
        estimate([group], {"solver": estimators.build(ItemCall("mine"))})


def test_a_metric_is_written_with_its_role() -> None:
    @rg.metric("answers")
    def answers(trajectories: Any) -> int:
        return len(trajectories)

    metric = metrics.build(ItemCall.parse({"answers": "solver"}))
    episode = rg.Episode("t", 0, {"id": "t"}, [rg.Trajectory("solver")] * 3)
    assert (metric.role, metric.measure(episode)) == ("solver", 3.0)


def test_a_dataset_is_rows_with_ids(tmp_path: Path) -> None:
    @rg.dataset("sums", hidden=["answer"])
    def rows(*, split: str, size: int = 3) -> Iterator[dict[str, Any]]:
        for number in range(size):
            yield {"question": f"{number} + 1", "answer": number + 1, "of": split}

    dataset = datasets.build(ItemCall.parse({"sums": {"size": 2}}), split="train", folder=tmp_path)
    assert (dataset.columns, dataset.hidden) == (("id", "question", "answer", "of"), {"answer"})
    assert [(row["id"], row["of"]) for row in dataset.rows(None)] == [
        ("sums-train-0", "train"),
        ("sums-train-1", "train"),
    ]

    @rg.dataset("empty")
    def no_rows() -> list[dict[str, Any]]:
        return []

    with pytest.raises(rg.DataError, match="the dataset empty has no rows"):
        datasets.build(ItemCall("empty"), split="train", folder=tmp_path)
