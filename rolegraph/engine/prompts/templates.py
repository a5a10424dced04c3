"""Templates: lookup, checks of the syntax tree, and rendering by Jinja2 in a sandbox.

The source of a template and the names it may use go in; a `Template` that renders comes out, or a list of
faults with their places. Templates have expressions, `if`, `for`, `set` and a fixed list of pure filters
(`rolegraph.engine.prompts.sandbox`); `rolegraph.engine.prompts.checks` refuses everything else.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from jinja2 import Template as JinjaTemplate
from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from rolegraph.engine.errors import Suggestion, did_you_mean
from rolegraph.engine.limits.prompts import PROMPT_SOURCE, PROMPT_TEXT
from rolegraph.engine.limits.specs import SPEC_BYTES
from rolegraph.engine.prompts.checks import TemplateFault, TemplateScope, check_tree
from rolegraph.engine.prompts.evaluate import Evaluate, Roles, compiled, scorers_in
from rolegraph.engine.prompts.filters import FILTERS
from rolegraph.engine.prompts.mistakes import explain
from rolegraph.engine.prompts.sandbox import ENVIRONMENT, check_shape, metered, too_deep
from rolegraph.engine.prompts.scope import PromptError, RenderScope
from rolegraph.engine.records import Message
from rolegraph.engine.records.files import is_file, is_no_file, is_same
from rolegraph.engine.shipped import PROMPTS
from rolegraph.engine.spec import Finding, Path, names_file
from rolegraph.engine.spec.diagnostics import Place, point_at
from rolegraph.engine.spec.files import names_in, shown_path
from rolegraph.engine.spec.files import read_text as read_text_of
from rolegraph.engine.vocabulary import EXAMPLES, UNKNOWN, Unknown

_SHORT = 200
"""Number of characters of an exception's text that a message quotes."""


