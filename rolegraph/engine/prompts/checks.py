"""Checks of a template's syntax tree, before anything runs.

A tree and the names it may use go in; faults with their places come out, and the names that it reads. This
file does not know specs: the names of roles and of task fields are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jinja2 import nodes
from jinja2.tests import TESTS as JINJA_TESTS

from rolegraph.engine.errors import did_you_mean, nearest
from rolegraph.engine.prompts.evaluate import (
    AGGREGATES,
    CHANCE,
    FUNCTIONS,
    NUMBER,
    RAMP,
    draw_of,
    function_of,
    named_in,
)
from rolegraph.engine.prompts.filters import FILTERS, TAKING, wrong_arguments
from rolegraph.engine.vocabulary import EXAMPLES, LINKS, SCORERS, VIEW_FIELDS

_MEANT = {
    "correct": "right",
    "is_correct": "right",
    "score": "reward",
    "answer": "action",
    "output": "action",
}
"""Names that other projects use for fields of a turn, each with the field."""
_SECRETS = {
    "reward",
    "right",
    "terms",
    "is_correct",
    "correct",
    "signals",
    "score",
    "advantage",
    "label",
}
RESERVED = {"task", "self", "loop", "range", "true", "false", "none"}
"""Names that templates use for something other than a role."""

OF_SELF = ("role", "index", "lineage", "count")
"""Fields of `self` in every role."""
IN_A_LOOP = ("round", "times", "history")
"""Further fields of `self` in a role of a loop."""
IN_AN_INNER_LOOP = ("outer",)
"""Further fields of `self` in a role of a loop that is in another loop."""
WITH_AN_ENVIRONMENT = ("observation",)
"""Further fields of `self` where the loop has an environment."""
IN_A_CALL = ("arguments",)
"""Further fields of `self` in a role that other roles call."""
ALL_OF_SELF = (*OF_SELF, *IN_A_LOOP, *IN_AN_INNER_LOOP, *WITH_AN_ENVIRONMENT, *IN_A_CALL)
"""Every field that `self` has in some role."""
EPISODE = "episode"
"""Name of the episode, whose field `id` bodies of requests may hold."""

_ONLY = {
    **dict.fromkeys(IN_A_LOOP, "only in a loop"),
    **dict.fromkeys(IN_AN_INNER_LOOP, "only in a loop that is in another"),
    **dict.fromkeys(WITH_AN_ENVIRONMENT, "only in a loop with `env`"),
    **dict.fromkeys(IN_A_CALL, "only in a role with `callable`"),
}
"""Description, by field of `self` that not every role has, of the roles that have the field."""
_KEEPS_VIEWS = {"list", "reverse", "sort", "select", "selectattr", "reject", "rejectattr", "unique"}
_AS_TEXT = {"join", "string", "tojson", "upper", "lower", "trim", "title", "capitalize", "e", "escape"}
_NODES = (
    "Template Output TemplateData Name Getattr Getitem Slice For If Assign With Filter Test Const "
    "Tuple List Dict Pair Compare Operand And Or Not CondExpr Concat Add Sub Mul Div FloorDiv Mod Neg Pos "
    "Call Keyword"
).split()

_TAGS = {
    "Scope": "autoescape",
    "Block": "block",
    "FromImport": "from",
    "AssignBlock": "set",
    "NSRef": "namespace",
    "Pow": "**",
}
"""Texts of tags and operators, by the name of their Jinja2 node, where text and name differ."""
_INSTEAD = {
    "**": "multiply: x * x",
    "namespace": "gather with filters, such as … | map(attribute='action') | join(', '), or sum",
    "split": "let the earlier role give a list: parser: json",
    "strip": "use a filter: … | trim",
    "random": "draw in `when` or `until`: chance(0.25)",
    "get": "use a filter: task.field | default('…')",
}
"""Hints for names that a template cannot use, by name."""

_AGGREGATES_MEANT = {"avg": "mean", "average": "mean", "len": "count"}
"""Names of aggregates by the names that other languages use, such as `mean` by `avg`."""
_ARGUMENTS = {NUMBER: "one value", RAMP: "two numbers, steps, and `after`: ramp(0.1, 0, 100)"}
"""Description of a function's arguments, by the function's name."""
_NOT_NEEDED = ("the prompt mentions {!r}, which the role does not need", "add {} to its `needs`")
Kind = Literal[
    "task",
    "examples",
    "example",
    "self",
    "arguments",
    "episode",
    "several",
    "single",
    "view",
    "chosen",
    "other",
]
"""Kind of value of an expression: the task, its examples or one of them, `self`, the arguments of a call, the
episode, the instances of a role (several, or a single one whose fields can be read directly), one instance of
several, the turn that a role chose, or anything else."""
_Visit = Callable[[nodes.Node, dict[str, Kind]], Kind]


@dataclass(frozen=True, slots=True)
class TemplateFault:
    """Fault in a template, at the first `word` at or behind `position`, which counts from 0."""

    position: int
    word: str
    message: str
    hint: str = ""
    lacking: Literal["needs", "loops"] | None = None
    """Part of the spec to extend so that the name exists: the role's `needs`, or the spec's `loops`; None for
    neither."""


@dataclass(frozen=True, slots=True)
class TemplateScope:
    """Names that one template may use, with their kinds and fields, for its check."""

    needs: Mapping[str, int]
    """Names of the role's inputs, each with the largest number of instances that it can have."""
    roles: Sequence[str] = ()
    """All roles of the spec, for messages."""
    columns: Sequence[str] | None = None
    """Fields of the task; None if unknown."""
    hidden: frozenset[str] = frozenset()
    """Task fields that the template must not read."""
    label_files: tuple[Path, ...] = ()
    """Files with hidden fields; a template must not be one of these files."""
    fields: tuple[str, ...] = VIEW_FIELDS
    """Fields of a role instance that the template may read."""
    self_fields: tuple[str, ...] = ()
    """Fields of `self` that the template may read."""
    arguments: tuple[str, ...] | None = None
    """Names of the arguments of a call, in a role that other roles call; None if unknown."""
    called: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names of inputs by role, for roles whose input has another name."""
    outside: tuple[str, str] = _NOT_NEEDED
    """Message and hint for the name of a role that is in the spec, but no input; `{!r}` and `{}` are the
    name."""
    text: str = "a prompt"
    """Description of the template or expression, such as `a prompt`, for messages."""
    is_condition: bool = False
    """True for an expression, False for a template; hints for an expression never suggest a `for`."""
    has_value: bool = False
    """True for an expression whose value is used; False if only its truth is used."""
    can_draw: bool = False
    """True for a condition that may draw by `chance`."""
    values: tuple[str, ...] = ()
    """Names of further variables that the template may read, such as `step`."""
    has_episode: bool = False
    """True for the body of a request, which may hold `episode.id`."""
    example_fields: tuple[str, ...] | None = None
    """Fields of an item of `task.examples`; None if unknown."""
    is_after: bool = False
    """True for a text that is rendered, or an expression that is evaluated, after the episode."""
    beside: Callable[[str, str, int], int] = lambda role, other, most: most
    """Function of (role, other, most) to the largest number of instances of `other` on the branch of one
    instance of `role`; `most` is the number that `needs` has for `other`."""


def check_tree(tree: nodes.Template, around: TemplateScope) -> tuple[list[TemplateFault], frozenset[str]]:
    """Return the faults of a template, and the names that it reads in the form of `Template.mentions`."""
    walk = _Walk(around)
    scope: dict[str, Kind] = {EPISODE: "episode"} if around.has_episode else {}
    scope |= {name: "single" if count == 1 else "several" for name, count in around.needs.items()}
    scope |= {"self": "self"} if around.self_fields else {}
    walk.visit(tree, {**scope, **dict.fromkeys(around.values, "other"), "task": "task"})
    return list(walk.faults), frozenset(walk.mentions)


class _Walk:
    """Visitor of a template's syntax tree that finds faults, and the names and fields that the template
    reads."""

    def __init__(self, around: TemplateScope) -> None:
        self.around = around
        self.faults: dict[TemplateFault, None] = {}
        self.mentions: set[str] = set()

    def fault(
        self,
        node: nodes.Node,
        word: str,
        message: str,
        hint: str = "",
        lacking: Literal["needs", "loops"] | None = None,
    ) -> Kind:
        # In our trees `lineno` is a position; nodes that stand for no token have none.
        offset = node.lineno or next((part.lineno for part in node.find_all(nodes.Node) if part.lineno), 0)
        self.faults[TemplateFault(offset, word, message, hint, lacking)] = None
        return "other"

    def missing(
        self, node: nodes.Node, name: str, message: str, names: Sequence[str], shown: str = "{!r}"
    ) -> Kind:
        """Record the fault that `name` is not among `names`, with the closest as a hint; return the kind
        "other"."""
        available_names, meant = ", ".join(names) or "nothing", _MEANT.get(name)
        hint = f"did you mean {shown.format(meant)}?" if meant in names else did_you_mean(name, names, shown)
        return self.fault(node, name, f"{message}; there is {available_names}", hint)

    def visit(self, node: nodes.Node, scope: dict[str, Kind]) -> Kind:
        kind = type(node).__name__
        if kind not in _NODES:
            tag = _TAGS.get(kind) or kind.lower().removesuffix("block")
            hint = _INSTEAD.get(tag, "use expressions, if, for and set")
            return self.fault(node, tag, f"{tag!r} cannot be used in {self.around.text}", hint)
        method: _Visit | None = getattr(self, f"visit_{kind}", None)
        if method is not None:
            return method(node, scope)
        self.block(node.iter_child_nodes(), scope)
        return "other"

    def visit_Name(self, node: nodes.Name, scope: dict[str, Kind]) -> Kind:
        name = node.name
        if node.ctx != "load":
            if name.startswith("_") or name in RESERVED or name in self.around.roles:
                self.fault(node, name, f"{name!r} cannot be set: the name is taken", "choose another name")
            return "other"
        if scope.get(name) == "task":  # the field that is read of it is unknown
            message = "this reads the task as a whole: a field of the task must be named"
            columns = self.around.columns or ("question",)
            visible_column = next((it for it in columns if it not in {"id", *self.around.hidden}), None)
            return self.fault(node, name, message, f"write task.{visible_column}" if visible_column else "")
        is_input = name in self.around.needs and scope.get(name) in ("single", "several")
        if name in self.around.values or is_input:
            self.mentions.add(name)
        if name == EPISODE and scope.get(name) in (None, "episode") and name not in self.around.roles:
            if name in scope:
                return self.fault(node, name, "the episode has one field, its id", "write episode.id")
            message = "episode.id differs in each run, and stands in headers and bodies of tools alone"
            return self.fault(node, name, message)
        if scope.get(name) == "self":  # the whole value: any field may be read of it
            self.mentions |= {"self", *(f"self.{field}" for field in self.around.self_fields)}
        if name in scope:
            return scope[name]
        if name in self.around.roles:
            message, hint = self.around.outside
            if name in self.around.called:
                hint = f"it is known as {self.around.called[name]} here"
            return self.fault(node, name, message.format(name), hint.format(name), "needs")
        names = ["task", *self.around.values, *(it for it in self.around.needs if "." not in it)]
        if self.around.values and self.around.self_fields:
            names.append("self")
        hint = did_you_mean(name, names)
        if name in (self.around.columns or ()) or name in self.around.self_fields:
            hint = f"did you mean {'task' if name in (self.around.columns or ()) else 'self'}.{name}?"
        message = f"{name!r} does not exist here; there is {', '.join(names)}"
        # With a hint, the name itself is misspelt.
        return self.fault(node, name, message, hint, None if hint else "needs")

    def visit_Getattr(self, node: nodes.Getattr, scope: dict[str, Kind]) -> Kind:
        return self.attribute(node, self.holder(node.node, node.attr, scope), node.attr)

    def holder(self, node: nodes.Expr, field: object, scope: dict[str, Kind]) -> Kind:
        """Check the expression before a `.field` or `[field]`; return the kind of the expression's value,
        such as `task`."""
        if isinstance(field, str) and isinstance(node, nodes.Name):
            kind = scope.get(node.name)
            if kind in ("self", "task", "episode"):
                return kind
        return self.visit(node, scope)

    def visit_Getitem(self, node: nodes.Getitem, scope: dict[str, Kind]) -> Kind:
        kind = self.holder(node.node, getattr(node.arg, "value", None), scope)
        self.visit(node.arg, scope)
        if kind in ("several", "single") and isinstance(node.arg, nodes.Slice):
            return "several"
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if kind == "several" or (kind == "single" and isinstance(key, int)):
            return "view"
        if kind == "examples":
            return kind if isinstance(node.arg, nodes.Slice) else "example"
        return self.attribute(node, kind, key) if isinstance(key, str) else "other"

    def attribute(self, node: nodes.Node, kind: Kind, name: str) -> Kind:
        if name.startswith("_"):
            return self.fault(node, name, f"{name!r} cannot be read in {self.around.text}")
        if kind == "task":
            return self.task_field(node, name)
        if kind == "example":
            return self.example_field(node, name)
        if kind == "self":
            return self.own_field(node, name)
        arguments = self.around.arguments
        if kind == "arguments" and arguments is not None and name not in arguments:
            message = f"a call has no argument {name!r}"
            return self.missing(node, name, message, arguments, "self.arguments.{}")
        if kind == "episode":
            self.mentions.add(EPISODE)
            return "other" if name == "id" else self.fault(node, name, "the episode has one field, its id")
        if kind == "several" and name in self.around.fields:
            hint = "loop over it: {% for one in … %}, or take one with [0]"
            if self.around.is_condition:
                holder = named_in(node, self.around.needs.keys())
                subject = holder[0] if holder else "…"
                hint = f"write mean({subject}.{name}), any(…), all(…), or take one: {subject}[0].{name}"
            message = f"this is a list of role instances; it has no {name!r} itself"
            return self.fault(node, name, message, hint)
        if kind in ("several", "single", "view") and name not in self.around.fields:
            if name in LINKS:
                advice = "say the round in `needs`, such as {{{}: history}}, and read the name alone"
                hint = "it names turns of a role in a loop" if self.around.is_after else advice
                return self.fault(node, name, f"there is no {name!r} of this role here", hint)
            if name not in _SECRETS or "reward" in self.around.fields:
                return self.missing(node, name, f"a role has no {name!r}", self.around.fields)
            message = f"{name!r} would leak the label: prompts never see rewards"
            return self.fault(node, name, message, f"there is {', '.join(self.around.fields)}")
        if kind == "chosen" and name not in VIEW_FIELDS:
            return self.missing(node, name, f"the turn that is chosen has no {name!r} here", VIEW_FIELDS)
        return "chosen" if name == "chosen" and kind in ("single", "view", "chosen") else "other"

    def own_field(self, node: nodes.Node, name: str) -> Kind:
        if name not in self.around.self_fields:
            message = f"self has no {name!r} here"
            if name not in _ONLY or (name in IN_A_LOOP and {*IN_A_LOOP} & {*self.around.self_fields}):
                return self.missing(node, name, message, self.around.self_fields, "self.{}")
            if self.around.is_after and name in (*WITH_AN_ENVIRONMENT, *IN_A_CALL):
                return self.fault(node, name, f"{message}, after the episode", "read it in self.prompt")
            message = f"{message}; {_ONLY[name]}"
            if name in IN_A_LOOP:
                return self.fault(node, name, message, "put the role into `loops`", "loops")
            return self.fault(node, name, message)
        self.mentions |= {"self", f"self.{name}"}
        kinds: Mapping[str, Kind] = {"history": "several", "arguments": "arguments"}
        return kinds.get(name, "other")

    def task_field(self, node: nodes.Node, name: str) -> Kind:
        columns = self.around.columns
        self.mentions |= {"task", f"task.{name}"}
        if name in self.around.hidden:
            hint = f"a role that may see it, as a judge with the reference, says `sees: [{name}]`"
            if self.around.is_after:
                hint = f"say beside it that this text may read it: `sees: [{name}]`"
            message = f"task.{name} would leak the label: it is hidden from prompts"
            return self.fault(node, name, message, hint)
        if columns is not None and name not in columns:
            visible_columns = [column for column in columns if column not in self.around.hidden]
            return self.missing(node, name, f"the task has no field {name!r}", visible_columns, "task.{}")
        return "examples" if name == EXAMPLES and self.around.example_fields is not None else "other"

    def example_field(self, node: nodes.Node, name: str) -> Kind:
        fields = self.around.example_fields or ()
        if name in fields:
            return "other"
        if name in self.around.hidden:
            message = f"an example has no {name!r}, which is hidden from prompts"
            hint = f"to show it of the training rows that are examples, say `examples: {{sees: [{name}]}}`"
            return self.fault(node, name, message, hint)
        return self.missing(node, name, f"an example has no field {name!r}", fields)

    def visit_For(self, node: nodes.For, scope: dict[str, Kind]) -> Kind:
        if node.recursive:
            self.fault(node, "recursive", f"recursive loops cannot be used in {self.around.text}")
        kind = self.listed(node.iter, scope)
        self.visit(node.target, scope)
        item: Kind = "view" if kind in ("several", "single") else "other"
        item = "example" if kind == "examples" else item
        inner_scope: dict[str, Kind] = {**scope, "loop": "other", **_bind(node.target, item)}
        if node.test is not None:
            self.visit(node.test, inner_scope)
        self.block(node.body, inner_scope)
        self.block(node.else_, scope)
        return "other"

    def visit_With(self, node: nodes.With, scope: dict[str, Kind]) -> Kind:
        inner_scope = dict(scope)
        for target, value in zip(node.targets, node.values, strict=True):
            self.visit(target, scope)
            inner_scope.update(_bind(target, self.listed(value, scope)))
        self.block(node.body, inner_scope)
        return "other"

    def visit_Assign(self, node: nodes.Assign, scope: dict[str, Kind]) -> Kind:
        self.visit(node.target, scope)
        scope.update(_bind(node.target, self.listed(node.node, scope)))
        return "other"

    def block(self, body: Iterable[nodes.Node], scope: dict[str, Kind]) -> None:
        for node in body:
            self.visit(node, scope)

    def visit_Output(self, node: nodes.Output | nodes.Concat, scope: dict[str, Kind]) -> Kind:
        if self.around.is_condition and not self.around.has_value and isinstance(node, nodes.Output):
            self.block(node.nodes, scope)
            return "other"
        for child in node.nodes:
            self.written(child, self.visit(child, scope))
        return "other"

    visit_Concat = visit_Output

    def listed(self, node: nodes.Node, scope: dict[str, Kind]) -> Kind:
        """Check an expression that may be a sum of lists, such as `solver + rival`; return the kind of its
        value."""
        if not isinstance(node, nodes.Add):
            return self.visit(node, scope)
        kinds = {self.listed(operand, scope) for operand in (node.left, node.right)}
        return "several" if kinds <= {"several", "single"} else "other"

    def computed(self, node: nodes.Expr, scope: dict[str, Kind]) -> Kind:
        for child in node.iter_child_nodes():
            self.written(child, self.visit(child, scope), "number")
        return "other"

    visit_Add = visit_Sub = visit_Mul = visit_Div = visit_FloorDiv = visit_Mod = visit_Neg = computed

    def visit_Compare(self, node: nodes.Compare, scope: dict[str, Kind]) -> Kind:
        parts = [node.expr, *(operand.expr for operand in node.ops)]
        kinds: list[Kind] = [self.visit(part, scope) for part in parts]
        ops = {operand.op for operand in node.ops}
        has_none = any(isinstance(part, nodes.Const) and part.value is None for part in parts)
        are_alike = ops <= {"eq", "ne"} and (has_none or "other" not in kinds)  # such as two instances
        for part, kind in zip(parts, kinds, strict=True) if not (are_alike or ops & {"in", "notin"}) else ():
            self.written(part, kind, "value to compare")
        return "other"

    def written(self, node: nodes.Node, kind: Kind, wanted: str = "text") -> None:
        """Record a fault where a template writes a role instance instead of one of its fields, as in `{{
        solver }}`."""
        if kind not in ("several", "single", "view", "chosen", "self"):
            return
        first_name = next(iter([node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)), None)
        name = first_name.name if first_name is not None else ""
        noun = "an instance of a role"
        hint = f"write {name}.action" if first_name is node else "write .action behind it"
        if kind == "self":
            noun = "the instance itself"
            hint = f"write self.{self.around.self_fields[0]}" if self.around.self_fields else ""
        elif kind == "several":
            noun = "a list of role instances"
            text = "loop over it, {% for one in … %}{{ one.action }}{% endfor %}", "join(', ')"
            how, end = text if wanted == "text" else ("take one with [0]", "list")
            hint = f"{how}, or gather them: {name} | map(attribute='action') | {end}"
        subject = repr(name) if first_name is node else "this"
        self.fault(first_name or node, name, f"{subject} is {noun}, and no {wanted}", hint)

    def visit_CondExpr(self, node: nodes.CondExpr, scope: dict[str, Kind]) -> Kind:
        self.visit(node.test, scope)
        first_kind = self.visit(node.expr1, scope)
        second_kind = self.visit(node.expr2, scope) if node.expr2 is not None else first_kind
        return first_kind if first_kind == second_kind else "other"

    def visit_Call(self, node: nodes.Call, scope: dict[str, Kind]) -> Kind:
        name = node.node.name if isinstance(node.node, nodes.Name) else ""
        if self.around.is_condition and name in AGGREGATES:
            return self.aggregate(node, name, scope)
        if name == CHANCE:
            self.chance(node)
        elif self.around.is_condition and name in FUNCTIONS:
            self.function(node, name)
        elif name != "range":
            word = node.node.attr if isinstance(node.node, nodes.Getattr) else getattr(node.node, "name", "")
            close = nearest(word, FILTERS)
            hint = _INSTEAD.get(word) or (f"use a filter: … | {close}" if close else "use a filter")
            nearest_function = _AGGREGATES_MEANT.get(word) or nearest(word, [*AGGREGATES, *FUNCTIONS])
            if self.around.is_condition and nearest_function:
                hint = f"did you mean {nearest_function}(…)?"
            message = f"{word or 'this'}(…) cannot be called in {self.around.text}"
            self.fault(node.node, word, message, hint)
            if self.around.is_condition and nearest_function in AGGREGATES:
                return self.aggregate(node, nearest_function, scope)
        self.block(node.iter_child_nodes(exclude=("node",)), scope)
        return "other"

    def chance(self, node: nodes.Call) -> None:
        """Record the names that a call of `chance` reads, and a fault if it cannot draw or has wrong options.

        A draw depends on `self`, in a loop's condition on the roles of the round.
        """
        self.mentions |= {CHANCE, *(("self",) if self.around.self_fields else self.around.needs)}
        if not self.around.can_draw:
            message = f"{CHANCE}(…) cannot be called in {self.around.text}"
            self.fault(node.node, CHANCE, message, "draw in `when` or `until`, which decide who runs")
            return
        try:
            draw_of(node)
        except ValueError as error:
            self.fault(node.node, CHANCE, f"{CHANCE} takes {error}")
        except nodes.Impossible:
            self.fault(node.node, CHANCE, f"{CHANCE} takes `per` and `key` as texts in quotes")

    def function(self, node: nodes.Call, name: str) -> None:
        """Report arguments that a function of expressions cannot take, or a template in which it cannot be
        used."""
        if name in SCORERS and not self.around.is_after:
            message = f"{name}(…) would leak the label: an answer is compared after the episode"
            self.fault(node.node, name, message, "compare in a reward, in `right`, or in a gate")
            return
        if name == RAMP:
            self.mentions.add("step")
            if "step" not in self.around.values:
                message, places = f"{RAMP}(…) follows the step of a training", "a reward, a gate or a number"
                self.fault(node.node, name, f"{message}, which {self.around.text} does not read here", places)
                return
        argument_count, argument_range = len(node.args), {NUMBER: (1, 1), RAMP: (3, 4)}.get(name, (2, 2))
        keywords = {str(it.key) for it in node.kwargs} if name != RAMP else set[str]()
        if (
            not argument_range[0] <= argument_count + len(node.kwargs) - len(keywords) <= argument_range[1]
            or node.dyn_args
        ):
            self.fault(node.node, name, f"{name} takes {_ARGUMENTS.get(name, 'an answer and the right one')}")
            return
        try:
            function_of(node) if name != RAMP else None
        except (LookupError, ValueError, nodes.Impossible) as error:
            self.fault(node.node, name, f"{name} cannot take these options: {error}")

    def aggregate(self, node: nodes.Call, name: str, scope: dict[str, Kind]) -> Kind:
        """Check an aggregate, such as `mean(solver.tokens)`; return the kind of its value.

        Inside the aggregate, the first role that it names is a single instance.
        """
        other_keywords = [it for it in node.kwargs if it.key != "where"]
        if not node.args or node.dyn_args or node.dyn_kwargs or other_keywords:
            message = f"{name} takes what it goes over, and `where=` a condition"
            return self.fault(node.node, name, message, f"such as {name}(solver.tokens, where=solver.ok)")
        roles = {it for it, kind in scope.items() if kind in ("several", "single")}
        is_written_out = len(node.args) > 1 or isinstance(node.args[0], nodes.List | nodes.Tuple)
        source, *_ = ["" if is_written_out else it for it in (*named_in(node, roles), "")]
        if node.kwargs and not source:
            message = f"{name} names no role, whose instances `where` could choose among"
            return self.fault(node.node, name, message, "write | selectattr(…) behind a list")
        inner_scope = dict(scope)
        for needed in self.around.needs if source else ():
            is_many = needed != source and self.around.beside(source, needed, self.around.needs[needed]) != 1
            inner_scope[needed] = "several" if is_many else "single"
        for argument in (*node.args, *(it.value for it in node.kwargs)):
            kind = self.visit(argument, inner_scope)
            is_bare = isinstance(argument, nodes.Name) and name in ("count", "first", "last")
            if argument is not node.args[0] or not is_bare:
                self.written(argument, "other" if kind == "view" else kind, "value")
        is_turn = source and name in ("first", "last") and isinstance(node.args[0], nodes.Name)
        return "view" if is_turn else "other"

    def visit_Filter(self, node: nodes.Filter, scope: dict[str, Kind]) -> Kind:
        kind = self.listed(node.node, scope) if node.node is not None else "other"
        mapped_filter = node.args[0] if node.name == "map" and node.args else None
        inner_name = str(mapped_filter.value) if isinstance(mapped_filter, nodes.Const) else None
        if unknown := next((name for name in (node.name, inner_name or "map") if name not in FILTERS), None):
            hint = did_you_mean(unknown, FILTERS) or f"there is {', '.join(sorted(FILTERS))}"
            self.fault(node, unknown, f"no filter {unknown!r}", hint)
        elif inner_name:
            self.arguments(node, TAKING[inner_name], inner_name, len(node.args) - 1)
        else:
            self.arguments(node, TAKING[node.name], node.name, len(node.args))
        self.block(node.iter_child_nodes(exclude=("node",)), scope)
        names_attribute = len(node.args) > 1 or any(keyword.key == "attribute" for keyword in node.kwargs)
        if node.node is not None and node.name in _AS_TEXT and not names_attribute:
            self.written(node.node, kind)
        if kind in ("several", "single"):
            self.by_attribute(node)
            if node.name in ("first", "last", "min", "max"):
                return "view"
            if node.name in _KEEPS_VIEWS:
                return "several"
        return kind if node.name in ("default", "d") else "other"

    def visit_Test(self, node: nodes.Test, scope: dict[str, Kind]) -> Kind:
        if node.name in JINJA_TESTS:  # Jinja2 reports another
            self.arguments(node, JINJA_TESTS[node.name], node.name, len(node.args))
        self.block(node.iter_child_nodes(), scope)
        return "other"

    def arguments(
        self, node: nodes.Filter | nodes.Test, function: Callable[..., Any], name: str, positional: int
    ) -> None:
        """Report arguments that a filter or test cannot take."""
        keywords = [str(keyword.key) for keyword in node.kwargs]
        problem = wrong_arguments(function, positional, keywords)
        if problem and not (node.dyn_args or node.dyn_kwargs):
            kind = type(node).__name__.lower()
            self.fault(node, name, f"the {kind} {name!r} cannot take these arguments: {problem}")

    def by_attribute(self, node: nodes.Filter) -> None:
        named_attributes = [k.value for k in node.kwargs if k.key == "attribute"]
        positional = node.args[:1] if node.name in ("selectattr", "rejectattr", "groupby") else []
        if node.name in ("sum", "join", "unique", "sort", "min", "max") and len(node.args) > 1:
            positional = node.args[1:]
        for argument in (*named_attributes, *positional):
            if isinstance(argument, nodes.Const) and isinstance(argument.value, str):
                self.attribute(argument, "view", argument.value.partition(".")[0])


def _bind(target: nodes.Node, kind: Kind) -> dict[str, Kind]:
    if isinstance(target, nodes.Name):
        return {target.name: kind}
    return {name.name: "other" for name in target.find_all(nodes.Name)}
