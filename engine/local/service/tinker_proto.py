"""The protobuf messages of the Tinker SDK, imported without the SDK, which takes longer to import than torch.

The module is registered under its name in the SDK, so that the SDK, if it is imported later, uses the same
one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as public


def _import_messages() -> ModuleType:
    name = "tinker.proto.tinker_public_pb2"
    sdk = find_spec("tinker")
    if name in sys.modules or sdk is None or sdk.origin is None:
        from tinker.proto import tinker_public_pb2

        return tinker_public_pb2
    spec = spec_from_file_location(name, Path(sdk.origin).parent / "proto" / "tinker_public_pb2.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


if not TYPE_CHECKING:
    public = _import_messages()

__all__ = ["public"]
