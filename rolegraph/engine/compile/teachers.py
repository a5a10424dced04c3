"""Teachers of a role's signal: what the spec writes, resolved to weights and templates, or findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from rolegraph.engine.compile.policies import trained_policies
from rolegraph.engine.compile.resolve import locate_model, validate_option
from rolegraph.engine.compile.role_plan import StateKey, TeacherPlan
from rolegraph.engine.compile.texts import TextReader, not_hidden
from rolegraph.engine.spec import Finding, ModelRef, Path, Spec
from rolegraph.engine.spec.loader import LoadedSpec
from rolegraph.engine.spec.teacher import OWN, Teacher, TeacherChoice
from rolegraph.engine.spec.validation import name_not_found

M = TypeVar("M", bound=BaseModel)
ONE = ""
"""Key of the only teacher of a role whose teacher does not depend on the task."""
_EXPECTED = "base, a model such as tinker:NAME or local:FOLDER, or a mapping with policy, base or model"


@dataclass(slots=True)
class TeacherResolver:
    """Resolver of the teachers of one role, which collects their faults in `findings`."""

    spec: Spec
    counts: Mapping[str, int]
    """Number of instances of each role."""
    loaded: LoadedSpec
    texts: TextReader
    role: str
    path: Path
    """Key of the option `teacher`."""
    findings: list[Finding]

    def resolve(
        self, written: object
    ) -> tuple[Mapping[str, TeacherPlan], StateKey | None, TeacherPlan | None]:
        """Resolve the option `teacher` of a signal.

        Args:
            written: The option's value; None without a teacher.

        Returns:
            The teachers by the value that picks them (`ONE` for a single one), the expression that picks,
            and the teacher for any other value. Teachers with a finding are left out.
        """
        if written is None:
            return {}, None, None
        if not TeacherChoice.is_meant(written):
            teacher = self._read(Teacher, written)
            plan = teacher and self._plan(teacher, self.path)
            return ({ONE: plan} if plan else {}), None, None
        choice = self._read(TeacherChoice, written)
        if choice is None:
            return {}, None, None
        key_expression = self.texts.state_key((*self.path, "by"), choice.by)
        plans = {key: self._plan(t, (*self.path, "of", key)) for key, t in choice.of.items()}
        else_teacher = choice.otherwise
        else_plan = None if isinstance(else_teacher, str) else self._plan(else_teacher, (*self.path, "else"))
        valid_plans = {key: plan for key, plan in plans.items() if plan}
        return valid_plans, key_expression and StateKey(key_expression, self.texts.hidden), else_plan

    def _read(self, kind: type[M], written: object) -> M | None:
        value, findings = validate_option(kind, written, self.path, "teacher", _EXPECTED)
        self.findings += findings
        return value

    def _plan(self, teacher: Teacher, path: Path) -> TeacherPlan | None:
        findings_before = len(self.findings)
        model = self._model(teacher.model, (*path, "model")) if teacher.model else None
        policy = teacher.policy if teacher.base is None else teacher.base
        if policy:
            self.findings += self._of_policy(policy, (*path, "policy" if teacher.base is None else "base"))
        self.findings += self._shown(teacher.sees, (*path, "sees"))
        seen_fields = frozenset(teacher.sees)
        prompt = self.texts.teacher(self.role, (*path, "prompt"), teacher.prompt, seen_fields)
        system = self.texts.teacher(self.role, (*path, "system"), teacher.system, seen_fields)
        has_prompt = teacher.prompt is not None or teacher.system is not None
        role = self.spec.roles[self.role]
        if has_prompt and role.tools:
            message = f"{self.role} has tools, and a teacher with a prompt of its own sees none"
            hint = "leave `prompt` out, or the tools"
            self.findings.append(Finding(path, message, "", hint, word="prompt"))
        student_policies = role.policy_names(self.counts[self.role])
        if teacher.policy and not has_prompt and {*student_policies} == {teacher.policy}:
            message = f"the teacher of {self.role} is {self.role} itself, so its signal is 0"
            hint = f"give it a `prompt`, or take its start: base: {teacher.policy}"
            self.findings.append(Finding(path, message, "", hint, "warning", word="policy"))
        if any(finding.severity == "error" for finding in self.findings[findings_before:]):
            return None
        return TeacherPlan(model, policy or OWN, teacher.base is not None, prompt, system, seen_fields)

    def _model(self, ref: ModelRef, path: Path) -> ModelRef:
        ref, findings = locate_model(self.loaded, ref, path)
        self.findings += findings
        if not ref.is_trainable:
            message = (
                f"a teacher must give the log-probabilities of given tokens, which {ref.provider} does not"
            )
            self.findings.append(Finding(path[:-1], message, "a local or a tinker model", word=ref.provider))
        return ref

    def _of_policy(self, name: str, path: Path) -> Iterator[Finding]:
        """Yield a finding if the policy `name` is not in training."""
        trained_counts = trained_policies(self.spec, self.counts)
        if name in trained_counts:
            return
        if name in self.spec.policies:
            message = f"{name} is not in training, so it has no weights of a step"
            hint = "name what it is: model: …"
            yield Finding(path, message, f"one of {', '.join(trained_counts)}", hint, word=name)
        else:
            yield name_not_found("policy", name, [*trained_counts], path)

    def _shown(self, fields: Sequence[str], path: Path) -> Iterator[Finding]:
        """Find task fields in a teacher's `sees` that do not exist or are not hidden."""
        columns = self.texts.columns
        for field in fields:
            if columns is not None and field not in columns:
                hidden_columns = sorted(self.texts.hidden.intersection(columns))
                yield name_not_found("field of the task", field, hidden_columns, path)
            elif field not in self.texts.hidden:
                yield not_hidden(self.spec, field, path)
