"""The Tinker SDK is imported without torch, which works as ever where somebody wants it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

CONVERTED = """
import importlib.util
import torch
import torch.nn.functional as functional
from torch import nn

assert type(torch) is type(sys) and sys.modules["torch"] is torch
assert importlib.util.find_spec("torch").name == "torch"
assert nn.Linear(2, 3)(torch.ones(1, 2)).shape == functional.relu(torch.ones(1, 3)).shape
ones = torch.ones(2, dtype=torch.bfloat16)
data = tinker.TensorData.from_torch(ones)
inputs = {"target_tokens": torch.tensor([1, 2]), "weights": ones, "advantages": [1.0, 2.0]}
datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([0, 1]), loss_fn_inputs=inputs)
print(data.dtype, data.to_torch().tolist(), datum.loss_fn_inputs["target_tokens"].data)
"""
NEEDY = """
import importlib.util
import pathlib
import torch
import torch.fx
from torch import nn

found = importlib.util.find_spec("torch")
LIKE = dict[str, torch.Tensor | nn.Module]
class Traced(nn.Module):
    graph = torch.fx.Graph
real = pathlib.Path({real!r})
__path__.append(str(real.parent))
exec(compile(real.read_text(), str(real), "exec"))
"""
"""A later SDK, which uses torch while it is imported."""
IMPORTED = "import sys\nfrom rolegraph.engine.models.tinker_sdk import tinker\n"


def output(code: str, *folders: Path) -> str:
    """Return what a program prints; modules of `folders` come before installed ones."""
    code = f"import sys\nsys.path[:0] = {[*map(str, folders)]}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_client_and_the_tokenizer_of_the_base_model_load_no_torch() -> None:
    code = """
import rolegraph.engine.models.tinker, rolegraph.engine.training.policies.policies
from rolegraph.local.launcher import BASE_MODEL
from rolegraph.engine.models.tokenizer import load_tokenizer
load_tokenizer(BASE_MODEL)
print(*sorted({"torch", "tinker", "transformers"} & set(sys.modules)))
"""
    assert output(code) == "tinker transformers"


@pytest.mark.parametrize("before", ["", "import torch\n", "import tinker\n"], ids=["none", "torch", "tinker"])
def test_tensors_are_converted_whatever_was_imported_first(before: str) -> None:
    assert output(before + IMPORTED + CONVERTED) == "float32 [1.0, 1.0] [1, 2]"


def test_a_conversion_imports_torch_by_itself() -> None:
    code = 'print(tinker.TensorData([1, 2], "int64").to_torch().sum().item(), "torch" in sys.modules)'
    assert output(IMPORTED + code) == "3 True"


def test_an_sdk_that_needs_torch_while_it_is_imported_gets_it(tmp_path: Path) -> None:
    import tinker

    (tmp_path / "tinker").mkdir()
    (tmp_path / "tinker/__init__.py").write_text(NEEDY.format(real=tinker.__file__))
    checks = "print(tinker.Traced().graph is sys.modules['torch.fx'].Graph, tinker.found.name)\n"
    assert output(IMPORTED + checks + CONVERTED, tmp_path) == "True torch\nfloat32 [1.0, 1.0] [1, 2]"


def test_an_sdk_without_torch_is_imported_where_none_is_installed() -> None:
    code = 'sys.modules["torch"] = None\n' + IMPORTED + 'print(sys.modules["torch"])'
    assert output(code) == "None"
