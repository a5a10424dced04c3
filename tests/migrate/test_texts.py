"""Tests of the rewrites of texts: templates that were `{inline: …}` or `{file: …}`."""

from __future__ import annotations

from textwrap import dedent

import pytest

from rolegraph.migrate.files import migrate_yaml
from rolegraph.migrate.rewrites import REWRITES

HEAD = "rolegraph: 1\nname: x\n"


def migrated(text: str) -> str:
    changed, problems = migrate_yaml(HEAD + dedent(text), REWRITES)
    assert not problems
    assert migrate_yaml(changed, REWRITES) == (changed, [])
    return changed.replace(HEAD.replace("1", "2"), "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{inline: '{{ task.q }}'}", "'{{ task.q }}'"),
        ('{ "inline" : "a, b", }', '"a, b"'),
        ("{inline: Hi there}", "Hi there"),
        ("{inline: judge.txt}", "\"{{ 'judge.txt' }}\""),
        ("{file: judge.j2}", "judge.j2"),
        ("&p {inline: Hi there}  # kept", "&p Hi there  # kept"),
        ("judge.j2", "judge.j2"),
        ("'{{ task.q }}'", "'{{ task.q }}'"),
    ],
)
def test_a_text_stands_alone(before: str, after: str) -> None:
    for line in ("roles: {a: {prompt: TEXT, timeout: 9}}", "roles:\n  a:\n    system: TEXT\n"):
        if "#" not in before or "{a" not in line:
            assert migrated(line.replace("TEXT", before)) == line.replace("TEXT", after)


def test_a_block_keeps_its_lines_and_its_comment() -> None:
    before = """\
        roles:
          a:
            prompt:  # the question
              inline: |
                {{ task.q }}

                  indented
            # after
            system: &s
              inline: >-
                Be
                brief.
          b: {prompt: &t {inline: "{{ a.action }}"}, system: *s}
          c: {prompt: {inline: *t}}
    """
    after = """\
        roles:
          a:
            prompt: |  # the question
              {{ task.q }}

                indented
            # after
            system: &s >-
              Be
              brief.
          b: {prompt: &t "{{ a.action }}", system: *s}
          c: {prompt: *t}
    """
    assert migrated(before) == dedent(after)


def test_teachers_demonstrations_and_targets_are_texts() -> None:
    before = """\
        roles:
          a:
            signal: {reverse_kl: {teacher: {policy: main, prompt: {inline: Q and A}}}}
          b: {signal: {imitation: {demonstration: {file: b.j2}}}}
        train:
          stages: [{imitation: {a: {inline: '{{ task.q }}'}, b: {best: true}}, steps: 3}]
    """
    after = """\
        roles:
          a:
            signal: {reverse_kl: {teacher: {policy: main, prompt: Q and A}}}
          b: {signal: {imitation: {demonstration: b.j2}}}
        train:
          stages: [{imitation: {a: '{{ task.q }}', b: best}, steps: 3}]
    """
    assert migrated(before) == dedent(after)


def test_a_file_of_another_ending_is_named() -> None:
    text = f"{HEAD}roles:\n  a: {{prompt: judge.txt}}\n"
    changed, problems = migrate_yaml(text, REWRITES)
    assert changed == text.replace(": 1", ": 2")
    assert problems == [(4, "a template's file ends in .j2; rename judge.txt and write its name here")]
