"""Text of a model never runs as code in a scorer that evaluates it."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolegraph.integrations.reasoning_gym.harmless import (
    is_bits,
    is_expression,
    is_harmless,
    is_harmless_row,
    is_literal,
)

CODE = [
    "__import__('os').system('true')",
    "exec('x = 1')",
    " exec('x = 1')",
    "\texec('x = 1')",
    "[exec('x = 1')]",
    "eval(chr(49))",
    "print(1)",
    "(1).__class__",
    "[x for x in [1]]",
    "(lambda: 1)()",
    "9**9**9**9",
    "'a'*9999999999",
    "f'{1+1}'",
]


@pytest.mark.parametrize("text", CODE)
def test_code_is_no_literal(text: str) -> None:
    assert not is_literal(text)


@pytest.mark.parametrize(
    "text", ["[1, 2]", " [['a'], (1, -2.5)] ", "None", "ABC", "1 2 3", "", "(", "\0", "(" * 500]
)
def test_what_has_a_value_or_cannot_be_read_may_be_evaluated(text: str) -> None:
    assert is_literal(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="[](){}'\",.:*+- \t\nabx01_", max_size=20))
def test_what_may_be_evaluated_has_no_more_than_a_value(text: str) -> None:
    """As `eval` strips it, it is no Python, or a name, or what `literal_eval` reads."""
    if is_literal(text):
        try:
            tree = ast.parse(text.lstrip(" \t"), mode="eval")
        except (SyntaxError, ValueError):
            return
        if not isinstance(tree.body, ast.Name):
            ast.literal_eval(tree)


@pytest.mark.parametrize(
    "text",
    [
        "3*x**2/2 + C",
        "(1 + 2)*3 - 4.5/x1",
        "-sqrt(2)*exp(-x)*asin(x) + pi",
        "3*Integral(x**3*cos(3*x), x) + K",
        "5!",
        "x ^ 2, y = 3",
        "",
    ],
)
def test_mathematics_is_an_expression(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        *(text for text in CODE if text != "9**9**9**9"),
        "S('1')",
        "sympify(x)",
        "x.subs(x, 1)",
        "x. subs(x, 1)",
        "x.\nsubs",
        "x.ｓｕｂｓ",
        "ｅｘｅｃ(1)",
        "exec(open(input()).read())",
        "lambda x: x",
        "x # y",
        "lambdify(x, x)",
        "Symbol(x)",
        "open(x)",
    ],
)
def test_what_could_do_more_is_none(text: str) -> None:
    assert not is_expression(text)


def test_arithmetic_on_hexadecimal_numbers_is_told_from_code() -> None:
    assert is_bits("((0x3b24 + 0x3508) << 0x1) - ~0XFF")
    assert not is_bits("exec(0x1)")
    assert not is_bits("0x1exec(1)")
    assert not is_bits("1" * 100_000 + "!")
    assert not is_bits("[0x1]")


def test_only_what_is_evaluated_is_looked_at() -> None:
    assert is_harmless("chain_sum", CODE[0])
    assert not is_harmless("n_queens", CODE[0])
    assert not is_harmless("countdown", CODE[0])
    assert is_harmless_row("chain_sum", CODE[0], {})
    assert not is_harmless_row("number_sorting", CODE[0], {})
    assert not is_harmless_row("polynomial_multiplication", CODE[0], {})
    assert not is_harmless_row("bitwise_arithmetic", "", {"problem": CODE[0]})
    assert not is_harmless_row("simple_integration", "x", {"integrand": CODE[0]})
