"""Specs under rLLM: a Workflow class, an AgentFlow, and their trainer and grouping hook.

`Services` and `model_folder` serve and find the models of a spec, for scripts that `rolegraph eject` writes.

Only this package imports rllm, and only when one of its functions is called: `uv pip install --group rllm .`.
"""

from rolegraph.engine.lazily import names_of

__getattr__, __dir__, __all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]  # the stub lists them
