"""The language: models of what a spec may say, the loader, and diagnostics.

A check elsewhere says what it noticed as a `Finding`; the loader's source gives it its place in the file.
"""

from rolegraph.engine.spec.diagnostics import Diagnostic, Finding, Path, Place
from rolegraph.engine.spec.loader import TESTS_SUFFIX, find_spec, is_tests_file, load_spec
from rolegraph.engine.spec.models import Loop, Spec
from rolegraph.engine.spec.role import TOOL_ROLE_KEYS, Credit, Edge, GroupBy, Loss, OnFailure, Role
from rolegraph.engine.spec.sources import ModelRef, PromptSource, Sampling, api_of
from rolegraph.engine.spec.train import Lora, Policy, Schedule, Train

__all__ = [
    "TESTS_SUFFIX",
    "TOOL_ROLE_KEYS",
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
    "api_of",
    "find_spec",
    "is_tests_file",
    "load_spec",
]
