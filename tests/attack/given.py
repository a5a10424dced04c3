"""Cases of hostile return values from third-party tools, environments, parsers, rewards and metrics.

The source of a case is `KIND:EXPRESSION`, where the Python expression gives the result of a tool, the first
transition of an environment, the action of a parser, the score of a reward or the number of a metric. `deep`,
`circle` and `raises` are functions in giver.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.attack.cases import Case, Outcome

ANYWHERE: Sequence[tuple[str, str, str]] = [
    ('an object', 'object()', 'object'),
    ('a set of objects', '{object()}', 'object'),
    ('deep lists', 'deep(5000)', 'neither text nor a JSON value'),
    ('lists past the limit', 'deep(66)', 'limit: json_depth'),
    ('a list in itself', 'circle()', 'neither text nor a JSON value'),
    ('no number', '[float("nan")]', 'nan is not a number in JSON'),
    ('infinity', '{"a": float("-inf")}', '-inf is not a number in JSON'),
    ('bytes', '[b"\\xff"]', 'neither text nor a JSON value'),
    ('half a character', '["\\ud800"]', 'not valid Unicode'),
    ('half a character in a key', '{"\\ud800": 1}', 'neither text nor a JSON value'),
    ('a number without end', '10**5000', 'limit: json_digits'),
    ('what raises', 'raises(KeyError("x"))', "KeyError: 'x'"),
    ('what recurses', 'raises(RecursionError("no end"))', 'RecursionError: no end'),
    ('what takes all memory', '"a" * 10**12', 'MemoryError'),
]  # fmt: skip
"""Values that are refused from every kind of code."""

FINE: Sequence[tuple[str, str, str]] = [
    ('NUL', '"a\\0b"', 'a\\x00b'),
    ('a terminal\'s escape', '"\\x1b[31mred"', '\\x1b[31mred'),
    ('nothing', 'None', 'null'),
    ('a tuple', '(1, (2,))', '[1, [2]]'),
    ('keys that are numbers', '{1: 2}', '{"1": 2}'),
    ('deep, but not too deep', 'deep(60)', '[[['),
]  # fmt: skip
"""Values that are accepted from every kind of code."""

WORLDS: Sequence[tuple[str, str, Outcome, str]] = [
    ('no transition', '7', 'error', "environment_error: the environment raised AttributeError: 'int' object has no attribute 'observations'"),
    ('an observation that is a list', 'Transition({0: ["a"]})', 'error', 'it shows player 0 list, expected text'),
    ('an observation that is nothing', 'Transition({0: None})', 'error', 'it shows player 0 NoneType, expected text'),
    ('observations that are a list', 'Transition(["a"])', 'error', 'environment_error'),
    ('a huge observation', 'Transition({0: "a" * 1_000_001})', 'error', 'limit: observation_text'),
    ('the largest observation', 'Transition({0: "a" * 999_000})', 'text', ''),
    ('half a character', 'Transition({0: "\\ud800"})', 'error', 'prompt_error'),
    ('NUL and escapes', 'Transition({0: "\\0 \\x1b[31m"})', 'text', '\\x00 \\x1b[31m'),
    ('a stranger', 'Transition({7: "a"})', 'error', 'it names player 7'),
    ('a reward that is none', 'Transition({0: "a"}, {0: float("nan")})', 'error', 'it gave the reward nan'),
    ('a reward that is text', 'Transition({0: "a"}, {0: "1"})', 'error', 'reward str, which is no number'),
    ('a reward beyond floats', 'Transition({0: "a"}, {0: 10**400})', 'error', 'environment_error'),
    ('rewards that are a list', 'Transition({0: "a"}, [1.0])', 'error', 'environment_error'),
    ('info that is no mapping', 'Transition({0: "a"}, {}, False, 7)', 'error', 'environment_error'),
    ('info that cannot be recorded', 'Transition({0: "a"}, {}, False, {"a": object()})', 'error', 'environment_error'),
    ('info of keys that are numbers', 'Transition({0: "a"}, {}, False, {1: 2})', 'text', ''),
    ('raising', 'raises(OSError("gone"))', 'error', 'the environment raised OSError: gone'),
    ('recursion', 'raises(RecursionError("no end"))', 'error', 'the environment raised RecursionError: no end'),
]  # fmt: skip
SCORES: Sequence[tuple[str, str, Outcome, str]] = [
    ('nothing', 'None', 'text', ''),
    ('a number', '1.0', 'error', 'reward_error'),
    ('text', '"1"', 'error', 'reward_error'),
    ('a score that is text', 'Score("x", True)', 'error', 'reward_error'),
    ('a score without a number', 'Score(float("nan"), True)', 'error', 'the reward is nan'),
    ('infinity', 'Score(float("inf"), True)', 'error', 'the reward is inf'),
    ('beyond floats', 'Score(10**400, True)', 'error', 'reward_error'),
    ("a library's number", 'Score(numpy.float32(1), numpy.bool_(True), {"a": numpy.int64(2)})', 'text', ''),
    ('terms that are a list', 'Score(1.0, True, [1])', 'error', 'reward_error'),
    ('terms that are text', 'Score(1.0, True, {"a": "b"})', 'error', 'reward_error'),
    ('names that are numbers', 'Score(1.0, True, {1: 2})', 'text', ''),
    ('raising', 'raises(ValueError("\\x1b[31m"))', 'error', 'the reward raised ValueError'),
    ('recursion', 'raises(RecursionError("no end"))', 'error', 'the reward raised RecursionError: no end'),
]  # fmt: skip
NUMBERS: Sequence[tuple[str, str, Outcome, str]] = [
    ('nothing', 'None', 'text', ''),
    ('text', '"1"', 'error', 'it is str, which is no number'),
    ('no number', 'float("nan")', 'error', 'it is nan'),
    ('beyond floats', '10**400', 'error', 'which is no number'),
    ("a library's number", 'numpy.float32(1)', 'text', ''),
    ('raising', 'raises(KeyError("x"))', 'error', "KeyError: 'x'"),
]  # fmt: skip

CASES = [
    *(
        Case(f"{name} of a {kind}", f"{kind}:{gives}", "error", says)
        for kind in ("tool", "call", "parser")
        for name, gives, says in ANYWHERE
    ),
    *(
        Case(f"{name} of a {kind}", f"{kind}:{gives}", "text", says)
        for kind in ("tool", "call", "parser")
        for name, gives, says in FINE
    ),
    *(
        Case(f"{name} of a {kind}", f"{kind}:{gives}", "error", says)
        for kind in ("tool", "call")
        for name, gives, says in (
            ("a huge text", '"a" * 1_000_001', "limit: tool_text"),
            ("a huge list", '["a"] * 400_000', "limit: tool_text"),
            ("half a text", '"a\\ud800"', "not valid Unicode"),
            ("its own error", 'raises(ToolError("no such page"))', "no such page"),
            ("a timeout", "raises(TimeoutError())", "no result"),
        )
    ),
    *(
        Case(f"{name} of an {kind}", f"{kind}:{gives}", outcome, says)
        for kind, cases in (("environment", WORLDS), ("reward", SCORES), ("metric", NUMBERS))
        for name, gives, outcome, says in cases
    ),
]
