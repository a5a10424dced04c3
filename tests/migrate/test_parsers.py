"""Tests of the rewrites of parsers: a place, what the text there is, and the last match everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.migrate.files import migrate_yaml
from rolegraph.migrate.rewrites import NOTES, REWRITES
from tests.cli.conftest import Command, rolegraph
from tests.edge import write_spec

__all__ = ["rolegraph"]
HEAD = "rolegraph: 1\nname: x\nroles:\n  a:\n    prompt: a.j2\n"


def migrated(text: str) -> str:
    changed, problems = migrate_yaml(HEAD + text, REWRITES)
    assert not problems
    assert migrate_yaml(changed, REWRITES) == (changed, [])
    return changed.replace(HEAD.replace("1", "2", 1), "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("code", "{fence: any}"),
        ("{code: {which: last, default: x}}", "{fence: any, default: x}"),
        ("{code: , which: last}  # kept", "{fence: any}  # kept"),
        ("{number: {which: last}}", "number"),
        ("{number: {which: last}, default: 3}", "{number: {}, default: 3}"),
        ("{number: {fractions: true, which: last}}", "{number: {fractions: true}}"),
        ("{number: {which: last, fractions: true}}", "{number: {fractions: true}}"),
        ("{number: {tag: score}}", "{tag: score, as: number}"),
        (
            "{number: {tag: score, fractions: true, default: 0}}",
            "{tag: score, as: {number: {fractions: true}}, default: 0}",
        ),
        (
            "{tag: v, one_of: [a, b], which: last, default: n}  # kept",
            "{tag: v, as: [a, b], default: n}  # kept",
        ),
        ("{tag: v, keep_tag: true, default: none}", "{tag: v, keep_tag: true, default: none}"),
        ("{regex: '(\\d+)', which: last}", "{regex: '(\\d+)'}"),
        ("{one_of: [a, b]}", "{one_of: [a, b]}"),
        ("json", "json"),
        ("{json: {schema: {type: object}}}", "{json: {type: object}}"),
        ("{json: {schema: {type: object}, default: {}}}", "{json: {type: object}, default: {}}"),
        ("{json: {default: 3}}", "{json: {}, default: 3}"),
        ("&p {json: {schema: {items: {}}, default: []}}", "&p {json: {items: {}}, default: []}"),
    ],
)
def test_a_parser_on_one_line(before: str, after: str) -> None:
    assert migrated(f"    parser: {before}\n    reward: math\n") == f"    parser: {after}\n    reward: math\n"


def test_a_parser_on_several_lines_keeps_its_comments() -> None:
    before = """\
    parser:
      tag: verdict  # the tag
      which: last
      one_of: [a, b]  # the words
    reward: math
  b:
    parser:
      json:  # a plan
        default: {steps: []}
        schema:
          type: object
          # all of them
          required: [steps]
    reward: math
  c:
    parser:
      json:
        schema: {type: object}
"""
    assert (
        migrated(before)
        == """\
    parser:
      tag: verdict  # the tag
      as: [a, b]  # the words
    reward: math
  b:
    parser:
      json:  # a plan
        type: object
        # all of them
        required: [steps]
      default: {steps: []}
    reward: math
  c:
    parser:
      json: {type: object}
episode: {correct: b.right}
"""
    )


def test_anchors_and_aliases_stay() -> None:
    before = (
        "    parser: {tag: &t answer, one_of: &w [a]}\n  b: {prompt: b.j2, parser: {tag: *t, one_of: *w}}\n"
    )
    before += "  c: {prompt: c.j2, parser: {number: {tag: *t}}}\n"
    after = "    parser: {tag: &t answer, as: &w [a]}\n  b: {prompt: b.j2, parser: {tag: *t, as: *w}}\n"
    assert migrated(before) == after + "  c: {prompt: c.j2, parser: {tag: *t, as: number}}\n"


@pytest.mark.parametrize(
    "parser", ["{tag: a, which: first}", "{number: {which: first}}", "{code: {which: first}}"]
)
def test_the_first_match_is_named_and_not_rewritten(parser: str) -> None:
    changed, ((line, message),) = migrate_yaml(f"{HEAD}    parser: {parser}\n", REWRITES)
    assert (line, message.partition(",")[0]) == (6, "`which` is gone")
    assert changed.endswith(f"parser: {parser}\n")


def test_a_parser_that_took_the_first_match_has_a_note(rolegraph: Command, tmp_path: Path) -> None:
    write_spec(tmp_path, f"{HEAD}    parser: {{tag: answer}}\n  b: {{prompt: b.j2, parser: number}}\n")
    done = rolegraph("migrate", "spec.yaml")
    assert (done.returncode, done.stdout) == (0, "spec.yaml\n")
    assert (
        done.stderr == "spec.yaml:6: note: of several matches `tag` takes the last now, and took the first\n"
    )
    text = f"{HEAD}    parser: {{regex: x, which: last}}\n"
    assert migrate_yaml(text, NOTES) == (text, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "x-p: &p {tag: v, one_of: [a]}\nroles: {a: {prompt: a.j2, parser: {<<: *p, which: last}}}\n",
            "x-p: &p {tag: v, as: [a]}\nroles: {a: {prompt: a.j2, parser: {<<: *p}}}\n",
        ),
        (
            "x-p: &p\n  tag: v\n  which: last\nroles: {a: {prompt: a.j2, parser: {<<: *p, default: c}}}\n",
            "x-p: &p\n  tag: v\nroles: {a: {prompt: a.j2, parser: {<<: *p, default: c}}}\n",
        ),
        (
            "x-w: &w last\nroles: {a: {prompt: a.j2, parser: {tag: a, which: *w, default: c}}}\n",
            "x-w: &w last\nroles: {a: {prompt: a.j2, parser: {tag: a, default: c}}}\n",
        ),
        (
            "roles: {a: {prompt: a.j2, callable: {arguments: {parser: {type: string, one_of: [a]}}}}}\n",
            "roles: {a: {prompt: a.j2, callable: {arguments: {parser: {type: string, one_of: [a]}}}}}\n",
        ),
    ],
)
def test_merges_and_aliases_are_rewritten_where_they_stand(before: str, after: str) -> None:
    head = "rolegraph: 1\nname: x\n"
    assert migrate_yaml(head + before, REWRITES) == (head.replace("1", "2") + after, [])
