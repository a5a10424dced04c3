"""The backends of rLLM's trainer, by name: for a flag, a type and a table. Imports nothing."""

from __future__ import annotations

from typing import Literal, get_args

Backend = Literal["tinker", "verl", "fireworks"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
