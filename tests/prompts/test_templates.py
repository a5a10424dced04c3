"""Tests that prompts are checked before the run, and render in bounded time and memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.scope import PromptError
from rolegraph.engine.prompts.templates import Template, compile_template
from rolegraph.engine.vocabulary import View, Views

AROUND = TemplateScope(
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
    ("source", "mentions"),
    [
        ("{{ self.index }}", {"self", "self.index"}),
        ("{{ self['index'] }}", {"self", "self.index"}),
        ("{{ [self] | map(attribute='history') | join }}", {"self", "self.index", "self.history"}),
        ("{% set me = self %}{{ me.index }}", {"self", "self.index", "self.history"}),
        ("{{ self['hist' ~ 'ory'] }}", {"self", "self.index", "self.history"}),
    ],
)
def test_self_as_a_whole_counts_as_each_of_its_fields(source: str, mentions: set[str]) -> None:
    around = TemplateScope({}, self_fields=("index", "history"))
    template, faults = compile_template(source, around)
    assert template is not None, faults
    assert template.mentions == mentions


@pytest.mark.parametrize(
    ("source", "word", "message"),
    [
        ("{{ task.answer }}", "answer", "would leak the label"),
        ("{{ task['answer'] }}", "answer", "would leak the label"),
        ("{% set t = task %}{{ t.answer }}", "task", "reads the task as a whole"),
        ("{{ task[task.question] }}", "task", "reads the task as a whole"),
        ("{{ task[0] }}", "task", "reads the task as a whole"),
        ("{{ task | tojson }}", "task", "reads the task as a whole"),
        ("{% for field in task %}{{ field }}{% endfor %}", "task", "reads the task as a whole"),
        ("{{ 'answer' in task }}", "task", "reads the task as a whole"),
        ("{{ [task] | map(attribute='answer') | join }}", "task", "reads the task as a whole"),
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


def test_all_faults_come_at_once_with_their_places() -> None:
    faults = compile_template("{{ task.answer }}\n{{ nobody }}\n{{ judge }}", AROUND)[1]
    assert [fault.position for fault in faults] == [7, 21, 34]


@pytest.mark.parametrize(
    ("source", "pointed_at"),
    [
        ("answer: {{ editor.action.answer }} {{ task.answer }}", "answer }}"),
        ("answer {# task.answer #} {{- task['answer'] }}", "answer'] }}"),
        ("{% raw %}{{ task.answer }}{% endraw %}\n  {% if task.answer %}{% endif %}", "answer %}{% endif %}"),
        ("a 'judge' {% if true %}\n   {%- set x = judge %}\n{% endif %}", "judge %}\n{% endif %}"),
        ("upper {{ task.question.upper() }} {{ task.question }}", "upper() }} {{ task.question }}"),
        ("reward {{ solver | map(attribute='reward') | join }}", "reward') | join }}"),
        ("xmlattr {{ task.question | xmlattr }}", "xmlattr }}"),
        ("macro {% macro f() %}{% endmacro %}", "macro f() %}{% endmacro %}"),
    ],
)
def test_a_fault_stands_at_its_own_expression_and_not_at_the_same_word_before(
    source: str, pointed_at: str
) -> None:
    fault = compile_template(source, AROUND)[1][0]
    assert source[source.find(fault.word, fault.position) :] == pointed_at


@pytest.mark.parametrize(
    ("source", "behind"),
    [
        ("fine\n{{ 1 + }}", "}}"),
        ("fine\n{% if true %}\nmore", "{% if true %}\nmore"),
        ("fine\n{{ 'a }}", "'a }}"),
        ("fine\n{{ 1 is prime }}", "is prime }}"),
        ("fi\x0cne\u2028 too\n{{ 'a }}", "'a }}"),
    ],
)
def test_a_syntax_error_says_where_it_is(source: str, behind: str) -> None:
    (fault,) = compile_template(source, AROUND)[1]
    assert (source[fault.position :], fault.message.partition(":")[0]) == (behind, "not a valid template")


@pytest.mark.parametrize(
    "source",
    ["{{ " + "9" * 5000 + " }}", "{% if true %}" * 120 + "x" + "{% endif %}" * 120, "{{ " + "(" * 3000],
)
def test_what_python_itself_would_refuse_is_a_fault(source: str) -> None:
    template, faults = compile_template(source, AROUND)
    assert (template is None) == bool(faults)


def test_range_counts_wherever_it_stands() -> None:
    assert compiled("{% for i in range(3) %}{{ i }}{% endfor %}").render(VARIABLES) == "012"
    inner = "{% for s in solver %}{% for i in range(s.index) %}{{ i }}{% endfor %};{% endfor %}"
    assert compiled(inner).render(VARIABLES) == "0;01;"
    assert compiled("{% for s in solver %}{{ range(3) | sum }}{% endfor %}").render(VARIABLES) == "33"


def test_what_a_call_is_given_is_looked_at_however_it_is_given() -> None:
    for source in (
        "{{ range(*task.answer) }}",
        "{{ range(**task.answer) }}",
        "{{ 1 | round(*task.answer) }}",
    ):
        (fault,) = compile_template(source, AROUND)[1]
        assert "would leak the label" in fault.message


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
        "{% for i in range(9) %}{{ range(10000 * 10000 * 10000) | sum }}{% endfor %}",
        "{% for i in range(9) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set a = 'a' * 9999 %}{{ a | replace('a', a, -1) | length }}",
        "{% set a = 'a' * 9999 %}{{ a | replace('a', a, 9999) | length }}",
    ],
)
def test_a_template_that_tries_to_use_everything_up_is_stopped(source: str) -> None:
    template, _ = compile_template(source, TemplateScope({}))
    assert template is not None
    with pytest.raises(PromptError):
        template.render(VARIABLES)


def test_a_missing_value_is_an_error_and_not_an_empty_text() -> None:
    with pytest.raises(PromptError, match="subtitle"):
        compiled("{{ editor.action.subtitle }}").render(VARIABLES)


@pytest.mark.parametrize(
    "source", ["[solver[0]]", "{'a': editor}", "'%s' | format(editor)", "[editor] | tojson"]
)
def test_an_instance_of_a_role_is_no_text_wherever_it_stands(source: str) -> None:
    with pytest.raises(PromptError, match=r"an instance of a role is not text; write \.action behind it"):
        compiled("{{ " + source + " }}").render(VARIABLES)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ("", '{"text": "if a < b && c > d: \'é\' 漢"}'),
        ("indent=1", '{\n "text": "if a < b && c > d: \'é\' 漢"\n}'),
        ("ensure_ascii=true", '{"text": "if a < b && c > d: \'\\u00e9\' \\u6f22"}'),
        ("separators=(',', ':'), sort_keys=true", '{"text":"if a < b && c > d: \'é\' 漢"}'),
    ],
)
def test_json_in_a_prompt_is_as_chat_templates_write_it(options: str, written: str) -> None:
    template = compiled("{{ {'text': 'if a < b && c > d: \\'é\\' 漢'} | tojson(" + options + ") }}")
    assert template.render(VARIABLES) == written


def test_separators_of_json_are_paid_for() -> None:
    with pytest.raises(PromptError, match="limit: prompt_"):
        compiled("{{ range(1000) | list | tojson(separators=('a' * 900, ':')) | length }}").render(VARIABLES)


@pytest.mark.parametrize(
    ("expression", "word", "message"),
    [
        ("1 | tojson(allow_nan=1)", "tojson", "unexpected keyword argument 'allow_nan'"),
        ("'a' | replace('a')", "replace", "missing a required argument: 'new'"),
        ("'a' | upper(1)", "upper", "too many positional arguments"),
        ("[1] | sort(key=1)", "sort", "unexpected keyword argument 'key'"),
        ("[1] | first(2)", "first", "too many positional arguments"),
        ("{} | dictsort(1, 2, 3, 4)", "dictsort", "too many positional arguments"),
        ("['a'] | map('replace', 'a') | list", "replace", "missing a required argument: 'new'"),
        ("['a'] | map('uper') | list", "uper", "no filter 'uper'"),
        ("3 is divisibleby", "divisibleby", "missing a required argument: 'num'"),
        ("3 is odd(1)", "odd", "too many positional arguments"),
    ],
)
def test_arguments_that_a_filter_or_test_cannot_take_are_a_fault(
    expression: str, word: str, message: str
) -> None:
    _, (fault,) = compile_template("{{ " + expression + " }}", AROUND)
    assert (fault.word, message in fault.message) == (word, True)


def test_instances_are_counted_compared_and_grouped_without_being_written() -> None:
    source = "{% for said, those in solver | groupby('action') %}{{ said }} {{ those | length }} {% endfor %}"
    assert compiled(source + "{{ solver[0] == solver[1] }}").render(VARIABLES) == "five 1 four 1 False"


def test_join_reads_a_field_as_a_dot_does() -> None:
    assert compiled("{{ solver | join(', ', attribute='action') }}").render(VARIABLES) == "four, five"
    nested = compiled("{{ [editor.action] | join(attribute='title') }}")
    assert nested.render(VARIABLES) == "Sums"
    for hidden in ("_asdict", "__class__"):
        for items in ("solver", "[task.question]"):
            source = "{{ " + items + " | join(attribute='" + hidden[:2] + "' ~ '" + hidden[2:] + "') }}"
            with pytest.raises(PromptError, match=r"unsafe|no attribute|undefined"):
                compiled(source).render(VARIABLES)


class Fragile:
    """Value whose conversion to text fails."""

    def __str__(self) -> str:
        raise NameError("nobody knows it")


def test_whatever_a_template_or_a_value_raises_is_an_error_of_this_rendering() -> None:
    with pytest.raises(PromptError, match="nobody knows it"):
        compiled("{{ editor.action }}").render({**VARIABLES, "editor": View(1, Fragile())})
    two = {**VARIABLES, "editor": Views(VARIABLES["solver"])}
    with pytest.raises(PromptError, match="2 instances have no 'action' of their own"):
        compiled("{{ editor.action }}").render(two)
    with pytest.raises(PromptError):
        compiled("{{ task.question | round }}").render(VARIABLES)


@settings(max_examples=300)
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
