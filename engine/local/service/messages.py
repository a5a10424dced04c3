"""The protobuf messages of Tinker's SDK, without the SDK: that takes longer to import than torch.

Imported by the name that they have in the SDK, so that the SDK, if training brings it in, takes them up.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as public


def _messages() -> ModuleType:
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
    public = _messages()

__all__ = ["public"]
