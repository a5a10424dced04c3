"""Prompts: Jinja2 in a sandbox, checked from the syntax tree before anything runs.

In goes a template's source and what it may mention; out comes a `Template` that renders, or the list of its
faults with their places. Expressions, `if`, `for`, `set` and a fixed list of pure filters are all that a
template has (`rolegraph.engine.prompts.sandbox`); `rolegraph.engine.prompts.checks` finds what else is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Template as JinjaTemplate
from jinja2 import TemplateSyntaxError, nodes

from rolegraph.engine.limits.prompts import PROMPT_SOURCE, PROMPT_TEXT
from rolegraph.engine.prompts.checks import TemplateFault, TemplateScope, check_tree
from rolegraph.engine.prompts.meter import PromptError
from rolegraph.engine.prompts.sandbox import ENVIRONMENT, metered
from rolegraph.engine.prompts.scope import RenderScope
from rolegraph.engine.prompts.shape import ShallowParser, check_shape

_MOST_TEXT = PROMPT_TEXT.most
_SHORT = 200
"""Characters of an error that is told in a message."""


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template. `mentions` are the roles it reads."""

    source: str
    mentions: frozenset[str]
    parts: int
    """Names, operations and tags."""
    _jinja: JinjaTemplate

    def __reduce__(self) -> tuple[Callable[..., Template], tuple[str, frozenset[str], int]]:
        return _restored, (self.source, self.mentions, self.parts)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text; raises PromptError."""
        scope: Any = RenderScope(variables)
        try:
            text = "".join(self._jinja.root_render_func(scope))  # whose parts were paid for
        except PromptError:
            raise
        except Exception as error:  # whatever a filter or a value's own code raises is the template's fault
            raise PromptError(in_short(error)) from error
        if len(text) > _MOST_TEXT:
            raise PromptError(PROMPT_TEXT.exceeded("the prompt has"))
        return text if text.isascii() else _writable(text)


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked expression that holds or does not. `mentions` are the roles it reads."""

    source: str
    mentions: frozenset[str]
    _template: Template

    @property
    def parts(self) -> int:
        """Names and operations."""
        return self._template.parts

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Whether it is true; raises PromptError where it cannot be computed."""
        return bool(self._template.render(variables))

    def __reduce__(self) -> tuple[Callable[..., Condition], tuple[str, frozenset[str], int]]:
        return _condition, (self.source, self.mentions, self.parts)


def compile_condition(source: str, around: TemplateScope) -> tuple[Condition | None, list[TemplateFault]]:
    """As `compile_template`, of an expression."""
    template, faults = _checked(source, _as_template, around, "condition")
    if template is None:
        return None, [replace(fault, hint=fault.hint or _meant(source)) for fault in faults]
    return Condition(source, template.mentions, template), []


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
    parser = ShallowParser(ENVIRONMENT, source, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("more than one expression", parser.stream.current.lineno)
    holds = nodes.If(expression, [nodes.Output([nodes.TemplateData("true")])], [], [])
    tree = nodes.Template([holds], lineno=1)
    tree.set_environment(ENVIRONMENT)
    return tree


def _condition(source: str, mentions: frozenset[str], parts: int) -> Condition:
    """A condition that was checked before it was pickled."""
    return Condition(source, mentions, Template(source, mentions, parts, _compiled(_as_template(source))))


def compile_template(source: str, around: TemplateScope) -> tuple[Template | None, list[TemplateFault]]:
    """Parse, check and compile. Faults and no template, or a template and no faults."""
    return _checked(source, ENVIRONMENT.parse, around, "template")


def template_mentions(source: str, scope: TemplateScope) -> frozenset[str]:
    """Return the names that a template reads, as `Template.mentions`; nothing where it is not valid."""
    return _mentions(source, ENVIRONMENT.parse, scope)


def condition_mentions(source: str, scope: TemplateScope) -> frozenset[str]:
    """Return the names that a condition reads, as `Condition.mentions`; nothing where it is not valid."""
    return _mentions(source, _as_template, scope)


def _mentions(source: str, parse: Callable[[str], nodes.Template], scope: TemplateScope) -> frozenset[str]:
    try:
        return check_tree(_parsed(source, parse, "template")[0], scope)[1]
    except TemplateSyntaxError:
        return frozenset()


def _parsed(source: str, parse: Callable[[str], nodes.Template], kind: str) -> tuple[nodes.Template, int]:
    """Return the syntax tree of a text and its number of nodes; raises TemplateSyntaxError."""
    if len(source) > PROMPT_SOURCE.most:
        raise TemplateSyntaxError(PROMPT_SOURCE.exceeded(f"the {kind} has"), PROMPT_SOURCE.most)
    try:
        tree = parse(source)
        return tree, check_shape(tree)
    except (RecursionError, ValueError, MemoryError) as error:  # Python's own limits
        raise TemplateSyntaxError(f"Python cannot parse it: {in_short(error)}", 0) from error


def _checked(
    source: str, parse: Callable[[str], nodes.Template], around: TemplateScope, kind: str
) -> tuple[Template | None, list[TemplateFault]]:
    try:
        tree, parts = _parsed(source, parse, kind)
        faults, mentions = check_tree(tree, around)
        return (None, faults) if faults else (Template(source, mentions, parts, _compiled(tree)), [])
    except TemplateSyntaxError as error:
        at = min(error.lineno, len(source))
        return None, [TemplateFault(at, "", f"not a valid {kind}: {error.message}")]
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:  # Python's own limits
        message = f"not a valid {kind}: Python cannot compile it: {in_short(error)}"
        return None, [TemplateFault(0, "", message)]


def in_short(error: Exception) -> str:
    """What an error says, as a line of a message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _writable(text: str) -> str:
    """A text that can be sent to a model; raises PromptError for half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt has half a character, U+{ord(text[error.start]):04X}") from error
    return text


def _compiled(tree: nodes.Template) -> JinjaTemplate:
    return ENVIRONMENT.from_string(metered(tree))


def _restored(source: str, mentions: frozenset[str], parts: int) -> Template:
    """A template that was checked before it was pickled."""
    return Template(source, mentions, parts, _compiled(ENVIRONMENT.parse(source)))