@dataclass(frozen=True, slots=True)
class Template:
    """Compiled template, whose syntax and names have been checked."""

    source: str
    """Source text of the template."""
    mentions: frozenset[str]
    """Names that the template reads: of roles, `task`, `self`, and each `task.FIELD` and `self.FIELD`."""
    parts: int
    """Number of nodes of the syntax tree."""
    _jinja: JinjaTemplate
    file: str = ""
    """Name of the template's file for messages, such as `judge.j2 (shipped)`; empty for a text in the spec.
    """

    def __reduce__(self) -> tuple[Callable[..., Template], tuple[str, frozenset[str], int]]:
        return _restored, (self.source, self.mentions, self.parts)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the rendered text.

        Raises:
            PromptError: The template fails, passes a limit, or gives a text that is not valid Unicode.
        """
        scope: Any = RenderScope(variables)
        try:
            text = "".join(self._jinja.root_render_func(scope))  # each part is paid for
        except PromptError:
            raise
        except Exception as error:  # whatever a filter or a value's own code raises is the template's fault
            raise PromptError(in_short(error)) from error
        if len(text) > PROMPT_TEXT.most:
            raise PromptError(PROMPT_TEXT.exceeded("the prompt has"))
        try:
            if not text.isascii():
                text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            message = f"the prompt contains an unpaired surrogate ({code}) and cannot be encoded as UTF-8"
            raise PromptError(message) from error
        return text

    def place_of(self, position: int, word: str) -> Place | None:
        """Return the place of `word` at or after a position of the template; None for a text in the spec."""
        return point_at(self.file, self.source, position, word) if self.file else None

    def literals(self) -> list[str]:
        """Return the texts that the template may write: the text outside of its tags, and the strings in its
        tags."""
        tree = ENVIRONMENT.parse(self.source)
        constants = (constant.value for constant in tree.find_all(nodes.Const))
        texts = [data.data for data in tree.find_all(nodes.TemplateData)]
        return texts + [text for text in constants if isinstance(text, str)]


@dataclass(frozen=True, slots=True)
class Expression:
    """Compiled expression over an episode, whose syntax and names have been checked."""

    source: str
    """Source text of the expression."""
    mentions: frozenset[str]
    """Names that the expression reads, in the form of `Template.mentions`."""
    parts: int
    """Number of nodes of the syntax tree."""
    timeout: float | None
    """Time limit in seconds of the expression's slow functions, which run in another process; None without
    them."""
    roles: Roles
    """Names of turns that the expression may read, each with the largest number of turns."""
    _evaluate: Evaluate

    def __reduce__(self) -> tuple[Callable[..., Expression], tuple[str, frozenset[str], int, Roles]]:
        return _restored_expression, (self.source, self.mentions, self.parts, self.roles)

    def value(self, variables: Mapping[str, Any]) -> Any:
        """Return the value, or UNKNOWN.

        Raises:
            PromptError: The expression fails, or passes a limit.
        """
        scope = RenderScope(variables)
        try:
            return self._evaluate(scope)
        except PromptError:
            raise
        except Exception as error:  # whatever a filter or a value's own code raises is the expression's fault
            raise PromptError(in_short(error)) from error

    def truth(self, variables: Mapping[str, Any]) -> bool | Unknown:
        """Return True if the expression holds, False if not, or UNKNOWN; raises PromptError as `value`
        does."""
        value = self.value(variables)
        return value if value is UNKNOWN else bool(value)

    def text(self, variables: Mapping[str, Any]) -> str:
        """Return the value as JSON.

        Raises:
            PromptError: The expression fails, passes a limit, or its value cannot be written as JSON.
        """
        value = self.value(variables)
        if value is UNKNOWN:
            raise PromptError("it is unknown")
        return str(FILTERS["tojson"](RenderScope({}), value, ensure_ascii=True))


TextT = TypeVar("TextT", Template, Expression)


def compile_template(source: str, around: TemplateScope) -> tuple[Template | None, list[TemplateFault]]:
    """Parse, check and compile a template.

    Args:
        source: Text of the template.
        around: Names that the template may use.

    Returns:
        The template, or None and its faults.
    """
    return _checked(source, around, partial(_template, source))


def compile_expression(source: str, around: TemplateScope) -> tuple[Expression | None, list[TemplateFault]]:
    """Parse, check and compile an expression.

    Args:
        source: Text of the expression.
        around: Names that the expression may use; its `is_condition` must be True.

    Returns:
        The expression, or None and its faults.
    """
    return _checked(source, around, partial(_expression, source, dict(around.needs)))


def _checked(
    source: str, around: TemplateScope, make: Callable[[frozenset[str], int, nodes.Template], TextT]
) -> tuple[TextT | None, list[TemplateFault]]:
    """Check a text, and build its compiled form.

    Args:
        source: The text.
        around: Names that the text may use.
        make: Function from the text's mentions, number of nodes and syntax tree to the compiled form.

    Returns:
        The compiled form and an empty list, or None and the faults.
    """
    kind = "expression" if around.has_value else "condition" if around.is_condition else "template"
    try:
        tree, parts = _parsed(source, around)
        faults, mentions = check_tree(tree, around)
        return (None if faults else make(mentions, parts, tree)), faults
    except TemplateSyntaxError as error:
        return None, [explain(source, error.lineno, error.message or "", kind)]
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:  # Python's own limits
        message = f"not a valid {kind}: Python cannot compile it: {in_short(error)}"
        return None, [TemplateFault(0, "", message)]


def _template(source: str, mentions: frozenset[str], parts: int, tree: nodes.Template) -> Template:
    return Template(source, mentions, parts, ENVIRONMENT.from_string(metered(tree)))


def _expression(
    source: str, roles: Roles, mentions: frozenset[str], parts: int, tree: nodes.Template
) -> Expression:
    (output_node,) = cast("nodes.Output", tree.body[0]).nodes
    limits = [scorer.timeout for scorer in scorers_in(output_node) if scorer.timeout is not None]
    timeout = sum(limits) if limits else None
    return Expression(source, mentions, parts, timeout, roles, compiled(output_node, roles))


def _restored(source: str, mentions: frozenset[str], parts: int) -> Template:
    """Rebuild an unpickled template: compile its source again without the checks that it passed before."""
    return _template(source, mentions, parts, _tree(source, None))


def _restored_expression(source: str, mentions: frozenset[str], parts: int, roles: Roles) -> Expression:
    """Rebuild an unpickled expression as `_restored` does."""
    return _expression(source, roles, mentions, parts, _tree(source, roles))


def mentions_of(source: str, around: TemplateScope) -> frozenset[str]:
    """Return `Template.mentions` of a text without compiling it; empty for an invalid text."""
    try:
        return check_tree(_parsed(source, around)[0], around)[1]
    except TemplateSyntaxError:
        return frozenset()


def _parsed(source: str, around: TemplateScope) -> tuple[nodes.Template, int]:
    """Return the syntax tree of a text and its number of nodes; raises TemplateSyntaxError."""
    if len(source) > PROMPT_SOURCE.most:
        raise TemplateSyntaxError(PROMPT_SOURCE.exceeded("its text has"), PROMPT_SOURCE.most)
    try:
        tree = _tree(source, around.needs if around.is_condition else None)
        return tree, check_shape(tree)
    except RecursionError:  # Jinja2's parser calls itself for each level
        raise TemplateSyntaxError(too_deep(), 0) from None
    except (ValueError, MemoryError) as error:  # Python's own limits
        raise TemplateSyntaxError(f"Python cannot compile it: {in_short(error)}", 0) from error


class _Linked(NodeTransformer):
    """Transformer of a syntax tree that makes a name of turns, such as `judge.history`, one name node."""

    def __init__(self, names: Container[str]) -> None:
        self.names = names

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if isinstance(node.node, nodes.Name) and (name := f"{node.node.name}.{node.attr}") in self.names:
            return nodes.Name(name, "load", lineno=node.node.lineno)
        return self.generic_visit(node)


def _tree(source: str, names: Container[str] | None) -> nodes.Template:
    """Return the syntax tree of a source.

    Args:
        source: A template, or an expression.
        names: Names of turns of an expression, which becomes the only output of the tree; None for a
            template.
    """
    if names is None:
        return ENVIRONMENT.parse(source)
    parser = Parser(ENVIRONMENT, source, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("more than one expression", parser.stream.current.lineno)
    tree = nodes.Template([nodes.Output([_Linked(names).visit(expression)])], lineno=1)
    tree.set_environment(ENVIRONMENT)
    return tree


def syntax_of(text: Template | Expression) -> nodes.Node:
    """Return the syntax tree of a template, or the root node of an expression; line numbers are positions."""
    if isinstance(text, Template):
        return _tree(text.source, None)
    return cast("nodes.Output", _tree(text.source, text.roles).body[0]).nodes[0]


_NUMBERS = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg)


def is_number(expression: Expression) -> bool:
    """Return True if an expression's value can only be a number, by its syntax."""
    match syntax_of(expression):
        case nodes.Call(node=nodes.Name(name="mean" | "sum" | "count" | "number" | "ramp")):
            return True
        case nodes.Getattr(attr="reward" | "tokens" | "calls" | "index" | "round" | "rounds"):
            return True
        case node:
            return isinstance(node, _NUMBERS)


