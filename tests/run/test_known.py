"""Tests of what is known of a turn: one rule in prompts, `when`, `until`, tools and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from tests.edge import ScriptedModel, run_one, write_spec
from tests.run.written import Roles, said

BAD = "no tags"


def plan(
    folder: Path, roles: Roles, loops: dict[str, Any] | None = None, allow: tuple[str, ...] = ()
) -> Plan:
    written = {name: role if "run" in role else {"prompt": "x", **role} for name, role in roles.items()}
    spec = {
        "rolegraph": 2,
        "name": "known",
        "data": {"train": "countdown"},
        "roles": written,
        "loops": loops or {},
    }
    return compile_file(write_spec(folder, yaml.safe_dump(spec, sort_keys=False)), allow=allow)


READ = ("action", "ok", "failed", "ran", "failure")
"""Fields of a turn whose knowledge is one rule in every text and expression."""
KNOWN: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...]]] = {
    "readable": ({"parser": {"tag": "answer"}}, said("7"), ("7", "True", "False", "True", "")),
    "unreadable": ({"parser": {"tag": "answer"}}, BAD, ("", "False", "True", "True", "malformed_output")),
    "unreadable, with a default": (
        {"parser": {"tag": "answer", "default": "none"}},
        BAD,
        ("none", "False", "True", "True", "malformed_output"),
    ),
    "not answered": (
        {"parser": {"tag": "answer", "default": "none"}},
        None,
        ("", "", "True", "True", "model_error"),
    ),
    "skipped": (
        {"when": "false", "parser": {"tag": "answer", "default": "none"}},
        BAD,
        ("", "", "", "False", ""),
    ),
}
"""For each turn its role, its answer, and what `READ` is in a text: nothing where it is unknown."""


@pytest.mark.parametrize("turn", KNOWN)
def test_what_is_known_of_a_turn_is_one_rule_in_texts_and_conditions(tmp_path: Path, turn: str) -> None:
    solver, answer, known = KNOWN[turn]
    needs = {"needs": ["solver"]}
    fields = ";".join(f"{{{{ solver.{field} }}}}" for field in READ)
    roles: dict[str, Any] = {
        "solver": solver,
        "shown": {**needs, "system": fields, "prompt": fields},
        "default": {**needs, "prompt": "{{ solver.action | default('unknown') }}"},
        "ifs": {
            **needs,
            "prompt": "".join(f"{{% if {it} %}}1{{% else %}}0{{% endif %}}" for it in _CONDITIONS),
        },
        "written": {**needs, "run": {"text": fields}},
        "nobody": {"needs": {"critic": "previous"}, "prompt": fields.replace("solver", "critic")},
        "critic": {**needs, "prompt": "x"},
    }
    for place, condition in enumerate(_CONDITIONS):
        roles[f"c{place}"] = {**needs, "when": condition, "prompt": "x"}
    loops = {"once": {"roles": ["nobody", "critic"], "times": 1}}
    made = plan(tmp_path, roles, loops)
    done = run_one(made, ScriptedModel(lambda request: _answer(request, answer)))
    chat = done["shown"][0].steps[0].chat_completions
    assert [message["content"] for message in chat[:2]] == [";".join(known)] * 2
    assert done["written"][0].action == ";".join(known)
    assert _prompt(done, "default") == (known[0] or "unknown")
    assert _prompt(done, "nobody") == ";;;False;", "a turn that is not there is like one that was skipped"
    held = [any(t.name == f"c{place}" for t in done.trajectories) for place in range(len(_CONDITIONS))]
    assert _prompt(done, "ifs") == "".join(str(int(it)) for it in held), "`if` and `when` say the same"
    ok, failed, action = known[1], known[2], known[0]
    assert held == [
        *(ok == "True", ok == "False", failed == "True", failed == "False", known[3] == "True"),
        *(known[4] == "malformed_output", action == "7", action not in ("", "7")),
        *(action == "7", bool(action)),
    ]


_CONDITIONS = (
    *("solver.ok", "not solver.ok", "solver.failed", "not solver.failed", "solver.ran"),
    *('solver.failure == "malformed_output"', 'solver.action == "7"', 'solver.action != "7"'),
    *('solver.action in ["7"]', "solver.action is defined"),
)


def _answer(request: Request, of_solver: str | None) -> str:
    if request.id.node.role != "solver":
        return "x"
    if of_solver is None:
        raise ModelError("down")
    return of_solver


def _prompt(done: Episode, role: str) -> str:
    return done[role][0].steps[0].chat_completions[0]["content"]


@pytest.mark.parametrize(
    ("until", "rounds"),
    [
        ("solver.ok", 2),
        ("not solver.ok", 1),
        ("solver.failed", 1),
        ('solver.failure == "malformed_output"', 1),
        ('solver.action == "7"', 2),
        ('solver.action != "7"', 3),
    ],
)
def test_a_loop_goes_on_where_its_end_is_unknown(tmp_path: Path, until: str, rounds: int) -> None:
    roles = {"solver": {"needs": {"solver": "previous"}, "prompt": "x", "parser": {"tag": "answer"}}}
    made = plan(tmp_path, roles, loops={"tries": {"roles": ["solver"], "times": 3, "until": until}})
    done = run_one(made, ScriptedModel(lambda request: said("7") if request.id.node.round == 2 else BAD))
    assert done.metadata.get("rounds") == {"tries": rounds}


def test_a_program_that_fails_is_a_result_whose_action_is_its_output(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    roles: dict[str, Any] = {
        "solver": {
            "needs": {"tester": "previous"},
            "prompt": "{{ tester.action }}",
            "reward": "tester.ok",
            "estimator": "reinforce",
            "credit": "turn",
        },
        "tester": {"needs": ["solver"], "run": {"python": "print(1)\n{{ solver.action }}", "seconds": 1}},
        "vote": {"needs": ["tester"], "run": "majority"},
    }
    loops = {"tries": {"roles": ["solver", "tester"], "times": 4, "until": "tester.ok"}}
    made = plan(tmp_path, roles, loops=loops, allow=("python",))
    programs = ("1 / 0", "while True: pass", "7", "8")
    done = run_one(made, ScriptedModel(lambda request: programs[request.id.node.round - 1]))
    (solver,), (tester,) = done["solver"], done["tester"]
    assert [step.reward for step in solver.steps] == [0.0, 0.0, 1.0]
    assert not any(step.masked for step in solver.steps)
    shown = [step.chat_completions[0]["content"] for step in solver.steps]
    assert shown[0] == "" and shown[1].startswith("1\nZeroDivisionError: division by zero")
    assert shown[2].endswith("took longer than 1 s")
    assert [step.action for step in tester.steps][:2] == shown[1:]
    assert tester.action == done["vote"][0].action == "1\n7"
    assert {it["name"] for it in done.metadata.get("failures", ())} == {"program_error"}


@pytest.mark.parametrize(("picked", "earns"), [("1", 1.0), ("2", 2.0), ("3", 0.0)])
def test_the_chosen_turn_is_read_in_prompts_and_rewards(tmp_path: Path, picked: str, earns: float) -> None:
    roles: dict[str, Any] = {
        "solver": {"count": 3, "parser": {"tag": "answer"}},
        "judge": {
            "needs": ["solver"],
            "parser": {"choice": "solver"},
        },
        "reader": {
            "needs": ["judge"],
            "prompt": "{{ judge.chosen.index }}:{{ judge.chosen.action }}",
            "reward": "judge.chosen.index | default(0)",
        },
    }
    made = plan(tmp_path, roles)
    answers = {"solver": ["a", "b", None], "judge": picked, "reader": "x"}

    def answer(request: Request) -> str:
        role, index = request.id.node.role, request.id.node.index
        if role == "solver":
            return BAD if index == 3 else said("ab"[index - 1])
        return said(str(answers[role]))

    done = run_one(made, ScriptedModel(answer))
    assert done["reader"][0].reward == earns
    assert _prompt(done, "reader") == (f"{picked}:{'ab'[int(picked) - 1]}" if earns else ":")
    (judge,) = done["judge"]
    assert judge.failure is None if earns else judge.failure and judge.failure.name == "unparseable_choice"
