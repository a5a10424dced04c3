"""The language: models of what a spec may say, the loader, and diagnostics.

A check elsewhere says what it noticed as a `Finding`; the loader's source gives it its place in the file.
"""

from rolegraph.engine.spec.diagnostics import Diagnostic, Finding, Path, Place
from rolegraph.engine.spec.loader import TESTS, find_spec, is_tests, load_spec
from rolegraph.engine.spec.models import Loop, Spec
from rolegraph.engine.spec.role import OF_A_TOOL, Credit, Edge, GroupBy, Loss, OnFailure, Role
from rolegraph.engine.spec.sources import ModelRef, PromptSource, Sampling, served_as
from rolegraph.engine.spec.train import Lora, Policy, Schedule, Train

__all__ = [
    "OF_A_TOOL",
    "TESTS",
    "Credit",
    "Diagnostic",
    "Edge",
    "Finding",
    "GroupBy",
    "Loop",
    "Lora",
    "Loss",
    "ModelRef",
    "OnFailure",
    "Path",
    "Place",
    "Policy",
    "PromptSource",
    "Role",
    "Sampling",
    "Schedule",
    "Spec",
    "Train",
    "find_spec",
    "is_tests",
    "load_spec",
    "served_as",
]
