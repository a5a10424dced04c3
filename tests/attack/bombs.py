"""Resource-exhausting inputs outside prompts: tool arguments, demonstrations, patterns, answers and files.

The source of a case is `KIND:INPUT`. The input is a template, a spec, or a Python expression: the arguments of
a parser and an answer, or the content of a file in a run folder.
"""

from __future__ import annotations

from tests.attack import prompts
from tests.attack.cases import Case

BOMBS = [
    case
    for case in prompts.CASES
    if case.outcome == "error" and "limit:" in case.says and "solver" not in case.source
]
NESTED = '"((a{0,30}){0,30}b)"'
PATTERNS = [
    Case("a pattern of nested repetitions", f'parser:["regex", {NESTED}, {{}}, "a" * 399_000]', "error", "limit: pattern_work"),
    Case("that on a short answer", f'parser:["regex", {NESTED}, {{}}, "a" * 3_000 + "b"]', "text", "aaa"),
    Case("a search of all that is left, for each match", 'parser:["regex", "a(?:.*z)?", {}, "a" * 399_000 + "!"]', "text", "a"),
    Case("a search of all in vain, for each match", 'parser:["regex", "a(?:.*z)?", {}, "a" * 199_000 + "!" * 200_000]', "error", "limit: pattern_work"),
    Case("a pattern on each text", 'parser:["json", {"items": {"pattern": ' + NESTED + '}}, {}, json.dumps(["a" * 1_000] * 100)]', "error", "limit: pattern_work"),
    Case("a reward's pattern", f'reward:[{NESTED}, "a" * 399_000]', "error", "limit: pattern_work"),
    Case("brackets, then five million numbers", 'parser:["json", None, {}, "[" * 64 + "1," * 5_000_000]', "error", "limit: json_read"),
    Case("brackets, then numbers", 'parser:["json", None, {}, "[" * 64 + "1," * 190_000]', "error", "the answer holds no JSON that is found by reading"),
    Case("a reference of 5,000 digits", 'parser:["json", {"$ref": "#/allOf/" + "9" * 5_000, "allOf": [{}]}, {}, "1"]', "error", "a place that it does not have: #/allOf/999"),
    Case("a reference of 5,000 digits that is followed late", 'parser:["json", {"$dynamicRef": "#/allOf/" + "9" * 5_000, "allOf": [{}]}, {}, "1"]', "error", "it is beyond what the schema can check"),
]  # fmt: skip
STEP = "trajectories.0.steps.0"
FILES = [
    Case("two gigabytes of NUL in a line", 'file:["episodes.jsonl", None, None]', "fault", "episodes.jsonl:2: the line has more than 35,000,000 bytes (limit: record_line)"),
    Case("ten million numbers", f'file:["episodes.jsonl", "{STEP}.prompt_ids", [7] * 10_000_000]', "fault", "episodes.jsonl:2: not an episode: the line has more than 3,000,000 values (limit: record_values)"),
    Case("wide text", 'file:["episodes.jsonl", "info", {"x": "𝄞", "y": "a" * 36_000_000}]', "fault", "limit: record_line"),
    Case("wide text after half a character", f'file:["episodes.jsonl", "{STEP}.action", "𝄞\\ud800" + "a" * 17_000_000]', "fault", "episodes.jsonl:2: not an episode"),
    Case("numbers in every place", 'file:["episodes.jsonl", "info", {"x": [1.5] * 1_000_000, "y": "𝄞" * 500_000, "z": [[]] * 100_000}]', "valid", ""),
    Case("an episode of many tokens", f'file:["episodes.jsonl", "{STEP}.logprobs", [-0.1234567890123456] * 1_600_000]', "valid", ""),
    *(
        Case(f"three lines of {what}", f'file:["episodes.jsonl", {put}, 3]', "valid", "")
        for what, put in (
            ("numbers", f'"{STEP}.prompt_ids", [150_000] * 1_700_000'),
            ("wide text", '"info", {"x": "𝄞", "y": "a" * 15_500_000}'),
            ("small mappings", '"info", {"x": [{"a": 0.5}] * 380_000}'),
        )
    ),
    *(
        Case(f"{what} in {file}", f'file:["{file}", None, {text}]', "fault", "limit: record_values")
        for file in ("run.json", "controls.json", "metrics.jsonl", "checkpoints.jsonl")
        for what, text in (
            ("lists by the million", "'{\"x\": [' + '[],' * 5_000_000 + '[]]}'"),
            ("numbers by the million", "'{\"x\": [' + '1,' * 7_000_000 + '1]}'"),
        )
    ),
]  # fmt: skip
RUNS = [
    Case("a text cut to two characters", 'run:{prompt: "{{ task.question | truncate(task.most) }}"}', "error", "prompt_error"),
    Case("a named term beyond floats", "run:{prompt: hi, reward: {sum: {big: {reward: huge, weight: 100000}}}}", "error", "reward_error"),
    Case("a term that is infinite", "run:{prompt: hi, reward: {sum: {big: {reward: infinite, weight: 0}, fine: {reward: huge}}}}", "error", "reward_error"),
    Case("a weight that floats lose", "run:{prompt: hi, reward: {sum: {big: {reward: huge, weight: 1.0e+300}}}}", "error", "reward_error"),
]  # fmt: skip
CASES = [
    *(Case(f"{kind}: {case.name}", f"{kind}:{case.source}", "error", case.says) for kind in ("argument", "demonstration") for case in BOMBS),
    *PATTERNS,
    *FILES,
    *RUNS,
    Case("a spec of 400 MB", "spec:", "fault", "limit: spec_bytes"),
]  # fmt: skip
