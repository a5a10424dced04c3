"""What a crowd of clients leaves goes back to the system."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.local.service.memory import give_back  # noqa: E402

MIB = 2**20


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library gives back by itself, or not"
)
def test_freed_tensors_leave_the_process_also_where_a_later_one_is_kept() -> None:
    give_back()
    before = resident()
    many = [torch.ones(16 * 1024 // 4) for _ in range(6400)]  # 100 MiB, each too small for pages of its own
    kept = many[-1]
    del many
    give_back()
    assert resident() - before < 50
    assert kept[0] == 1
