"""Harness that runs a program inside the interpreter. This file is sent to the interpreter as text.

Only the part of Python that Monty supports is used. A program has its own namespace and cannot see the
harness.
Values leave as JSON text, built and cut here under the program's limits: rebuilding a value outside could
take unbounded time for a small dictionary of a hostile shape.
"""

import json
from typing import Any

CUT = "… (cut)"
"""Mark that replaces a part that is too long or too deep."""
LISTS: Any = (list, tuple, set, frozenset)
MAPPINGS: Any = (dict,)
OPERATORS = (
    "__eq__ __ne__ __contains__ __iter__ __getitem__ __call__ __hash__ __abs__ __neg__ __round__ "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __mod__ __rmod__"
).split()
"""Methods by which an object defines its own equality, membership, value or arithmetic."""


def execute(code: str, end: str, names: dict[str, Any], longest: int, deepest: int) -> str:
    """Run a program with the globals `names`; return the value of an expression as JSON.

    The JSON is cut after about `longest` characters, and at `deepest` levels.

    Args:
        code: The program.
        end: The expression; empty for the result `null`.
        names: The globals.
        longest: Largest number of characters.
        deepest: Largest number of levels.
    """
    exec(code, names)
    if end == "":
        return "null"
    lines = "\n" * code.count("\n")  # keeps the line numbers of errors
    value = eval("(" + lines + end + "\n)", names)
    return json.dumps(plain(value, [longest], deepest))


def plain(value: Any, room: list[int], levels: int) -> Any:
    """Return a value as JSON data, cut to `room[0]` characters and `levels` levels; objects become text.

    The number of characters used is subtracted from `room[0]`, the only item of `room`.
    """
    room[0] = room[0] - 1
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and abs(value) < 10**1000:
        room[0] = room[0] - len(str(value))
        return value
    if isinstance(value, int):
        return "an integer of more than 1,000 digits"
    if isinstance(value, LISTS + MAPPINGS) and levels == 0:
        room[0] = room[0] - len(CUT)
        return CUT
    if isinstance(value, MAPPINGS):
        fields: dict[str, Any] = {}
        for key in value:
            if room[0] <= 0:
                fields[CUT] = None
                break
            fields[short(str(key), room)] = plain(value[key], room, levels - 1)
        return fields
    if isinstance(value, LISTS):
        items: list[Any] = []
        for item in value:
            if room[0] <= 0:
                items.append(CUT)
                break
            items.append(plain(item, room, levels - 1))
        return items
    return short(str(value), room)


def short(text: str, room: list[int]) -> str:
    """Return a text cut to `room[0]` characters, with a mark if it is cut, and subtract its length from
    `room[0]`."""
    kept_text = text[: max(room[0], 0)]
    room[0] = room[0] - len(kept_text)
    return kept_text if len(kept_text) == len(text) else kept_text + CUT


def judge(test: str, used: list[str], names: dict[str, Any]) -> None:
    """Run a test's source with the program's variables named in `used`; raise the error of a failing test."""
    comparisons = {"_equal": equal, "_holds": holds, "_minus": minus}
    exec(test, {**{name: names[name] for name in used if name in names}, **comparisons})


def equal(left: Any, right: Any) -> bool:
    """Return `left == right`, but False between plain data and an object whose class defines operators."""
    return odd(left) == odd(right) and left == right


def holds(item: Any, container: Any) -> bool:
    """Return True if a container holds an item, compared by `equal`, so that the program's own operators have
    no effect."""
    if isinstance(container, LISTS + MAPPINGS):
        return any(equal(item, item_) for item_ in container)
    return odd(item) == odd(container) and item in container


def minus(left: Any, right: Any) -> Any:
    """Return `left - right`; raise TypeError between plain data and an object whose class defines operators.

    Tests of approximate equality compare a difference with a tolerance.
    """
    if odd(left) != odd(right):
        raise TypeError("an object with operators of its own and plain data have no difference")
    return left - right


def odd(value: Any) -> bool:
    """Return True if a value is, or contains, an object whose class defines operators such as `__eq__`."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return False
    if isinstance(value, MAPPINGS):
        return any(odd(key) or odd(value[key]) for key in value)
    if isinstance(value, LISTS):
        return any(odd(item) for item in value)
    return any(hasattr(value, name) for name in OPERATORS)
