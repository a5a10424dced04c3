"""What stands around a program inside the interpreter, to which this file is sent as text.

It keeps to the part of Python that the interpreter knows. A program has a namespace of its own and sees none
of this. Only text leaves: a value is made plain and short here, under the program's own limits, for outside
there are none, and one small dictionary can be shaped so that to build it anew takes for ever.
"""

import json
from typing import Any

CUT = "… (cut)"
"""What stands for the rest of what was too long or too deep."""
LISTS: Any = (list, tuple, set, frozenset)
MAPPINGS: Any = (dict,)
OPERATORS = tuple(
    (
        "__eq__ __ne__ __contains__ __iter__ __getitem__ __call__ __hash__ __abs__ __neg__ __round__ "
        "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __mod__ __rmod__"
    ).split()
)
"""What lets an object say itself what it equals, holds or comes to."""


def execute(code: str, names: dict[str, Any], longest: int, deepest: int) -> str:
    """Run a program among `names`; the value of the expression it ends with, as JSON of about that size."""
    end = last_expression(code)
    exec(code[:end], names)
    if end == len(code):
        return "null"
    lines = "\n" * code[:end].count("\n")  # so that an error tells its line
    value = eval("(" + lines + code[end:] + "\n)", names)
    return json.dumps(plain(value, [longest], deepest))


def last_expression(code: str) -> int:
    """Where the expression begins that a program ends with; its end where there is none."""
    start = last_statement(code)
    line = code[start:]
    if is_expression(line):
        return start
    if parses("0;" + line):  # simple statements in one line, no `if x: a; b`
        for at in reversed([at for at in range(start, len(code)) if code[at] == ";"]):
            head = code[start:at]
            if parses(head) and not parses(head + "$") and is_expression(code[at + 1 :]):  # `$` for a comment
                return at + 1
    return len(code)


def last_statement(code: str) -> int:
    """Where the last line begins that is no part of a statement above it; the end of what does not parse."""
    start = len(code) + 1
    for line in reversed(code.split("\n")):
        start = start - len(line) - 1
        if line[:1] not in ("", " ", "\t", "\r", "#") and parses(code[start:]) and parses(code[:start]):
            return start
    return len(code)


def is_expression(text: str) -> bool:
    """Whether a text that may end in a comment is an expression."""
    return text.strip()[:1] not in ("", "#") and parses("(" + text + "\n)")


def parses(text: str) -> bool:
    """Whether a text is a program. Nothing of it runs."""
    try:
        exec("raise StopIteration\n" + text)
    except StopIteration:
        return True
    except NotImplementedError:  # Python that the interpreter does not know; what runs it will say so
        return True
    except SyntaxError:
        return False
    return False


def plain(value: Any, room: list[int], levels: int) -> Any:
    """A value as JSON has it, other than its kinds as text; cut where its characters fill the room.

    Lists and mappings inside one another are cut after so many levels."""
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
    """A text, cut where it is longer than the room; what it takes of the room is gone."""
    kept = text[: max(room[0], 0)]
    room[0] = room[0] - len(kept)
    return kept if len(kept) == len(text) else kept + CUT


def judge(test: str, used: list[str], names: dict[str, Any]) -> None:
    """Run a test among those of the program's names that it uses; raises what the test raises."""
    compared = {"_equal": equal, "_unequal": unequal, "_holds": holds, "_lacks": lacks, "_minus": minus}
    exec(test, {**{name: names[name] for name in used if name in names}, **compared})


def equal(left: Any, right: Any) -> bool:
    """`==`, where an object with operators of its own is equal to no plain data, whatever it says."""
    return odd(left) == odd(right) and left == right


def unequal(left: Any, right: Any) -> bool:
    """`!=`, likewise."""
    return not equal(left, right)


def holds(item: Any, container: Any) -> bool:
    """`in`, likewise."""
    if isinstance(container, LISTS + MAPPINGS):
        return any(equal(item, each) for each in container)
    return odd(item) == odd(container) and item in container


def lacks(item: Any, container: Any) -> bool:
    """`not in`, likewise."""
    return not holds(item, container)


def minus(left: Any, right: Any) -> Any:
    """`-`, likewise: what is nearly equal is mostly told by a difference."""
    if odd(left) != odd(right):
        raise TypeError("an object with operators of its own and plain data have no difference")
    return left - right


def odd(value: Any) -> bool:
    """Whether an object with operators of its own is in a value."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return False
    if isinstance(value, MAPPINGS):
        return any(odd(key) or odd(value[key]) for key in value)
    if isinstance(value, LISTS):
        return any(odd(item) for item in value)
    return any(hasattr(value, name) for name in OPERATORS)
