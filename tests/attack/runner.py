"""Runner of the corpus, with each part in a process that may allocate 256 MB beyond its start.

`python -m tests.attack.runner` prints a JSON object with the outcome of each case, by part and name. The
processes are forks of one process, which has already imported all modules.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NoReturn

import rolegraph as rg
from rolegraph.cli.main import run as run_command
from rolegraph.engine.compile import check_file
from rolegraph.engine.errors import DataError, SpecError
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.prompts.checks import TemplateFault, TemplateScope
from rolegraph.engine.prompts.scope import RenderScope
from rolegraph.engine.prompts.templates import compile_expression, compile_template
from rolegraph.engine.vocabulary import View, Views
from rolegraph.integrations.bm25s.corpus import open_corpus, search
from tests.attack import (
    bombs,
    burster,
    conditions,
    folders,
    given,
    overrides,
    packages,
    prompts,
    specs,
    tables,
)
from tests.attack.cases import Came
from tests.attack.giver import give, register
from tests.attack.looker import look

MORE = 256 << 20
"""Memory limit for a part of the corpus, in bytes beyond the memory at its start."""
AROUND = TemplateScope({"solver": 2}, ("solver", "judge"), None, frozenset({"answer"}))
VARIABLES = {
    "task": {"id": "1", "question": "q", "items": [1], "nested": {"answer": 3}},
    "solver": Views([View(1, "a"), View(2, "b")]),
}
BASE = "rolegraph: 2\nname: x\nroles:\n  a:\n    prompt: hi\n"


def render(source: str) -> Came:
    """Compile and render a template and return the outcome."""
    template, faults = compile_template(source, AROUND)
    if template is None:
        return of_faults(source, faults)
    meters: list[RenderScope] = []
    init = RenderScope.__init__

    def noted(self: RenderScope, variables: Mapping[str, object]) -> None:
        init(self, variables)
        meters.append(self)

    RenderScope.__init__ = noted
    try:
        return Came("text", template.render(VARIABLES)[:200], meters[0].spent)
    except PromptError as error:
        return Came("error", str(error), meters[0].spent)
    finally:
        RenderScope.__init__ = init


def hold(source: str) -> Came:
    """Compile and evaluate a condition and return the outcome."""
    condition, faults = compile_expression(source, replace(AROUND, is_condition=True))
    if condition is None:
        return of_faults(source, faults)
    try:
        return Came("text", repr(condition.truth(VARIABLES)))
    except PromptError as error:
        return Came("error", str(error))


def of_faults(source: str, faults: list[TemplateFault]) -> Came:
    first = faults[0]
    assert 0 <= first.position <= len(source)
    return Came("fault", first.message)


def validate(source: str, *given: str) -> Came:
    """Check a spec's file with overrides and return the outcome."""
    Path("x.yaml").write_bytes(source.encode(errors="surrogatepass"))
    compiled = check_file("x.yaml", given)
    texts = [str(diagnostic) for diagnostic in compiled.diagnostics]
    for text in texts:
        assert len(text) < 4_000, "a diagnostic that nobody reads"
        assert all(character.isprintable() or character == "\n" for character in text), "not for a terminal"
    assert len(texts) <= 1_000
    if compiled.plan is not None:
        return Came("valid", "")
    fault = next(d for d in compiled.diagnostics if d.severity == "error")
    assert fault.place.line >= 1
    assert fault.place.column >= 1
    return Came("fault", str(fault))


def override(given: str) -> Came:
    """Check a valid spec with an override and return the outcome."""
    return validate(BASE, given)


def use(source: str) -> Came:
    """Check a spec that uses an entry point of a package, or read its tasks, and return the outcome."""
    kind, _, name = source.partition(":")
    if kind == "list":
        with redirect_stdout(StringIO()) as shown:
            assert run_command(["list", name]) == 0
        return Came("valid", shown.getvalue())
    text = packages.spec_of(kind, name)
    if kind != "tasks":
        return validate(text)
    Path("x.yaml").write_text(text)
    try:
        return Came("valid", str(rg.load("x.yaml").tasks("validation")))
    except DataError as error:
        return Came("fault", str(error))


def look_up(source: str) -> Came:
    """Search a file of passages, or read a file of tasks, and return the outcome."""
    reader, suffix, text = source.split(":", 2)
    path = Path(f"{reader}.{suffix}")
    if text == "sparse":
        path.write_bytes(b"")
        os.truncate(path, 3 << 30)
    elif text.startswith("b85 "):
        path.write_bytes(base64.b85decode(text[4:]))
    else:
        path.write_bytes(text.encode(errors="surrogateescape"))
    try:
        if reader == "passages":
            return Came("valid", str(search(open_corpus(path.name, folder=Path()), "good")))
        Path("x.yaml").write_text(BASE + f"data: {{validation: {path.name}}}\n")
        return Came("valid", str(rg.load("x.yaml").tasks("validation")))
    except (DataError, SpecError) as error:
        return Came("fault", str(error))


PARTS: Mapping[str, tuple[Callable[[str], Came], list[tuple[str, str]]]] = {
    part: (run, [(case.name, case.source) for case in cases])
    for part, (run, cases) in {
        "prompts": (render, prompts.CASES),
        "conditions": (hold, conditions.CASES),
        "specs": (validate, specs.CASES),
        "overrides": (override, overrides.CASES),
        "given": (give, given.CASES),
        "packages": (use, packages.CASES),
        "tables": (look_up, tables.CASES),
        "folders": (look, folders.CASES),
        "bombs": (burster.burst, bombs.CASES),
    }.items()
}


FIRST = {
    "specs": BASE,
    "given": "call:1",
    "bombs": f"argument:{bombs.BOMBS[0].source}",
    "packages": "tasks:rows_of_text",
    "folders": folders.CASES[0].source,
    "tables": f"passages:jsonl:{tables.GOOD}",
}


def main() -> None:
    came: dict[str, dict[str, Came]] = {}
    for part in PARTS:
        ours, theirs = os.pipe()
        if (child := os.fork()) == 0:
            os.close(ours)
            leave(part, theirs)
        os.close(theirs)
        with os.fdopen(ours) as said:
            text = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            sys.exit(f"{part} ended with {code}")
        came[part] = json.loads(text)
    json.dump(came, sys.stdout)


def leave(part: str, to: int) -> NoReturn:
    """Write the outcomes of a part to a file descriptor and exit."""
    code = 1
    try:
        with os.fdopen(to, "w") as said:
            json.dump(came_of(part), said)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def came_of(part: str) -> dict[str, Came]:
    """Run the cases of a part in this process, under the memory limit, and return their outcomes."""
    run, cases = PARTS[part]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        register()
        burster.register()
        packages.install(Path(folder))
        run(FIRST.get(part, prompts.CASES[0].source))  # import lazily loaded modules before the limit
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MORE, size + MORE))
        return {name: attempt(run, source) for name, source in cases}


def attempt(run: Callable[[str], Came], source: str) -> Came:
    try:
        return run(source)
    except BaseException as error:
        return Came("raised", f"{type(error).__name__}: {error}"[:500])


if __name__ == "__main__":
    main()
