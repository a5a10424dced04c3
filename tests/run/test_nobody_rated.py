"""Tests of rewards from other roles that took no turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from rolegraph.engine.training.advantages.ledger import Membership
from tests.edge import RIGHT, WRONG, ScriptedModel, by_role, run_one, write_spec
from tests.run.written import Roles, plan, said

UNTRAINED: dict[str, Any] = {"estimator": None, "trainable": False}
JUDGE: dict[str, Any] = {
    "needs": ["solver"],
    "when": "solver.action == 'ask'",
    "prompt": "{{ solver.action }}",
    **UNTRAINED,
}
RATER: dict[str, Any] = {**JUDGE, "parser": {"json": {}}, "reward": None}
SCORED: dict[str, Any] = {**JUDGE, "parser": {"tag": "answer"}, "reward": "countdown"}


def judged(folder: Path, reward: object, judge: dict[str, Any] = RATER) -> Plan:
    return plan(folder, {"solver": {"reward": reward}, "judge": judge})


def earned(done: Episode) -> tuple[float | None, bool]:
    """Return the solver's reward, and whether its turn is masked."""
    (trajectory,) = done["solver"]
    return trajectory.reward, trajectory.masked


@pytest.mark.parametrize(
    ("reward", "judge", "asked", "unasked"),
    [
        ({"rated_by": "judge"}, RATER, (3.0, False), (None, True)),
        ({"rated_by": "judge", "else": -1, "scale": 2, "offset": 5}, RATER, (11.0, False), (-1.0, False)),
        ({"rated_by": "judge", "else": "mask"}, RATER, (3.0, False), (None, True)),
        ({"of": "judge"}, SCORED, (1.0, False), (None, True)),
        ({"of": "judge", "else": 0, "scale": -1, "offset": 3}, SCORED, (2.0, False), (0.0, False)),
        ({"same_as": "judge", "else": 0.25}, SCORED, (0.0, False), (0.25, False)),
        ({"agrees_with": "judge", "else": 0.5}, SCORED, (0.0, False), (0.5, False)),
    ],
    ids=str,
)
@pytest.mark.parametrize("beside", [None, 1])
def test_what_is_earned_where_nobody_rated(
    tmp_path: Path,
    reward: dict[str, Any],
    judge: dict[str, Any],
    asked: tuple[float | None, bool],
    unasked: tuple[float | None, bool],
    beside: int | None,
) -> None:
    """Beside another term, a term without a reward is left out, and `mask` masks the whole."""
    terms: dict[str, Any] = {"weighted": {"other": {"value": "10"}, "mine": {"reward": reward, "weight": 2}}}
    rates = judged(tmp_path, reward if beside is None else terms, judge)
    rated = by_role({"solver": said("ask"), "judge": RIGHT if judge is SCORED else "3"})
    for answer, (mine, is_masked) in (("ask", asked), ("never", unasked)):
        model = ScriptedModel(
            lambda request, answer=answer: rated(request) if answer == "ask" else said(answer)
        )
        if beside is None:
            assert earned(run_one(rates, model)) == (mine, is_masked)
        elif reward.get("else") == "mask" and answer == "never":
            assert earned(run_one(rates, model)) == (None, True)
        else:
            assert earned(run_one(rates, model)) == (10 + 2 * (mine or 0), False)


def test_who_is_masked_is_in_no_group(tmp_path: Path) -> None:
    rates = judged(tmp_path, {"rated_by": "judge", "else": "mask"})
    groups = Membership().add([run_one(rates, ScriptedModel(lambda _: said("never")))]).groups()
    assert not [group for group in groups if group.key.role == "solver"]


