"""Fields of slime's Sample (0.3.1, `slime/utils/types.py`) that an ejected module reads and sets, restated.

slime itself takes their place where it is importable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    index: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    tokens: list[int] = field(default_factory=list)  # pyright: ignore[reportUnknownVariableType]
    response: str = ""
    response_length: int = 0
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    reward: float | None = None
    status: Status = Status.PENDING
    remove_sample: bool = False

    Status = Status
