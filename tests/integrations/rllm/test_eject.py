"""Script that `rolegraph eject` writes: its source, its types, and a run of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rolegraph.integrations.rllm as public
from tests.cli.conftest import Command

HOSTED = "tinker:accounts/fireworks/models/qwen3-4b-instruct-2507"
CASES: dict[str, tuple[str, ...]] = {
    "tinker": ("solver_judge",),
    "verl": ("solver_judge", "--backend", "verl", "--model", "tinker:Qwen/Qwen3-4B"),
    "fireworks": ("solver_judge", "--backend", "fireworks", "--model", HOSTED),
    "mixed": ("solver_judge_distill",),
    "custom": ("solver_judge", "roles.judge.estimator=opo", "roles.solver.loss=importance_sampling"),
    "folder": ("solver_judge", "--model", "local:it's mine", "++rollout_engine.renderer_name=llama3"),
}


def ejected(rolegraph: Command, *words: str) -> str:
    done = rolegraph("eject", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def constants(script: str) -> dict[str, Any]:
    """Return the values of the script's constants."""
    found: dict[str, Any] = {}
    for node in ast.parse(script).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "CONFIG":
                assert isinstance(node.value, ast.List)
                found["CONFIG"] = [part.value for part in node.value.elts if isinstance(part, ast.Constant)]
            elif not any(isinstance(part, ast.Name) for part in ast.walk(node.value)):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_script_compiles_and_a_linter_and_a_formatter_leave_it_as_it_is(
    rolegraph: Command, case: str, tmp_path: Path
) -> None:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    script = ejected(rolegraph, *CASES[case])
    compile(script, "train.py", "exec")
    pytest.importorskip("ruff")
    for command in (["check", "--select", "E4,E7,E9,F,W,I,UP,B,SIM"], ["format", "--check"]):
        words = [sys.executable, "-m", "ruff", *command, "--isolated", "--stdin-filename", "train.py", "-"]
        done = subprocess.run(words, input=script, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


PUBLIC = {"rolegraph", "rolegraph.integrations.rllm"}


@pytest.mark.parametrize("case", CASES)
def test_a_script_imports_no_module_but_public_ones(rolegraph: Command, case: str, tmp_path: Path) -> None:
    (tmp_path / "it's mine").mkdir()
    (tmp_path / "it's mine" / "config.json").write_text("{}")
    found: set[str] = set()
    for node in ast.walk(ast.parse(ejected(rolegraph, *CASES[case]))):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            if node.module == public.__name__:
                assert {alias.name for alias in node.names} <= set(public.__all__)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    assert {name for name in found if name.startswith("rolegraph")} <= PUBLIC


def test_a_script_holds_the_config_and_the_estimators_of_the_spec(rolegraph: Command) -> None:
    found = constants(ejected(rolegraph, "solver_judge", "train.steps=7", "rllm.workflow.retry_limit=1"))
    assert found["SPEC"] == "solver_judge"
    assert found["OVERRIDES"] == ["train.steps=7"]
    assert found["ESTIMATORS"] == {"solver": "grpo", "judge": "reinforce"}
    assert "rllm.trainer.total_batches=7" in found["CONFIG"]
    assert found["CONFIG"][-1] == "rllm.workflow.retry_limit=1"


def test_a_loss_of_its_own_stands_beside_an_estimator(rolegraph: Command) -> None:
    script = ejected(rolegraph, *CASES["custom"])
    assert constants(script)["ESTIMATORS"] == {
        "solver": ("grpo", "importance_sampling"),
        "judge": "opo/judge",
    }


def test_a_mixed_spec_has_the_grouping_hook_and_serves_its_teacher(rolegraph: Command) -> None:
    script = ejected(rolegraph, "solver_judge_distill")
    assert "traj_grouping_hook=grouping_hook(plan)" in script
    assert 'workflow_args={"open_model": services.open}' in script
    assert "traj_grouping_hook" not in ejected(rolegraph, "solver_judge")


def test_a_model_that_is_served_already_is_served_by_no_script(rolegraph: Command) -> None:
    served = "roles.judge.model={provider: local, base_url: 'http://127.0.0.1:9'}"
    script = ejected(rolegraph, "solver_judge", served, "roles.judge.estimator=null")
    assert "services.open" not in script


def test_a_script_names_no_path_of_the_machine_that_it_was_written_on(rolegraph: Command) -> None:
    assert str(Path(__file__).parents[3]) not in ejected(rolegraph, "solver_judge_distill")


def test_a_script_that_was_changed_is_not_overwritten(rolegraph: Command, tmp_path: Path) -> None:
    first = rolegraph("eject", "solver_judge", "--out", "train.py")
    assert "python train.py" in first.stdout
    assert rolegraph("eject", "solver_judge", "--out", "train.py").returncode == 0
    written = f"# mine\n{(tmp_path / 'train.py').read_text()}"
    (tmp_path / "train.py").write_text(written)
    second = rolegraph("eject", "solver_judge_distill", "--out", "train.py")
    assert second.returncode == 2
    assert "train.py exists, and Rolegraph did not write it" in second.stderr
    assert (tmp_path / "train.py").read_text() == written


def test_what_a_backend_cannot_train_is_not_ejected(rolegraph: Command) -> None:
    done = rolegraph("eject", "solver_judge_distill", "--backend", "verl", "--model", "tinker:m")
    assert done.returncode == 2
    assert "verl has one advantage for a trajectory" in done.stderr
