"""What comes of what people write: specs, overrides, templates, conditions, tables, corpora."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inputs import as_yaml, spec_data

from rolegraph.engine.compile import check_file
from rolegraph.engine.errors import DataError, SpecError, UsageError
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.prompts.checks import TemplateFault, TemplateScope
from rolegraph.engine.prompts.templates import compile_template
from rolegraph.engine.spec import Diagnostic
from rolegraph.engine.spec.expectations import read_tests
from rolegraph.engine.vocabulary import ItemCall, ToolError, View, Views, open_dataset, tools

AROUND = TemplateScope({"solver": 2}, ("solver", "judge"), None, frozenset({"answer"}))
VARIABLES = {
    "task": {"id": "1", "question": "q", "items": [1, "a"], "nested": {"answer": 3}},
    "solver": Views([View(1, "a"), View(2, "b")]),
}
FAULT, RESULT = "fault", "result"


def write(name: str, text: str) -> None:
    Path(name).write_bytes(text.encode(errors="surrogatepass"))


def told(error: object) -> None:
    """A message says something, and is short; the command line prints none as it is."""
    assert 0 < len(str(error)) < 4_000, f"nobody reads it: {len(str(error))}"


def _placed(diagnostic: Diagnostic) -> None:
    told(diagnostic)
    odd = [c for c in str(diagnostic) if not (c.isprintable() or c == "\n")]
    assert not odd, f"not for a terminal: {odd[:3]!r}"
    assert diagnostic.place.line >= 1 and diagnostic.place.column >= 1, f"no place: {diagnostic}"


def spec(text: str, *given: str) -> str:
    write("x.yaml", text)
    compiled = check_file("x.yaml", given)
    for diagnostic in compiled.diagnostics:
        _placed(diagnostic)
    assert compiled.plan is not None or compiled.diagnostics, "refused without a word"
    return FAULT if compiled.plan is None else RESULT


def override(given: str) -> str:
    return spec(as_yaml(spec_data()[len(given) % len(spec_data())]), given)


def spec_tests(text: str) -> str:
    write("x.test.yaml", text)
    try:
        read_tests(Path("x.test.yaml"))
    except SpecError as error:
        assert error.diagnostics, "refused without a word"
        for diagnostic in error.diagnostics:
            _placed(diagnostic)
        return FAULT
    except UsageError as error:
        told(error)
        return FAULT
    return RESULT


def prompt(text: str) -> str:
    made, faults = compile_template(text, AROUND)
    return _rendered(text, faults, made and made.render)


def condition(text: str) -> str:
    made, faults = compile_template(text, replace(AROUND, is_condition=True))
    return _rendered(text, faults, made and made.holds)


def _rendered(
    text: str, faults: Sequence[TemplateFault], render: Callable[[Mapping[str, Any]], object] | None
) -> str:
    if render is None:
        assert faults and 0 <= faults[0].position <= len(text), "no place"
        return FAULT
    try:
        render(VARIABLES)
    except PromptError:
        return FAULT
    return RESULT


def _table(about: Mapping[str, Any]) -> str:
    name = f"t{about['suffix']}"
    if "hex" in about:
        Path(name).write_bytes(bytes.fromhex(about["hex"]))
    else:
        write(name, about["text"])
    return name


def rows(text: str) -> str:
    name = _table(json.loads(text))
    try:
        for row in open_dataset(ItemCall.parse(name), split="train", folder=Path()).rows(None):
            json.dumps(row, allow_nan=False)
    except DataError as error:
        told(error)
        assert name in str(error), f"no place: {error}"
        return FAULT
    return RESULT


def corpus(text: str) -> str:
    about = json.loads(text)
    name = _table(about)
    try:
        tool = tools.build(ItemCall("search", options={"corpus": name}), folder=Path())
        found = asyncio.run(asked(tool, {"query": about["query"]}))
    except (DataError, UsageError, ToolError) as error:
        told(error)
        return FAULT
    json.dumps(found, allow_nan=False)
    return RESULT


async def asked(tool: Any, arguments: Mapping[str, Any]) -> Any:
    async with tool.open() as functions:
        return await functions[0].call(arguments)
