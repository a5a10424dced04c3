"""Free memory of the machine, the container or the GPU."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

MEMORY_SHARE = 4
"""Divisor of the free memory: an update's pass, or the caches of a batch, take at most a fourth of it."""
PASS_SHARE = 0.8
"""Part of the free memory that the pass of a single long sequence may take."""
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that can be allocated on a device without swapping.

    On Linux, a container's limit counts; cached files count as free. Other systems do not report the number,
    and the largest number is returned. On a GPU, PyTorch first frees its unused blocks, which are available
    to the next pass and to other programs.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    free_bytes = sys.maxsize
    with suppress(OSError, ValueError, TypeError):
        available = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text("ascii"), re.M)
        free_bytes = int(available[1]) * 1024 if available else free_bytes
    with suppress(OSError, ValueError):  # no container, or one without a limit, which reads "max"
        limit, used = (int((_CGROUP / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
        cached_match = re.search(r"^inactive_file (\d+)", (_CGROUP / "memory.stat").read_text("ascii"), re.M)
        free_bytes = min(free_bytes, max(0, limit - used + (int(cached_match[1]) if cached_match else 0)))
    return free_bytes
