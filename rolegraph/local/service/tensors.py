"""Tensors of weights files: reading, errors of writing, and the one check of all weights before their use."""

# safetensors leaves parts of its types unknown.
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import errno
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rolegraph.engine.errors import UsageError, first_line

_NAMED = 3
"""Number of faults that a message lists."""


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """Map the tensors of safetensors files into memory, by name; their bytes are read when they are used.

    Raises:
        UsageError: A file is missing, or not a safetensors file.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise UsageError(f"the weights {file} cannot be read: {reason or first_line(error)}") from error
    return tensors


@contextmanager
def safetensors_errors() -> Generator[None]:
    """Convert an error of a block that writes safetensors, such as that of a full disk, to OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error


def tensor_faults(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """Compare weights with the expected tensors.

    Args:
        weights: The weights by name; values of tensors on the meta device are not checked.
        expected: Tensors of the names, shapes and kinds of numbers that `weights` should have; any device.

    Returns:
        A text that names the first tensors that are missing, unexpected, of another shape or kind, or not
        finite, and counts the others; None if the weights fit.
    """
    faults = [f"{name} is missing" for name in expected if name not in weights]
    faults += [f"{name} is unexpected" for name in weights if name not in expected]
    for name, tensor in weights.items():
        expected_tensor = expected.get(name, tensor)
        if tensor.shape != expected_tensor.shape:
            faults.append(f"{name} has the shape {[*tensor.shape]}, expected {[*expected_tensor.shape]}")
        elif tensor.is_floating_point() != expected_tensor.is_floating_point():
            faults.append(f"{name} has the type {tensor.dtype}, expected {expected_tensor.dtype}")
        elif not _is_finite(tensor):
            faults.append(f"{name} has values that are not finite")
    more_note = f"; and {len(faults) - _NAMED:,} more" if len(faults) > _NAMED else ""
    return "; ".join(faults[:_NAMED]) + more_note if faults else None


def _is_finite(tensor: Tensor) -> bool:
    if tensor.is_meta or not tensor.is_floating_point() or not tensor.numel():
        return True
    # One pass without a tensor of flags: a seventh of the time of isfinite().all() for 135 million weights.
    extremes = torch.aminmax(tensor.detach().float() if tensor.itemsize == 1 else tensor.detach())
    return bool(torch.stack(extremes).isfinite().all())