@pytest.mark.parametrize(
    ("otherwise", "paid"), [(None, (None, True)), ("mask", (None, True)), (1, (11.0, False))]
)
def test_a_rater_that_failed_masks_or_pays_what_else_says(
    tmp_path: Path, otherwise: object, paid: tuple[float | None, bool]
) -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "judge":
            raise ModelError("down")
        return said("ask")

    rated = {"rated_by": "judge"} if otherwise is None else {"rated_by": "judge", "else": otherwise}
    terms = {"weighted": {"good": rated, "other": {"value": "10"}}}
    assert earned(run_one(judged(tmp_path, terms), ScriptedModel(answer))) == paid
    unread = ScriptedModel(by_role({"solver": said("ask"), "judge": "no number"}))
    assert earned(run_one(judged(tmp_path, terms), unread)) == paid
    by_default = {**RATER, "parser": {"json": {"default": 4}}}
    assert earned(run_one(judged(tmp_path, terms, by_default), unread)) == (14.0, False)


def test_who_ran_and_earned_nothing_is_not_nobody(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"reward": {"weighted": {"team": {"of": "judge", "else": -1}, "other": {"value": "10"}}}},
        "judge": {**SCORED, "reward": {"of": "third"}},
        "third": {**SCORED, "needs": ["judge"], "when": "false", "prompt": "{{ judge.action }}"},
    }
    done = run_one(plan(tmp_path, roles), ScriptedModel(by_role({"solver": said("ask"), "judge": RIGHT})))
    assert earned(done) == (10.0, False)


@pytest.mark.parametrize("written", ["maks", ".nan", "true", "[1]", "{a: 1}"])
def test_else_is_a_number_or_mask(tmp_path: Path, written: str) -> None:
    text = (
        "rolegraph: 2\nname: faulty\ndata: {train: countdown}\nroles:\n"
        '  solver:\n    prompt: "Hi"\n    estimator: grpo\n'
        f"    reward: {{weighted: {{a: {{of: judge, else: {written}}}, b: countdown}}}}\n"
        '  judge: {prompt: "Hi", reward: countdown, trainable: false}\n'
    )
    (error,) = (d for d in check_file(write_spec(tmp_path, text)).diagnostics if d.severity == "error")
    assert "expected a finite number, or mask" in str(error)
    line, column = str(error).split(":")[1:3]
    assert text.splitlines()[int(line) - 1][int(column) - 1 :].startswith(f"else: {written}")


ELSE = st.sampled_from([None, "mask", 0, -1.5, 2])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["of", "rated_by", "same_as"]), ELSE), min_size=1, max_size=3),
    st.lists(st.sampled_from(["skipped", "right", "wrong"]), min_size=3, max_size=3),
)
def test_random_sums_earn_what_is_read_else_what_is_said_else_nothing(
    tmp_path: Path, terms: list[tuple[str, Any]], judges: list[str]
) -> None:
    roles: Roles = {"solver": {"reward": None, **UNTRAINED}}
    sums: dict[str, Any] = {}
    answers: dict[str, Any] = {"solver": RIGHT}
    for number, ((kind, otherwise), judge) in enumerate(zip(terms, judges, strict=False)):
        name = f"judge{number}"
        sums[f"t{number}"] = {kind: name} | ({} if otherwise is None else {"else": otherwise})
        parser = {"number": {"which": "last"}} if kind == "rated_by" else {"tag": "answer"}
        when = {"when": "false"} if judge == "skipped" else {}
        roles[name] = {**JUDGE, "when": "true", "parser": parser, "reward": "countdown", **when}
        rating = "1" if judge == "right" else "0"
        answers[name] = rating if kind == "rated_by" else RIGHT if judge == "right" else WRONG
    roles["solver"] = {"reward": {"weighted": sums}}
    got = earned(run_one(plan(tmp_path, roles), ScriptedModel(by_role(answers))))

    total, is_masked, known = 0.0, False, False
    for (_, otherwise), judge in zip(terms, judges, strict=False):
        value = {"right": 1.0, "wrong": 0.0, "skipped": otherwise}[judge]
        is_masked = is_masked or value == "mask"
        known = known or isinstance(value, float | int)
        total += value if isinstance(value, float | int) else 0.0
    assert got == ((None, True) if is_masked or not known else (total, False))
