"""Free memory of the machine, the container or the GPU."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

MEMORY_SHARE = 4
"""Divisor of the free memory: an update's pass, or the caches of a batch, take a fourth of it at most."""
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Return the bytes that can be taken on a device without swapping, as far as the system tells.

    On Linux, a container's limit counts. Other systems do not tell, and get the largest number.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = sys.maxsize
    with suppress(OSError, ValueError, TypeError):
        available = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text("ascii"), re.M)
        free = int(available[1]) * 1024 if available else free
    with suppress(OSError, ValueError):  # no container, or one without a limit, which reads "max"
        limit, used = (int((_CGROUP / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
        free = min(free, max(0, limit - used))
    return free
