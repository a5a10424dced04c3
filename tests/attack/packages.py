"""Cases of hostile entry points, which fail while a spec is checked or its tasks are read.

The source of a case is `KIND:NAME` for an entry point of the package `hostile`, which `install` puts on the
path; `tasks:NAME` reads a dataset, and `list:KINDS` lists all items of a kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.attack.cases import Case

KINDS = ("parser", "reward", "estimator", "metric", "dataset", "tool", "environment", "signal")
BROKEN = {
    "raising": ("hostile_raising:made", "raise RuntimeError('no such \\x1b[31mdevice')", "cannot be loaded: RuntimeError: no such"),
    "exiting": ("hostile_exiting:made", "import sys; sys.exit('no')", "cannot be loaded: SystemExit: no"),
    "unwritten": ("hostile_unwritten:made", "def (", "cannot be loaded: SyntaxError"),
    "endless": ("hostile_endless:made", "def again(): again()\nagain()", "cannot be loaded: RecursionError"),
    "absent": ("hostile_absent:made", None, "cannot be loaded: ModuleNotFoundError"),
    "unnamed": ("hostile_unnamed:made", "", "cannot be loaded: AttributeError"),
    "constant": ("hostile_constant:made", "made = 3", "is no function"),
    "failing": ("hostile_failing:made", "def made(): raise KeyError('x')", "cannot be made: KeyError: 'x'"),
    "leaving": ("hostile_leaving:made", "import sys\ndef made(): sys.exit(3)", "cannot be made: SystemExit: 3"),
    "recursing": ("hostile_recursing:made", "def made(): return made()", "cannot be made: RecursionError"),
    "nothing": ("hostile_nothing:made", "def made(): return None", "made a NoneType"),
    "untyped": ("hostile_untyped:made", "def made(x: 'NoSuchType' = 1): return None", "cannot be made: "),
}  # fmt: skip
"""Entry point, text of its module, and expected message, by name."""
ROWS = {
    "rows_raise": ("yield {'id': 'a'}\n        raise KeyError('x')", "fails at or after its task 1: KeyError: 'x'"),
    "rows_without_id": ("yield {'question': 'a'}", "fails at or after its task 1: TypeError: it has no id that is text"),
    "rows_of_text": ("yield 'a'", "fails at or after its task 1"),
    "rows_of_objects": ("yield {'id': 'a', 'x': object()}", "Unable to serialize unknown type"),
    "rows_too_deep": ("deep = []\n        for _ in range(9999): deep = [deep]\n        yield {'id': 'a', 'x': deep}", "limit: json_depth"),
    "rows_without_number": ("yield {'id': 'a', 'x': float('nan')}", "fails at or after its task 1: ValueError: nan"),
    "rows_that_are_none": ("return 7", "fails at or after its task 0: TypeError"),
}  # fmt: skip
"""Body of a dataset's `rows` and expected message, by name."""

CASES = [
    *(
        Case(f"a {kind} {name}", f"{kind}:{name}", "fault", f"the {kind} '{name}' of hostile {says}")
        for kind in KINDS
        for name, (_, _, says) in BROKEN.items()
    ),
    *(
        Case(f"a dataset with {name}", f"tasks:{name}", "fault", says)
        for name, (_, says) in ROWS.items()
    ),
    *(
        Case(f"a list of {kind}s", f"list:{kind}s", "valid", "of hostile cannot be loaded: RuntimeError: no such \\x1b[31mdevice")
        for kind in KINDS
    ),
]

SPEC = """rolegraph: 2
name: x
data: {validation: DATASET}
roles:
  a: {prompt: hi, PARTS}
"""
OTHERS = """loops: {l: {roles: [a], times: 2, env: NAME}}
"""


def spec_of(kind: str, name: str) -> str:
    """Return a spec that uses an entry point of the package."""
    parts = {
        "parser": f"parser: {name}",
        "reward": f"reward: {name}",
        "estimator": f"reward: countdown, estimator: {name}",
        "signal": f"signal: {name}",
        "tool": f"tools: {name}, max_calls: 2",
    }.get(kind, "parser: text")
    text = SPEC.replace("PARTS", parts).replace("DATASET", name if kind in ("dataset", "tasks") else "countdown")
    if kind == "environment":
        text += OTHERS.replace("NAME", name)
    return text + (f"episode: {{metrics: {{m: {name}}}}}\n" if kind == "metric" else "")


def install(folder: Path) -> None:
    """Write the package and its metadata as pip does, and put the folder on `sys.path`."""
    info = folder / "hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    points = {name: point for name, (point, _, _) in BROKEN.items()}
    lines = [
        f"[rolegraph.{kind}s]\n" + "".join(f"{name} = {point}\n" for name, point in points.items())
        for kind in KINDS
    ]
    rows = "".join(f"{name} = hostile_rows:{name}\n" for name in ROWS)
    (info / "entry_points.txt").write_text("\n".join(lines).replace("[rolegraph.datasets]\n", f"[rolegraph.datasets]\n{rows}"))
    for point, text, _ in BROKEN.values():
        if text is not None:
            (folder / f"{point.partition(':')[0]}.py").write_text(text)
    made = "from rolegraph.engine.vocabulary import Dataset\n"
    for name, (body, _) in ROWS.items():
        made += f"def {name}():\n    def rows(limit):\n        {body}\n    return Dataset(('id',), frozenset(), rows)\n"
    (folder / "hostile_rows.py").write_text(made)
    sys.path.insert(0, str(folder))
