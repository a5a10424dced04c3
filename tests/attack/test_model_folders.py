"""A stranger's model folder: code beside its weights, and pickles in their place."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import torch

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.local.service.local_model import LocalModel
from tests.cli.conftest import Command
from tests.examples import sample
from tests.local.conftest import make_model

pytestmark = pytest.mark.service


class Payload:
    """Object whose unpickling creates a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._mark,)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("honest"))


def change(file: Path, **fields: object) -> None:
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**old, **fields}))


def write_code(folder: Path, mark: Path) -> None:
    """Write a module that creates a file when it is imported."""
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")


def model_code(folder: Path, mark: Path) -> None:
    write_code(folder, mark)
    names = ("AutoConfig", "AutoModelForCausalLM")
    change(folder / "config.json", auto_map=dict.fromkeys(names, "evil.Model"), model_type="evil")


def tokenizer_code(folder: Path, mark: Path) -> None:
    write_code(folder, mark)
    auto_map = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="EvilTokenizer")


def generation_code(folder: Path, mark: Path) -> None:
    (folder / "custom_generate").mkdir()
    write_code(folder / "custom_generate", mark)
    (folder / "custom_generate" / "evil.py").rename(folder / "custom_generate" / "generate.py")


def pickled_weights(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(mark)}))


def pickled_tensors(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Payload(mark)}, folder / "pytorch_model.bin")


def pickled_adapter(folder: Path, mark: Path) -> None:
    base = shutil.copytree(folder, folder.parent / "base")
    (folder / "model.safetensors").unlink()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "target_modules": ["q_proj"]}
    change(folder / "adapter_config.json", **config)
    torch.save({"weight": Payload(mark)}, folder / "adapter_model.bin")


def adapter_code(folder: Path, mark: Path) -> None:
    pickled_adapter(folder, mark)
    write_code(folder, mark)
    mapping = {"parent_library": "evil", "base_model_class": "Model"}
    change(folder / "adapter_config.json", auto_mapping=mapping)


ATTACKS = [
    generation_code,
    model_code,
    adapter_code,
    tokenizer_code,
    pickled_weights,
    pickled_tensors,
    pickled_adapter,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_code_of_a_model_s_folder_runs(
    honest: Path, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    folder, mark = shutil.copytree(honest, tmp_path / "model"), tmp_path / "mark"
    attack(folder, mark)
    with suppress(UsageError):
        load_tokenizer(folder)
    with nullcontext() if attack is generation_code else pytest.raises(UsageError):
        LocalModel(folder)
    assert not mark.exists()


@pytest.mark.parametrize("attack", sample(ATTACKS, 3))
def test_no_code_of_a_model_s_folder_runs_in_a_command_or_its_service(
    rolegraph: Command,
    honest: Path,
    tmp_path: Path,
    attack: Callable[[Path, Path], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, mark = shutil.copytree(honest, tmp_path / "model"), tmp_path / "mark"
    attack(folder, mark)
    words = ("run", "solver_judge", "sampling.max_tokens=4", "--limit", "1", "--out", "out")
    done = rolegraph(*words, "--model", f"local:{folder}")
    assert not mark.exists()
    said = done.stderr + capfd.readouterr().err  # of the command, and of the service that it starts
    assert "Traceback" not in said and "internal error" not in said
    assert done.returncode == (0 if attack is generation_code else 2), done.stderr


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("tokenizer.json", {"version": "x" * 9_000}),
        ("tokenizer_config.json", {"eos_token": []}),
        ("tokenizer_config.json", {"tokenizer_class": True}),
        ("added_tokens.json", {"a": None}),
    ],
)
@pytest.mark.parametrize("load", [load_tokenizer, LocalModel])
def test_a_tokenizer_that_cannot_be_loaded_is_a_usage_error(
    honest: Path, tmp_path: Path, load: Callable[[Path], object], file: str, fields: dict[str, object]
) -> None:
    folder = shutil.copytree(honest, tmp_path / "theirs")
    change(folder / file, **fields)
    with pytest.raises(UsageError, match="theirs") as caught:
        load(folder)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("load", [load_tokenizer, LocalModel])
def test_a_panic_while_a_tokenizer_is_loaded_is_a_usage_error(
    honest: Path, tmp_path: Path, load: Callable[[Path], object]
) -> None:
    folder = shutil.copytree(honest, tmp_path / "theirs")
    file = folder / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    change(file, model={**model, "continuing_subword_prefix": "longer than a token"})
    with pytest.raises(UsageError, match="theirs"):
        load(folder)


@pytest.mark.parametrize("ends", [-0.5, "a", ["a"], {"a": 1}])
def test_end_tokens_that_are_no_ids_are_a_usage_error(honest: Path, tmp_path: Path, ends: object) -> None:
    folder = shutil.copytree(honest, tmp_path / "theirs")
    change(folder / "generation_config.json", eos_token_id=ends)
    with pytest.raises(UsageError, match="theirs"):
        LocalModel(folder)
