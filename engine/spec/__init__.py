"""The language: models of what a spec may say, the loader, and diagnostics.

A check elsewhere says what it noticed as a `Finding`; the loader's source gives it its place in the file.
"""

from engine.spec.diagnostics import Diagnostic, Finding, Path, Place
from engine.spec.loader import find_spec, load_spec
from engine.spec.models import Lora, ModelRef, Policy, PromptSource, Role, Sampling, Spec, Train

__all__ = [
    "Diagnostic",
    "Finding",
    "Lora",
    "ModelRef",
    "Path",
    "Place",
    "Policy",
    "PromptSource",
    "Role",
    "Sampling",
    "Spec",
    "Train",
    "find_spec",
    "load_spec",
]
