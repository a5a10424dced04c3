"""Tests of the rewrites of keys and words."""

from __future__ import annotations

import pytest

from rolegraph.migrate.files import migrate_yaml, rewritten
from rolegraph.migrate.rewrites import REWRITES, bodies, names

HEAD = "rolegraph: 1\nname: x\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("roles: {a: {shows: x, calls: 4}}", "roles: {a: {sees: x, max_calls: 4}}"),
        ("roles: {a: {tool: {describe: Adds.}}}", "roles: {a: {callable: {describe: Adds.}}}"),
        (
            "roles: {a: {tool: {describe: D., arguments: {q: {describe: Q., one_of: [a]}, r: string}}}}",
            "roles: {a: {callable: {describe: D., arguments: "
            "{q: {type: string, description: Q., enum: [a]}, r: string}}}}",
        ),
        (
            "roles:\n  a:\n    tool:\n      arguments:\n        q:\n          describe: Q.  # why\n",
            "roles:\n  a:\n    callable:\n      arguments:\n        q:\n          type: string\n"
            "          description: Q.  # why\n",
        ),
        ("roles: {a: {body: {top_k: 1}, prompt: p}}", "roles: {a: {model: {body: {top_k: 1}}, prompt: p}}"),
        (
            "roles:\n  a:\n    body:\n      x:\n        y: 1  # kept\n    prompt: p\n",
            "roles:\n  a:\n    model:\n      body:\n        x:\n          y: 1  # kept\n    prompt: p\n",
        ),
        ("roles: {shows: {tools: [python]}}", "roles: {shows: {tools: [python]}}"),
        ("roles: {a: {run: {call: f, of: b}}}", "roles: {a: {run: {function: f, of: b}}}"),
        (
            "roles: {a: {needs: {b: last, last: each, c: {of: d, round: last}}}}",
            "roles: {a: {needs: {b: previous, last: each, c: {of: d, round: previous}}}}",
        ),
        ("roles: {a: {needs: [last]}}", "roles: {a: {needs: [last]}}"),
        (
            "roles: {a: {signal: {imitation: {demonstration: '{{ b.is_correct }}'}}}}",
            "roles: {a: {signal: {imitation: {demonstration: '{{ b.right }}'}}}}",
        ),
        ("data: {examples: {count: 1, shows: x}}", "data: {examples: {count: 1, sees: x}}"),
        (
            "roles: {a: {signal: {reverse_kl: {teacher: {by: task.x, of: {m: {prompt: p, shows: x}}}}}}}",
            "roles: {a: {signal: {reverse_kl: {teacher: {by: task.x, of: {m: {prompt: p, sees: x}}}}}}}",
        ),
        (
            "roles: {a: {needs: {b: {join: {chunks: 2}}, c: {join: each, chunks: 3}}}}",
            "roles: {a: {needs: {b: {chunks: 2}, c: {chunks: 3}}}}",
        ),
        (
            "roles:\n  a:\n    needs:\n      b:\n        join:\n          chunks: 2   # two\n        of: c\n",
            "roles:\n  a:\n    needs:\n      b:\n        chunks: 2   # two\n        of: c\n",
        ),
        ("roles: {a: {credit: {kind: return, discount: 0.5}}}", "roles: {a: {credit: {return: 0.5}}}"),
        (
            "roles: {a: {group: [{by: turn, credit: {kind: margin}}]}}",
            "roles: {a: {group: [{by: turn, credit: margin}]}}",
        ),
        ("roles: {a: {weight: {from: 2, to: 1, steps: 9}}}", 'roles: {a: {weight: "ramp(2, 1, 9)"}}'),
        (
            "roles:\n  a:\n    weight:\n      from: 2\n      to: 1\n      steps: 9\n      after: 3\n",
            'roles:\n  a:\n    weight: "ramp(2, 1, 9, 3)"\n',
        ),
        ("roles: {a: {memory: {chat: own}}}", "roles: {a: {memory: chat}}"),
        ("roles: {a: {memory: {chat: own, reset: b.ok}}}", "roles: {a: {memory: {reset: b.ok}}}"),
        (
            "roles:\n  a:\n    memory:\n      reset: b.ok  # anew\n      chat: own\n",
            "roles:\n  a:\n    memory:\n      reset: b.ok  # anew\n",
        ),
        ("roles: {a: {memory: {chat: both}}}", "roles: {a: {memory: {chat: both}}}"),
    ],
)
def test_words_and_short_forms_are_rewritten(before: str, after: str) -> None:
    changed, problems = migrate_yaml(HEAD + before, REWRITES)
    assert not problems
    assert changed == HEAD.replace("1", "2") + after
    assert migrate_yaml(changed, REWRITES) == (changed, [])


def test_a_body_beside_a_model_or_a_policy_is_named_with_its_line() -> None:
    text = "roles:\n  a: {model: openai:x, body: {top_k: 1}}\n  b:\n    policy: p\n    body: {top_k: 1}\n"
    assert [line for line, _ in rewritten(text, [bodies])[1]] == [2, 5]


def test_a_role_named_as_a_value_of_the_turn_is_named_with_its_line() -> None:
    text, problems = rewritten("roles:\n  a: {prompt: a.j2}\n  step: {prompt: b.j2}\n", [names])
    assert "step:" in text
    assert [line for line, _ in problems] == [3]
