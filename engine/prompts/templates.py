"""Prompts: Jinja2 in a sandbox, checked from the syntax tree before anything runs.

In goes a template's source and what it may mention; out comes a `Template` that renders, or the list of its
faults with their places. Expressions, `if`, `for`, `set` and a fixed list of pure filters are all that a
template has (`engine.prompts.sandbox`); `engine.prompts.checks` finds what else is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Template as JinjaTemplate
from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser

from engine.prompts.checks import Fault, Surroundings, check_tree
from engine.prompts.sandbox import ENVIRONMENT, MAX_TEXT, PromptError, Scope, metered

MAX_SOURCE = 64_000
"""Characters of a template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template. `mentions` are the roles it reads."""

    source: str
    mentions: frozenset[str]
    _jinja: JinjaTemplate

    def __reduce__(self) -> tuple[Callable[..., Template], tuple[str, frozenset[str]]]:
        return _restored, (self.source, self.mentions)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text; raises PromptError."""
        scope = cast("Any", Scope(variables))
        parts: list[str] = []
        size = 0
        try:
            for part in self._jinja.root_render_func(scope):
                size += len(part)
                if size > MAX_TEXT:
                    raise PromptError(f"the prompt grew past {MAX_TEXT:,} characters")
                parts.append(part)
        except PromptError:
            raise
        except Exception as error:  # whatever a filter or a value's own code raises is the template's fault
            raise PromptError(str(error) or type(error).__name__) from error
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked expression that holds or does not. `mentions` are the roles it reads."""

    source: str
    mentions: frozenset[str]
    _template: Template

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Whether it is true; raises PromptError where it cannot be computed."""
        return bool(self._template.render(variables))

    def __reduce__(self) -> tuple[Callable[..., Condition], tuple[str, frozenset[str]]]:
        return _condition, (self.source, self.mentions)


def compile_condition(source: str, around: Surroundings) -> tuple[Condition | None, list[Fault]]:
    """As `compile_template`, of an expression."""
    try:
        tree = _as_template(source)
    except TemplateSyntaxError as error:
        return None, [Fault(error.lineno, "", f"not a valid condition: {error.message}", _meant(source))]
    except (RecursionError, ValueError) as error:
        return None, [Fault(0, "", f"not a valid condition: {error}")]
    faults, mentions = check_tree(tree, around)
    if faults:
        return None, faults
    return Condition(source, mentions, Template(source, mentions, _compiled(tree))), []


_SLIPS = (
    (re.compile(r"\{[{%]"), "write the expression alone, without braces"),
    (re.compile(r"(?<![=!<>])=(?!=)"), "compare with =="),
    (re.compile(r"&&|\|\||!(?!=)"), "write and, or, not"),
    (re.compile(r"^\s*if\b"), "write the expression alone, without if"),
)
"""What people write who come from elsewhere, and what is written here."""


def _meant(source: str) -> str:
    outside_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", source)
    return next((hint for slip, hint in _SLIPS if slip.search(outside_quotes)), "")


def _as_template(source: str) -> nodes.Template:
    """The tree of a template that writes something where an expression holds, and else nothing."""
    parser = Parser(ENVIRONMENT, source, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("more than one expression", parser.stream.current.lineno)
    holds = nodes.If(expression, [nodes.Output([nodes.TemplateData("true")])], [], [])
    tree = nodes.Template([holds], lineno=1)
    tree.set_environment(ENVIRONMENT)
    return tree


def _condition(source: str, mentions: frozenset[str]) -> Condition:
    """A condition that was checked before it was pickled."""
    return Condition(source, mentions, Template(source, mentions, _compiled(_as_template(source))))


def compile_template(source: str, around: Surroundings) -> tuple[Template | None, list[Fault]]:
    """Parse, check and compile. Faults and no template, or a template and no faults."""
    if len(source) > MAX_SOURCE:
        return None, [
            Fault(0, "", f"the template has {len(source):,} characters; at most {MAX_SOURCE:,} are allowed")
        ]
    try:
        tree = ENVIRONMENT.parse(source)
        faults, mentions = check_tree(tree, around)
        return (None, faults) if faults else (Template(source, mentions, _compiled(tree)), [])
    except TemplateSyntaxError as error:
        return None, [Fault(error.lineno, "", f"not a valid template: {error.message}")]
    except (RecursionError, SyntaxError):  # Python's own limits on what is inside what
        return None, [Fault(0, "", "the template is nested too deeply")]
    except ValueError as error:  # a number of too many digits
        return None, [Fault(0, "", f"not a valid template: {error}")]


def _compiled(tree: nodes.Template) -> JinjaTemplate:
    return ENVIRONMENT.from_string(metered(tree))


def _restored(source: str, mentions: frozenset[str]) -> Template:
    """A template that was checked before it was pickled."""
    return Template(source, mentions, _compiled(ENVIRONMENT.parse(source)))
