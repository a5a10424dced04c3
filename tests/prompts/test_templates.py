"""Prompts are checked before anything runs, and render in bounded time and memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prompts.checks import Surroundings
from engine.prompts.sandbox import PromptError
from engine.prompts.templates import Template, compile_template
from engine.vocabulary import View

AROUND = Surroundings(
    needs={"solver": 2, "editor": 1},
    roles=("solver", "editor", "judge"),
    columns=("id", "question", "answer"),
    hidden=frozenset({"answer"}),
)
VARIABLES = {
    "task": {"id": "1", "question": "What is 2 + 2?"},
    "solver": (View(1, "four", "I say four"), View(2, "five", "I say five", "hm")),
    "editor": View(1, {"title": "Sums"}),
}


def compiled(source: str) -> Template:
    template, faults = compile_template(source, AROUND)
    assert template is not None, faults
    return template


def test_one_instance_is_seen_as_itself_and_several_as_a_list() -> None:
    loop = "{% for s in solver %}{{ s.index }}={{ s.action }}{{ s.thought }};{% endfor %}"
    assert compiled("{{ editor.action.title }}: " + loop).render(VARIABLES) == "Sums: 1=four;2=fivehm;"


def test_the_roles_that_a_template_reads_are_known() -> None:
    assert compiled("{{ solver[0].action }}").mentions == {"solver"}


@pytest.mark.parametrize(
    ("source", "word", "message"),
    [
        ("{{ task.answer }}", "answer", "would leak the label"),
        ("{{ task['answer'] }}", "answer", "would leak the label"),
        ("{% set t = task %}{{ t.answer }}", "answer", "would leak the label"),
        ("{{ editor.reward }}", "reward", "would leak the label"),
        ("{{ solver[1].is_correct }}", "is_correct", "would leak the label"),
        ("{% for s in solver %}{{ s.reward }}{% endfor %}", "reward", "would leak the label"),
        ("{% for s in solver | reverse %}{{ s.reward }}{% endfor %}", "reward", "would leak the label"),
        ("{{ (solver | first).reward }}", "reward", "would leak the label"),
        ("{{ solver | map(attribute='reward') | join }}", "reward", "would leak the label"),
        ("{{ solver | sort(attribute='reward') | length }}", "reward", "would leak the label"),
        ("{{ solver | selectattr('reward') | list | length }}", "reward", "would leak the label"),
        ("{% with s = solver[0] %}{{ s.reward }}{% endwith %}", "reward", "would leak the label"),
        ("{{ judge.action }}", "judge", "which the role does not need"),
        ("{{ solver.action }}", "action", "this is a list"),
        ("{{ solver[0].acton }}", "acton", "a role has no 'acton'"),
        ("{{ task.qestion }}", "qestion", "no field 'qestion'"),
        ("{{ question }}", "question", "does not exist here"),
        ("{{ ''.__class__ }}", "__class__", "cannot be read"),
        ("{{ task.question.upper() }}", "upper", "cannot be called"),
        ("{{ cycler(1) }}", "cycler", "cannot be called"),
        ("{{ task.question | xmlattr }}", "xmlattr", "no filter"),
        ("{% macro f() %}{% endmacro %}", "macro", "cannot be used"),
        ("{% include 'judge.j2' %}", "include", "cannot be used"),
        ("{% set solver = 1 %}", "solver", "the name is taken"),
        ("{% set _meter = 1 %}", "_meter", "the name is taken"),
        ("{% for x in solver recursive %}{% endfor %}", "recursive", "cannot be used"),
    ],
)
def test_a_fault_is_found_in_the_template_itself(source: str, word: str, message: str) -> None:
    template, faults = compile_template(source, AROUND)
    assert template is None
    assert word in [fault.word for fault in faults]
    assert message in " ".join(fault.message for fault in faults)


def test_all_faults_come_at_once_with_their_lines() -> None:
    faults = compile_template("{{ task.answer }}\n{{ nobody }}\n{{ judge }}", AROUND)[1]
    assert [fault.line for fault in faults] == [1, 2, 3]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '%*d' | format(999999999, 1) }}",
        "{% set a = 'a' * 9999 %}" + "{% set a = a ~ a ~ a ~ a %}" * 20 + "{{ a }}",
        "{% set a = 'a' * 9999 %}" + "{% set a = a + a + a + a %}" * 20 + "{{ a }}",
        "{% set a = 'a' * 9999 %}" + "{% set a = a | replace('a', a) %}" * 9 + "{{ a }}",
        "{% set a = 'a' * 9999 %}" + "{% set a = [a, a, a, a] | join(a) %}" * 9 + "{{ a }}",
        "{% set n = 9999999999 %}" + "{% set n = n * n %}" * 40 + "{{ n }}",
        "{% for i in range(99999) %}{{ task.question * 999 }}{% endfor %}",
        "{{ range(10000 * 10000 * 10000) | sum }}",
    ],
)
def test_a_template_that_tries_to_use_everything_up_is_stopped(source: str) -> None:
    template, _ = compile_template(source, Surroundings({}))
    assert template is not None
    with pytest.raises(PromptError):
        template.render(VARIABLES)


def test_a_missing_value_is_an_error_and_not_an_empty_text() -> None:
    with pytest.raises(PromptError, match="subtitle"):
        compiled("{{ editor.action.subtitle }}").render(VARIABLES)


@settings(max_examples=300, deadline=2000)
@given(
    st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "{%",
                "%}",
                "task",
                ".question",
                "solver",
                "[0]",
                ".action",
                ".reward",
                "for x in ",
                "endfor",
                "if ",
                "endif",
                "x",
                "|",
                "join",
                "(",
                ")",
                "'",
                "~",
                "set ",
                "=",
                " ",
                "1",
                "range",
                "loop",
                ".__class__",
                "{#",
                "#}",
            ]
        ),
        max_size=14,
    ).map("".join)
)
def test_any_text_compiles_or_gives_faults_and_never_shows_a_secret(source: str) -> None:
    template, faults = compile_template(source, AROUND)
    assert (template is None) == bool(faults)
    if template is not None:
        with contextlib.suppress(PromptError):
            template.render(VARIABLES)
