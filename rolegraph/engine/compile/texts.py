"""Templates and conditions of a spec, compiled with the names that each may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from typing import TypeVar

from rolegraph.engine.compile.inputs import compares_turns
from rolegraph.engine.compile.lineage import Instances, joined
from rolegraph.engine.compile.role_plan import GroupingPlan
from rolegraph.engine.limits.prompts import PROMPT_PARTS
from rolegraph.engine.limits.specs import SPEC_TEMPLATES
from rolegraph.engine.prompts import (
    SELF,
    Expression,
    Template,
    TemplateScope,
    checks,
    read_expression,
    read_template,
    read_text,
)
from rolegraph.engine.spec import Edge, Finding, Path, Spec
from rolegraph.engine.vocabulary import (
    OF_A_TURN,
    RECORDED_FIELDS,
    TURN_FIELDS,
    Dataset,
    Split,
    Tool,
)

TextT = TypeVar("TextT", Template, Expression)
Reader = Callable[[Path, str, TemplateScope], tuple[TextT | None, list[Finding]]]
"""Function of (path in the spec, source, scope) to the compiled text and findings."""

OF_A_GATE = ("reward", "right", "action", "step")
"""Names that the gate of a signal reads of the turn, besides `task`, `self` and the roles."""
PROMPT = "prompt"
"""Field of `self`, in a text that is rendered after the episode, with the user message of the turn."""
_ANOTHER_ROLE = "the key mentions {!r}, which is another role"
NOT_IN_KEYS = ("role", "count", "times", "history")
"""Fields of `self` that the key of a group may not read."""
MANY = 2
"""Number of instances for an input that is always a list."""


def columns_of(data: Mapping[Split, Dataset]) -> tuple[str, ...] | None:
    """Return the task fields that every split has; None without data."""
    if not data:
        return None
    first_data, *other_data = data.values()
    return tuple(c for c in first_data.columns if all(c in dataset.columns for dataset in other_data))


def not_hidden(spec: Spec, field: str, path: Path) -> Finding:
    """Return the finding for a task field in the `sees` at `path` that is not hidden."""
    message = f"task.{field} is not hidden: every role may read it"
    rests_on = (("data",), *(("roles", name, "reward") for name in spec.roles))
    return Finding(path, message, "a hidden field", "leave it out here", word=field, rests_on=rests_on)


@dataclass(slots=True)
class TextReader:
    """Compiler of the templates and expressions of one spec, which collects their faults in `findings`."""

    spec: Spec
    instances: Instances | None
    """Instances of each role; None where the graph has a fault."""
    folders: tuple[FilePath, ...]
    """Folders in which templates are looked for."""
    columns: tuple[str, ...] | None
    """Fields of a task; None if unknown."""
    hidden: frozenset[str]
    labels: Mapping[FilePath, frozenset[str]]
    """Hidden fields of the tasks in each file of tasks."""
    turns_read: Mapping[str, Sequence[str]]
    """For each role, the other roles whose turns the role's conversation shows."""
    findings: list[Finding]
    example_fields: tuple[str, ...] | None = None
    """Fields of an item of `task.examples`; None where tasks carry no examples."""
    compiled: int = 0
    """Syntax nodes of the templates and conditions so far."""

    def prompts(self, name: str) -> tuple[Template | None, Template | None]:
        """Compile a role's prompt and system, and warn of entries of `needs` that neither reads.

        Returns:
            The prompt and the system; None for a text that is missing or has a finding.
        """
        role, scope = self.spec.roles[name], self._around(name)
        prompt = self._template(("roles", name, "prompt"), role.prompt, scope)
        system = self._template(("roles", name, "system"), role.system, scope)
        mentioned_names = {m for template in (prompt, system) if template for m in template.mentions}
        for key, template in (("prompt", prompt), ("system", system)):
            self.findings += _single_braces(("roles", name, key), template, scope) if template else ()
        roles_read = self.turns_read.get(name, ())
        for key, needed_role, edge in role.edges:
            if edge.fans_out or needed_role in roles_read:  # it sets the count, or the conversation shows it
                continue
            is_condition = role.when or (role.memory and role.memory.reset)
            if prompt and key in scope.needs and key not in {*mentioned_names, name} and not is_condition:
                message = f"{name} waits for {key}, but its prompt does not mention it"
                path = ("roles", name, "needs", key)
                rests_on: tuple[Path, ...] = (("roles", name, "system"), ("roles", name, "prompt"))
                warning = Finding(path, message, word=key, severity="warning", rests_on=rests_on)
                self.findings.append(warning)
        return prompt, system

    def example_answer(self, name: str, prompt: Template | None) -> Template | None:
        """Compile the answer to a role's examples; None for a role without examples, or with a finding.

        A finding is added if the tasks have no examples, or if the prompt reads a name that an example does
        not have.
        """
        source, path = self.spec.roles[name].examples, ("roles", name, "examples")
        fields, examples = self.example_fields, self.spec.data.examples
        if source is None or self.columns is None:
            return None
        if examples is None:
            message = f"{name} has examples, and the tasks carry none"
            hint = "let them: `data: {examples: {count: 3, sees: [LABEL]}}`"
            self.findings.append(Finding(path, message, "data.examples", hint, at_key=True))
            return None
        if fields is None:  # `data.examples` has a finding
            return None
        self.findings += self._unshown(name, prompt, fields)
        shown_fields = frozenset(examples.sees)
        scope = TemplateScope(
            {}, tuple(self.spec.roles), fields, self.hidden - shown_fields, text="an example"
        )
        return self._template(path, source, scope)

    def _unshown(self, name: str, prompt: Template | None, fields: Sequence[str]) -> Iterator[Finding]:
        """Yield a fault for each name that a prompt reads and an example of the task does not have.

        Args:
            name: The role.
            prompt: The role's prompt, which also renders the examples.
            fields: Fields of an example.
        """
        allowed_names = {"task", *(f"task.{field}" for field in fields)}
        for mention in sorted(prompt.mentions - allowed_names if prompt else ()):
            if mention.partition(".")[0] != SELF:
                message = f"the prompt of {name} reads {mention}, which an example does not have"
                expected = f"fields of an example: {', '.join(fields)}"
                word = mention.removeprefix("task.")
                yield Finding(("roles", name, "prompt"), message, expected, word=word, offset=0)

    def value(self, name: str, tool: Tool) -> Template | None:
        """Compile the template of the argument of a role's tool; None for a tool without one."""
        call = self.spec.roles[name].run
        if call is None:
            return None
        path = ("roles", name, "run", *call.path_of(("with",) if tool.session else (0,)))
        scope = replace(self._around(name), text="the argument of a tool", has_episode=tool.sends_body)
        is_text = not (tool.open or tool.choose or tool.session)
        if is_text:
            return self._template(path, tool.source, scope)
        return self._read(read_text, path, tool.source, scope)

    def demonstration(self, path: Path, source: str | None) -> Template | None:
        """Compile a demonstrated answer's template; None for a role without a demonstration, or with a
        finding.

        The template is rendered after the episode, so it may read every role, its own among them as `self`.
        """
        instance_counts = self._counts()
        scope = TemplateScope(
            instance_counts,
            tuple(instance_counts),
            self.columns,
            fields=RECORDED_FIELDS,
            self_fields=RECORDED_FIELDS,
            text="a demonstration",
        )
        return self._template(path, source, scope)

    def teacher(self, name: str, path: Path, source: str | None, sees: frozenset[str]) -> Template | None:
        """Compile a template of a teacher of role `name`; None without a source, or with a finding.

        The template is rendered after the episode. The names in the role's `needs` mean what they mean in the
        role's prompt, other roles are read as the role's reward would read them.

        Args:
            name: The role.
            path: Key of the template.
            source: The template.
            sees: Hidden fields that it may read, besides those of the role itself.
        """
        scope = replace(self._after(name), text="a teacher's prompt")
        hidden_fields = scope.hidden - sees
        scope = replace(scope, hidden=hidden_fields, label_files=self._label_files(hidden_fields))
        return self._template(path, source, scope)

    def gate(self, name: str, path: Path, source: str) -> Expression | None:
        """Compile the gate of a role's signal, which may read hidden fields of the task: its value is only a
        factor."""
        scope = replace(self._after(name), hidden=frozenset[str](), values=OF_A_GATE, beside=self._beside)
        return self._expression(path, source or None, scope)

    def _after(self, name: str) -> TemplateScope:
        """Return the TemplateScope of role `name` for a text that is rendered after the episode."""
        scope = self._around(name)
        self_fields = (*RECORDED_FIELDS, PROMPT, *scope.self_fields)
        fields = tuple(dict.fromkeys(self_fields).keys() - {*checks.WITH_AN_ENVIRONMENT, *checks.IN_A_CALL})
        return replace(
            scope,
            needs={**self._on_branch(name), **scope.needs},
            fields=RECORDED_FIELDS,
            self_fields=tuple(sorted(fields)),
            arguments=None,
            called={},
            is_after=True,
        )

    def when(self, name: str) -> Expression | None:
        """Compile a role's condition `when`; None for a role without `when`, or with a finding."""
        return self._condition(("roles", name, "when"), self.spec.roles[name].when, name, can_draw=True)

    def reset(self, name: str) -> Expression | None:
        """Compile the condition of a role's `memory.reset`, which reads what its `when` may read."""
        memory = self.spec.roles[name].memory
        return self._condition(("roles", name, "memory", "reset"), memory and memory.reset, name)

    def _condition(
        self, path: Path, source: str | None, name: str, *, can_draw: bool = False
    ) -> Expression | None:
        outside_hint = ("the condition mentions {!r}, which the role does not need", "add {} to its `needs`")
        scope = replace(self._around(name), outside=outside_hint)
        return self._expression(path, source, scope, has_value=False, can_draw=can_draw)

    def groupings(self, name: str) -> tuple[GroupingPlan, ...]:
        """Compile the keys of a role's groupings, which may read hidden fields: no record has their value."""
        role = self.spec.roles[name]
        outside_hint = (_ANOTHER_ROLE, "a key is an expression over `task` and `self`")
        fields = tuple(it for it in self._fields_of_self(name) if it not in NOT_IN_KEYS)
        scope = TemplateScope({}, tuple(self.spec.roles), self.columns, outside=outside_hint)
        scope = replace(scope, self_fields=fields, arguments=self._arguments(name))
        plans: list[GroupingPlan] = []
        for index, grouping in enumerate(role.group):
            path, key_text = ("roles", name, "group", index, "by"), grouping.by
            key = self._expression(path, key_text, scope) if grouping.is_expression else None
            are_turns, credit = compares_turns(role, grouping), grouping.credit or role.credit
            plans.append(GroupingPlan(key_text, key, are_turns, credit, grouping.weight, grouping.over))
        return tuple(plans)

    def state_key(self, path: Path, source: str) -> Expression | None:
        """Compile the key of an estimator's state, which reads visible fields of the task."""
        outside = (_ANOTHER_ROLE, "a key is an expression over `task`")
        return self._expression(path, source, self._of_task(outside))

    def formula(self, path: Path, source: str, name: str) -> Expression | None:
        """Compile an expression of a role's reward, which may read all fields of the task, and the turns of
        all roles on its branch."""
        counts = self._on_branch(name)
        scope = TemplateScope(
            {**counts, **self._linked(counts, name)},
            tuple(self.spec.roles),
            None,  # the fields of the task that a reward reads are compared with the data in any case
            fields=TURN_FIELDS,
            self_fields=self._fields_of_self(name),
            arguments=self._arguments(name),
            values=OF_A_TURN,
            is_after=True,
            beside=self._beside,
        )
        return self._expression(path, source, scope)

    def metric(self, path: Path, source: str) -> Expression | None:
        """Compile a metric: an expression over the last turns of all roles and the loops' rounds; None if the
        expression has a fault."""
        counts = self._counts()
        scope = TemplateScope(
            {**counts, **self._linked(counts)},
            tuple(counts),
            fields=TURN_FIELDS,
            values=("step", *self.spec.loops),
            is_after=True,
            beside=self._beside,
        )
        return self._expression(path, source, scope)

    def _counts(self) -> dict[str, int]:
        """Return the number of instances of each role; in a graph with a fault, the number in the spec."""
        made = self.instances
        return {it: role.count if made is None else len(made[it]) for it, role in self.spec.roles.items()}

    def _on_branch(self, name: str) -> dict[str, int]:
        """Return for each role the largest number of its instances on one branch of role `name`.

        For `name` itself, all instances count.
        """
        instances = self.instances
        if instances is None:  # the graph has a fault: add no findings that may follow from it
            return {**dict.fromkeys(self.spec.roles, 1), name: self.spec.roles[name].count}
        counts = {r: self._beside(name, r, len(instances[r])) for r in self.spec.roles}
        return {**counts, name: len(instances[name])}

    def _linked(self, counts: Mapping[str, int], name: str | None = None) -> dict[str, int]:
        """Return the names of further turns that an expression may read, such as `judge.history` of a role in
        a loop, each with its number of instances.

        Args:
            counts: Number of instances of each role that the expression reads.
            name: The role whose reward is the expression; None for an expression over the episode.
        """
        links: dict[str, int] = {}
        for looped_role in filter(self.spec.loops_around, counts):
            links |= {f"{looped_role}.history": MANY, f"{looped_role}.final": counts[looped_role]}
            if name is not None and self.spec.shared_loops(name, looped_role):
                links[f"{looped_role}.previous"] = counts[looped_role]
        return links

    def _beside(self, role: str, other: str, most: int) -> int:
        """Return the largest number of instances of role `other` on the branch of one instance of `role`.

        Args:
            role: A role, or a name of its turns, such as `judge.history`.
            other: Another such name.
            most: Number of instances, if the branch does not limit it.
        """
        (role, _, _), (other, _, link) = role.partition("."), other.partition(".")
        if self.instances is None or most == 1 or link == "history":
            return most
        other_instances, branch = self.instances[other], Edge(join="branch")
        return max((len(joined(branch, i, other_instances)) for i in self.instances[role]), default=0)

    def likely(self, path: Path, source: str, name: str, roles: Sequence[str]) -> Template | None:
        """Compile the text of a likelihood, which may read all fields of the task, and the turns of `roles`
        that the reward of role `name` reads."""
        scope = TemplateScope(
            {role_name: self._seen(name, role_name, Edge(join="branch")) for role_name in roles},
            tuple(self.spec.roles),
            self_fields=self._fields_of_self(name),
            arguments=self._arguments(name),
            text="the text of a likelihood",
            values=OF_A_TURN[:-1],
        )
        return self._read(read_text, path, source, scope)

    def _of_task(self, outside: tuple[str, str]) -> TemplateScope:
        """Return the TemplateScope of an expression over the task, with the message and the hint for a role
        that it may not read."""
        return TemplateScope({}, tuple(self.spec.roles), self.columns, self.hidden, outside=outside)

    def _label_files(self, hidden: frozenset[str]) -> tuple[FilePath, ...]:
        """Return the files of tasks that hold fields in `hidden`."""
        return tuple(file for file, labels in self.labels.items() if labels & hidden)

    def _around(self, name: str) -> TemplateScope:
        """Return the TemplateScope of a role's prompt, system and `when`."""
        role, roles = self.spec.roles[name], self.spec.roles
        edges = [(key, needed_role, edge) for key, needed_role, edge in role.edges if needed_role in roles]
        counts = {key: self._seen(name, needed_role, edge) for key, needed_role, edge in edges}
        called_roles = {needed_role: key for key, needed_role, _ in edges if needed_role not in counts}
        hidden_fields = self.hidden - {*role.sees}
        return TemplateScope(
            counts,
            tuple(roles),
            self.columns,
            hidden_fields,
            self._label_files(hidden_fields),
            self_fields=self._fields_of_self(name),
            arguments=self._arguments(name),
            called=called_roles,
            example_fields=self.example_fields,
        )

    def _arguments(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a role's arguments; None for a role that is not called."""
        tool = self.spec.roles[name].callable
        return tuple(tool.arguments) if tool else None

    def _fields_of_self(self, name: str) -> tuple[str, ...]:
        """Return the fields of `self` that a role has, some because it is in a loop, plays a game or is
        called."""
        loops = self.spec.loops_around(name)
        return (
            *checks.OF_SELF,
            *(checks.IN_A_LOOP if loops else ()),
            *(checks.IN_AN_INNER_LOOP if len(loops) > 1 else ()),
            *(checks.WITH_AN_ENVIRONMENT if self.spec.env_loop_of(name) else ()),
            *(checks.IN_A_CALL if self.spec.roles[name].callable else ()),
        )

    def _seen(self, name: str, other: str, edge: Edge) -> int:
        """Return the largest number of instances of `other` that one instance of `name` reads by `edge`; MANY
        for a history."""
        if edge.round == "history":
            return MANY
        if self.instances is None:  # the graph has a fault: add no findings that may follow from it
            return self.spec.roles[other].count if edge.join == "all" else 1
        other_instances = self.instances[other]
        own_instances = [i for reader in self.spec.readers_of(name) for i in self.instances[reader]]
        return max((len(joined(edge, i, other_instances)) for i in own_instances), default=0)

    def until(self, name: str) -> Expression | None:
        """Compile the condition `until` of a loop; on each branch it reads the roles of the loop."""
        path, source, roles = ("loops", name, "until"), self.spec.loops[name].until, self.spec.roles_in(name)
        branch = Edge(join="branch", round="previous")
        counts = {r: max(self._seen(role, r, branch) for role in roles) for r in roles}
        outside_hint = ("the end of the loop mentions {!r}, which is not in it", "add {} to its `roles`")
        scope = replace(self._of_task(outside_hint), needs=counts)
        condition = self._expression(path, source, scope, has_value=False, can_draw=True)
        if condition is not None and condition.mentions.isdisjoint(roles):
            message = f"the end of {name} depends on none of its roles"
            self.findings.append(Finding(path, message, f"something of {', '.join(roles)}"))
        return condition

    def loop_when(self, name: str) -> Expression | None:
        """Compile the condition `when` of a loop, which reads visible fields of the task."""
        outside_hint = (
            "the condition of a loop mentions {!r}, and it is computed before any role has run",
            "read the task alone, or give `when` to a role",
        )
        path, source = ("loops", name, "when"), self.spec.loops[name].when
        return self._expression(path, source, self._of_task(outside_hint), has_value=False, can_draw=True)

    def _template(self, path: Path, source: str | None, around: TemplateScope) -> Template | None:
        """Compile a text of the spec, or the file that it names; on failure add findings and return None."""
        return self._read(partial(read_template, self.folders), path, source, around)

    def _expression(
        self, path: Path, source: str | None, around: TemplateScope, **further: bool
    ) -> Expression | None:
        """Compile the expression at `path` of the spec; on failure add findings and return None.

        `further` has fields of the TemplateScope to replace.
        """
        around = replace(around, text="this expression", is_condition=True, **{"has_value": True, **further})
        return self._read(read_expression, path, source, around)

    def _read(
        self, read: Reader[TextT], path: Path, source: str | None, around: TemplateScope
    ) -> TextT | None:
        """Compile a text by `read`; on failure add findings and return None.

        Syntax nodes count towards the limit on all templates of a spec; a faulty text counts as a tenth of
        the limit on a single template.
        """
        if source is None or self.compiled > SPEC_TEMPLATES.most:
            return None
        text, findings = read(path, source, around)
        self.findings += findings
        self.compiled += text.parts if text else PROMPT_PARTS.most // 10
        if self.compiled > SPEC_TEMPLATES.most:
            message = "the templates and conditions of the spec together are too large"
            self.findings.append(Finding(path, message, f"at most {SPEC_TEMPLATES}"))
        return text


_IN_BRACES = re.compile(r"(?<![{\\\w])\{ *(\w+)((?:\.\w+)*) *\}(?!\})")


def _single_braces(path: Path, template: Template, around: TemplateScope) -> Iterator[Finding]:
    """Warn of a name in single braces, as Python's formats have it, that the template reads nowhere."""
    fields = {*(around.columns or ())} - around.hidden
    for match in _IN_BRACES.finditer(template.source):
        name, path_rest = match.groups()
        intended = f"task.{name}" if name in fields and not path_rest else f"{name}{path_rest}"
        if intended.split(".")[0] in ("task", *around.needs) and not {intended, name} & template.mentions:
            brace_text, position = match[0], match.start()
            yield Finding(
                path,
                f"`{brace_text}` is text here: a name stands in two braces",
                hint=f"write {{{{ {intended} }}}}",
                severity="warning",
                word=brace_text,
                offset=position,
                place=template.place_of(position, brace_text),
                code="template",
            )