def in_short(error: Exception) -> str:
    """Return an exception's text on one line, cut to 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def render_messages(
    prompt: Template, system: Template | None, examples: Template | None, variables: Mapping[str, Any]
) -> Sequence[Message]:
    """Render the messages that begin a chat.

    Args:
        prompt: Template of the user message.
        system: Template of the system message; None leaves the message out.
        examples: Template of the answer to an example of the task. Each example becomes a question and an
            answer before the prompt; None leaves examples out.
        variables: Variables of the templates; in the turns of an example, `task` is the example.

    Raises:
        PromptError: A template cannot be rendered.
    """
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system.render(variables)})
    if examples is not None:
        for example in variables["task"][EXAMPLES]:
            example_scope = {**variables, "task": example}
            messages.append({"role": "user", "content": prompt.render(example_scope)})
            messages.append({"role": "assistant", "content": examples.render(example_scope)})
    return (*messages, {"role": "user", "content": prompt.render(variables)})


def read_template(
    folders: Sequence[FilePath], path: Path, source: str, around: TemplateScope
) -> tuple[Template | None, list[Finding]]:
    """Read and compile a template that a spec names or holds; return the template, or None and findings.

    Args:
        folders: The spec's folder first, then the folders of the specs that it extends.
        path: Key of the spec where the template is named.
        source: The template's file name, or its text.
        around: Names that the template may use.
    """
    if not names_file(source):
        file_doubt = _file_meant(path, source, folders)
        return (None, [file_doubt]) if file_doubt else read_text(path, source, around)
    file, findings = _find(path, source, folders)
    if file is None:
        return None, findings
    name = shown_path(file)
    if any(is_same(file, labelled) for labelled in around.label_files):
        message = f"{name} would leak the label: it holds the tasks, with hidden fields"
        return None, [Finding(path, message, "a file with a template's text")]
    try:
        text = read_text_of(file, SPEC_BYTES)
    except OSError as error:
        return None, [Finding(path, f"cannot read {name}: {error.strerror}")]
    except UnicodeDecodeError:
        return None, [Finding(path, f"cannot read {name}: it is not UTF-8 text")]
    template, faults = compile_template(text, around)
    findings = [
        replace(_finding(path, fault), place=point_at(name, text, fault.position, fault.word))
        for fault in faults
    ]
    return template and replace(template, file=name), findings


def template_texts(sources: Iterable[str | None], folders: Sequence[FilePath]) -> dict[str, str]:
    """Return the texts of the template files that can be read, by their paths as messages show them.

    Args:
        sources: Texts of a spec; None and texts that name no file are skipped.
        folders: The spec's folder first, then the folders of the specs that it extends.
    """
    names = dict.fromkeys(source for source in sources if source and names_file(source))
    files = [file for name in names if (file := _find((), name, folders)[0])]
    texts: dict[str, str] = {}
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            texts[shown_path(file)] = read_text_of(file, SPEC_BYTES)
    return texts


def read_text(path: Path, source: str, around: TemplateScope) -> tuple[Template | None, list[Finding]]:
    """Compile the template at `path` of a spec; return the template, or None and findings."""
    template, faults = compile_template(source, around)
    return template, [_finding(path, fault) for fault in faults]


def read_expression(
    path: Path, source: str, around: TemplateScope
) -> tuple[Expression | None, list[Finding]]:
    """Compile the expression at `path` of a spec; return the expression, or None and findings."""
    expression, faults = compile_expression(source, around)
    return expression, [_finding(path, fault) for fault in faults]


def _finding(path: Path, fault: TemplateFault) -> Finding:
    """Return the finding for a fault of the template at `path`."""
    return Finding(
        path,
        fault.message,
        hint=fault.hint,
        word=fault.word,
        offset=fault.position,
        rests_on=((*path[:2], "needs"),) if fault.lacking == "needs" else (),
        looked_in=("loops",) if fault.lacking == "loops" else (),
        code=None if isinstance(fault.hint, Suggestion) else "template",
    )


def _find(path: Path, name: str, folders: Sequence[FilePath]) -> tuple[FilePath | None, list[Finding]]:
    """Return the file of a template, or None and findings.

    The file is looked for beside the spec, in `prompts/` there or one folder up, then among the shipped
    templates.
    """
    folders_searched = _places(folders)
    if FilePath(name).is_absolute() or ".." in FilePath(name).parts:
        expected = "a file name, looked up beside the spec and in prompts/"
        return None, [Finding(path, f"the template {name!r} lies outside the spec's folders", expected)]
    for candidate in folders_searched:
        file = candidate / name
        if is_file(file) and file.resolve().is_relative_to(candidate.resolve()):
            return file, []
    if any(is_no_file(candidate / name) for candidate in folders_searched):
        return None, [Finding(path, f"the template {name!r} is not a file", "a file with a template's text")]
    hint = did_you_mean(name, names_in(folders_searched, "*.j2"))
    return None, [Finding(path, f"no template {name!r}", "a file beside the spec or in prompts/", hint)]


def _places(folders: Sequence[FilePath]) -> list[FilePath]:
    """Return the folders of templates: beside the spec, `prompts/` there or one folder up, the shipped
    folder."""
    folders_beside = ((folder, folder / "prompts", folder.parent / "prompts") for folder in folders)
    return [*dict.fromkeys((*chain.from_iterable(folders_beside), PROMPTS))]


FILE_LIKE = re.compile(r"[^\s{}]*(?:\w/\w|\w\.\w{1,5}$)[^\s{}]*")
"""Word with a folder or an ending, which is taken for the name of a file."""
_NEAR = 0.8
"""Smallest similarity of a word to a template's name that counts as a misspelling: `text` and `expert` have
0.6, `jugde` and `judge` 0.8."""


def _file_meant(path: Path, word: str, folders: Sequence[FilePath]) -> Finding | None:
    """Return the finding for a text of one word that resembles the name of a file; None for any other text.

    Such a word has a folder or an ending, or is close to the name of a template.
    """
    if not re.fullmatch(r"[^\s{}]+", word):
        return None
    stems = [FilePath(name).stem for name in names_in(_places(folders), "*.j2")]
    near_names = difflib.get_close_matches(FilePath(word).stem, stems, 1, _NEAR)
    if not (near_names or FILE_LIKE.fullmatch(word)):
        return None
    hint = f"did you mean {near_names[0]}.j2?" if near_names else "name a template's file NAME.j2"
    expected = f"a file that ends in .j2, or a text; as a text, `{word}` is {{{{ {word!r} }}}}"
    return Finding(path, f"{word!r} is no template: a text of one word", expected, hint, code="template")
