"""The small base model that ships with the package, and the script that taught it (`teach.py`)."""

from __future__ import annotations

from pathlib import Path

MODEL = Path(__file__).resolve().parent / "model"
"""A Hugging Face model folder: Llama-shaped, with its tokenizer and chat template."""
