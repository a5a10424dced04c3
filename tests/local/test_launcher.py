"""Checks of the launcher: packages of the extra `local`, and model folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.errors import UsageError
from rolegraph.local.launcher import BASE_MODEL, check_model_folder

ROOT = Path(__file__).parents[2]
CHECK = """
import sys
from pathlib import Path
from rolegraph.engine.errors import UsageError
from rolegraph.local.launcher import check_model_folder
try:
    check_model_folder(Path(sys.argv[1]))
except UsageError as error:
    print(error)
"""


def message_without(folder: Path, *distributions: str) -> str:
    """Return the check's message in a process that has all packages except these distributions."""
    folder.mkdir()
    hidden = {path.parts[0] for name in distributions for path in distribution(name).files or ()}
    for entry in Path(str(distribution("rolegraph").locate_file(""))).iterdir():
        if entry.name not in hidden:
            (folder / entry.name).symlink_to(entry)
    done = subprocess.run(
        [sys.executable, "-S", "-c", CHECK, str(BASE_MODEL)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_what_is_installed_is_enough() -> None:
    check_model_folder(BASE_MODEL)


def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from rolegraph.local.service.adapters import load_model

    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    code = {"AutoConfig": "configuration_mine.Mine", "AutoModelForCausalLM": "modeling_mine.Mine"}
    for written in ({"model_type": "mine", "auto_map": code}, {"auto_map": code}):
        config.write_text(json.dumps(written))
        with pytest.raises(UsageError, match=r"code that comes with a model .*is not run here"):
            load_model(tmp_path)


def test_what_is_missing_is_named_and_nothing_else(tmp_path: Path) -> None:
    assert message_without(tmp_path / "all") == ""
    said = message_without(tmp_path / "some", "numpy", "protobuf", "safetensors")
    named = re.fullmatch(r"the local service needs (.*): pip install 'rolegraph\[local\]'", said)
    assert named is not None
    assert set(named[1].split(", ")) == {"numpy", "protobuf", "safetensors"}
