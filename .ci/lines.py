"""Print the lines of code of each room, without blank lines, comments and docstrings.

python .ci/lines.py
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "rolegraph"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(file: Path) -> int:
    """Return the number of lines with code; strings that stand alone are documentation."""
    text = file.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> None:
    """Print a row for each room, each integration and each part of the engine, and the sum."""
    total = sum(map(code_lines, PACKAGE.rglob("*.py")))
    rooms = sorted(path for path in PACKAGE.iterdir() if path.is_dir())
    parts = [part for room in ("engine", "integrations") for part in sorted((PACKAGE / room).iterdir())]
    for folder in (*rooms, *parts):
        if folder.is_dir() and (lines := sum(map(code_lines, folder.rglob("*.py")))):
            sys.stdout.write(f"{folder.relative_to(PACKAGE)!s:32} {lines:7,}\n")
    sys.stdout.write(f"{'rolegraph':32} {total:7,}\n")


if __name__ == "__main__":
    main()
