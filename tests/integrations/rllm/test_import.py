"""Imports of the bridge: lazy, and with a message if rLLM is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from rolegraph.engine.errors import UsageError
from rolegraph.integrations.rllm import compile_workflow


def test_importing_the_bridge_does_not_import_rllm() -> None:
    program = "import sys; from rolegraph.integrations.rllm import prepared; print('rllm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(find_spec("rllm") is not None, reason="rLLM is installed, so nothing is missing")
def test_without_rllm_it_says_how_to_get_it() -> None:
    with pytest.raises(UsageError, match=r"uv pip install --group rllm \."):
        compile_workflow("solver_judge")
