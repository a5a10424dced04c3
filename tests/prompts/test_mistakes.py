"""Tests of the messages for mistakes in templates and expressions: the place, the name, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.templates import compile_template
from tests.edge import write_spec

TEMPLATES = [
    (
        "Hello\n{% if task.target %}\nMore {{ task.target }}\nand more\n",
        (6, "{% if task.target %}"),
        "`{% if %}` is not closed",
        "write {% endif %} after it",
    ),
    (
        "Hello\n{% for n in task.numbers %}\n{{ n }}\n",
        (6, "{% for n in task.numbers %}"),
        "`{% for %}` is not closed",
        "write {% endfor %} after it",
    ),
    (
        "{% for n in task.numbers %}\n{% if n %}\n{{ n }}\n{% endfor %}\n",
        (28, "{% if n %}"),
        "`{% if %}` is not closed before the `{% endfor %}` 2 lines below",
        "write {% endif %} before that",
    ),
    (
        "{% if task.target %}\n{% for n in task.numbers %}\n{{ n }}\n{% endif %}\n",
        (21, "{% for n in task.numbers %}"),
        "`{% for %}` is not closed before the `{% endif %}` 2 lines below",
        "write {% endfor %} before that",
    ),
    (
        "Hello\n{{ task.target }}\n{% endif %}\n",
        (24, "{% endif %}"),
        "`{% endif %}` has no `if`",
        "write {% if … %} before it, or delete it",
    ),
    (
        "Hello\n{% endfor %}\n",
        (6, "{% endfor %}"),
        "`{% endfor %}` has no `for`",
        "write {% for … %} before it, or delete it",
    ),
    (
        "Hello\n{% else %}\nx",
        (6, "{% else %}"),
        "`{% else %}` has no `if`",
        "write {% if … %} before it, or delete it",
    ),
    (
        "{% if task.target %}\na\n{% else if task.numbers %}\nb\n{% endif %}",
        (26, "else if"),
        "there is no tag `else if`",
        "write {% elif task.numbers %}",
    ),
    (
        "{% if task.target %}\na\n{% elseif task.numbers %}\nb\n{% endif %}",
        (26, "elseif"),
        "there is no tag `elseif`",
        "write {% elif task.numbers %}",
    ),
    ("{% if task.target %}\na\n{% end %}", (26, "end"), "there is no tag `end`", "write {% endif %}"),
    ("{% if task.target = 1 %}\na\n{% endif %}", (18, "="), "`=` is no comparison", "compare with =="),
    (
        "{% if task.target && task.numbers %}\na\n{% endif %}",
        (18, "&&"),
        "an expression has no `&&`",
        "write and, or, not",
    ),
    (
        "{% if !task.target %}\na\n{% endif %}",
        (6, "!"),
        "an expression has no `!`",
        "write and, or, not",
    ),
    ("{% if %}\na\n{% endif %}", (3, "if"), "`if` has no expression", ""),
    (
        "{% for n task.numbers %}\n{{ n }}\n{% endfor %}",
        (3, "for"),
        "`for` has no `in`",
        "write {% for n in task.numbers %}",
    ),
    (
        "{% for n of task.numbers %}\n{{ n }}\n{% endfor %}",
        (3, "for"),
        "`for` has no `in`",
        "write {% for n in task.numbers %}",
    ),
    ("Hello\n{{ task.target\nmore text\n", (6, "{{ task.target"), "`{{` is not closed", "end it with }}"),
    (
        "Hello\n{{ task.target }\nmore text {{ task.numbers }}\n",
        (21, "}"),
        "`{{` is closed by `}`",
        "write }}",
    ),
    ("Hello\n{{ task.target %}\nmore\n", (21, "%}"), "`{{` is closed by `%}`", "write }}"),
    ("{% if task.target }}\nmore\n{% endif %}\n", (18, "}}"), "`{%` is closed by `}}`", "write %}"),
    (
        "{% if task.target\nmore\n{% endif %}\n",
        (0, "{% if task.target"),
        "`{%` is not closed",
        "end it with %}",
    ),
    (
        "Hello\n{{ task.numbers | join(', ) }}\nmore\n",
        (29, "'"),
        "the quote ' that opens here is not closed",
        "close it with '",
    ),
    (
        "Hello\n{{ task['target] }}\nmore 'x'\n",
        (14, "'"),
        "the quote ' that opens here is not closed",
        "close it with '",
    ),
    (
        "Hello\n{{ task.numbers | join(', ' }}\nmore\n",
        (28, "("),
        "the bracket `(` that opens here is not closed",
        "close it with )",
    ),
    ("Hello\n{{ task.numbers | join(', ')) }}\nmore\n", (34, ")"), "the bracket `)` closes nothing", ""),
    (
        "Hello\n{{ task['target' }}\nmore\n",
        (13, "["),
        "the bracket `[` that opens here is not closed",
        "close it with ]",
    ),
    ("Hello\n{{ task.numbers | }}\n", (24, "}"), "a name is missing", ""),
    (
        "Hello\n{{ task.target task.numbers }}\n",
        (21, "task"),
        "`task` follows a value without a sign between",
        "",
    ),
    ("Hello\n{{ task.target + }}\n", (23, "}"), "a value is missing", ""),
    ("Hello\n{{ }}\n", (9, "}"), "a value is missing", ""),
    (
        "Hello\n{# note\n{{ task.target }}\n",
        (6, "{#"),
        "`{#` is not closed",
        "end it with #}",
    ),
    (
        "Hello\n{% raw %}\n{{ x }}\n",
        (6, "{% raw %}"),
        "`{% raw %}` is not closed",
        "end it with {% endraw %}",
    ),
    (
        "Hello\n{{ if task.target }}a{{ endif }}\n",
        (9, "if"),
        "`if` stands in {{ }}, which writes a value",
        "write {% if task.target %}",
    ),
    (
        "Hello\n{% task.target %}\n",
        (9, "task.target"),
        "`{% %}` holds a tag such as `if`; a value stands in `{{ }}`",
        "write {{ task.target }}",
    ),
    ("Hello\n{% iff task.target %}a{% endif %}\n", (9, "iff"), "there is no tag `iff`", "did you mean 'if'?"),
    (
        "Hello\n{% set x task.target %}\n{{ x }}",
        (9, "set"),
        "`set` has no `=`",
        "write {% set x = task.target %}",
    ),
    ("Hello\n{{{ task.target }}}\n", (8, "{"), "one brace too many", "write {{ and }}"),
    ("Hello\n{{ task. }}\n", (15, "}"), "a field is missing after the dot", ""),
    (
        "Hello\n{{ task.target ? 'a' : 'b' }}\n",
        (21, "?"),
        "an expression has no `?`",
        "write: a if condition else b",
    ),
    (
        "Hello\n{{ task.numbers | join(“, ”) }}\n",
        (29, "“"),
        "an expression has no `“`",
        "write straight quotes: ' or \"",
    ),
    ("Hello\n{{ $target }}\n", (9, "$"), "an expression has no `$`", "write the name alone"),
    ("Hello\n{{ task.target++ }}", (20, "++"), "an expression has no `++`", "write + 1"),
    ("Hello\n{{ task.target; }}", (20, ";"), "an expression has no `;`", "end the expression without it"),
    (
        "{% import 'x' %}",
        (14, "%"),
        "`import` cannot be used in a prompt",
        "use expressions, if, for and set",
    ),
    (
        "{% for n in task.numbers %}{% continue %}{% endfor %}",
        (30, "continue"),
        "there is no tag `continue`",
        "there is if, for, set and raw",
    ),
]
"""For each template (position, text) of the carets, message and hint."""
EXPRESSIONS = [
    ("self.index = 0", (11, "="), "`=` is no comparison", "compare with =="),
    ("self.index == 0 && self.count > 1", (16, "&&"), "an expression has no `&&`", "write and, or, not"),
    ("!self.index", (0, "!"), "an expression has no `!`", "write and, or, not"),
    ("solver[0].action == 'yes", (20, "'"), "the quote ' that opens here is not closed", "close it with '"),
    ("(self.index == 0", (0, "("), "the bracket `(` that opens here is not closed", "close it with )"),
    ("self.index == 0)", (15, ")"), "the bracket `)` closes nothing", ""),
    ("solver[0.action == 1", (6, "["), "the bracket `[` that opens here is not closed", "close it with ]"),
    (
        "{{ self.index == 0 }}",
        (0, "{{"),
        "an expression stands without braces",
        "write the expression alone, without braces",
    ),
    (
        "if self.index == 0",
        (0, "if"),
        "an expression does not begin with `if`",
        "write the expression alone, without if",
    ),
    ("self.index self.count", (11, "self"), "`self` follows a value without a sign between", ""),
    ("self.index ==", (11, "=="), "a value is missing", ""),
    ("== 0", (0, "=="), "`==` cannot stand here", ""),
    ("self.index === 0", (11, "==="), "an expression has no `===`", "compare with =="),
    ("self.index <> 0", (11, "<>"), "an expression has no `<>`", "compare with !="),
    (
        "solver[0].action == “yes”",
        (20, "“"),
        "an expression has no `“`",
        "write straight quotes: ' or \"",
    ),
    ("self.index == 0 ? true : false", (16, "?"), "an expression has no `?`", "write: a if condition else b"),
    ("self.index not 1", (11, "not"), "`not` follows a value without a sign between", ""),
    ("self.index is not", (14, "not"), "a name is missing", ""),
    ("self.index == 0, self.count == 1", (15, ","), "`,` cannot stand here", ""),
    ("lambda x: x", (7, "x"), "`x` follows a value without a sign between", ""),
    ("[s for s in solver]", (3, "for"), "`for` cannot stand here", ""),
    ("self.index == 0;", (15, ";"), "an expression has no `;`", "end the expression without it"),
    ("self.index =< 1", (11, "=<"), "an expression has no `=<`", "compare with <="),
    ("", (0, ""), "a value is missing", ""),
    ("self.index ^ 2", (11, "^"), "an expression has no `^`", "multiply: x * x"),
]


@pytest.mark.parametrize(("source", "place", "message", "hint"), TEMPLATES)
def test_a_mistake_in_a_template_is_shown_where_it_is(
    source: str, place: tuple[int, str], message: str, hint: str
) -> None:
    (fault,) = compile_template(source, TemplateScope({}))[1]
    assert (fault.position, fault.word) == place
    assert source[fault.position :].startswith(fault.word)
    assert (fault.message, fault.hint) == (f"not a valid template: {message}", hint)


@pytest.mark.parametrize(("source", "place", "message", "hint"), EXPRESSIONS)
def test_a_mistake_in_an_expression_is_shown_where_it_is(
    source: str, place: tuple[int, str], message: str, hint: str
) -> None:
    (fault,) = compile_template(source, TemplateScope({"solver": 2}, is_condition=True))[1]
    assert (fault.position, fault.word) == place
    assert source[fault.position :].startswith(fault.word)
    assert (fault.message, fault.hint) == (f"not a valid condition: {message}", hint)


SPEC = "rolegraph: 2\nname: x\nroles:\n  solver:\n    count: 1\n    prompt: "
SOURCE = "Say\n{% if self.index %}\none\n"


def test_an_open_tag_is_shown_in_its_file_and_in_the_spec_that_holds_the_text(tmp_path: Path) -> None:
    (tmp_path / "mine.j2").write_text(SOURCE)
    block = "".join(f"        {line}\n" for line in SOURCE.splitlines())
    places = [("mine.j2", 2, 1), ("spec.yaml", 8, 9)]
    for prompt, place in zip(("mine.j2\n", f"|\n{block}"), places, strict=True):
        (fault,) = check_file(write_spec(tmp_path, SPEC + prompt)).diagnostics
        assert (Path(fault.place.file).name, fault.place.line, fault.place.column) == place
        assert fault.place.width == len("{% if self.index %}")
        assert fault.message == "not a valid template: `{% if %}` is not closed"
