"""Resolution of all names in a spec: registry items, data sets and templates, or findings.

No other file looks names of a spec up in the registries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any, TypeVar

from rolegraph.engine import vocabulary
from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.graph import unknown_role
from rolegraph.engine.compile.lineage import Instances, pairs_of
from rolegraph.engine.compile.policies import answering
from rolegraph.engine.compile.resolve import locate_model, resolve, validate_option
from rolegraph.engine.compile.role_plan import (
    EpisodeExpression,
    MetricPlan,
    Permission,
    ResolvedLikelihood,
    ResolvedRole,
    RunPlan,
    SignalPlan,
    StateKey,
)
from rolegraph.engine.compile.structure import graph_of, reachable
from rolegraph.engine.compile.teachers import TeacherResolver
from rolegraph.engine.compile.texts import TextReader, columns_of
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.prompts import Expression, is_number
from rolegraph.engine.records.files import is_same
from rolegraph.engine.spec import Finding, ModelRef, Path, Role, Spec
from rolegraph.engine.spec.loader import LoadedSpec
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.vocabulary import EXPRESSION, ItemCall, Registry
from rolegraph.engine.vocabulary.items import RIGHT, judged_by

ItemT = TypeVar("ItemT", bound=vocabulary.Item)
Rewards = Mapping[str, vocabulary.Reward | None]
"""Resolved rewards by role."""


def judged(rewards: Rewards) -> frozenset[str]:
    """Return the roles that can be right or wrong: their reward judges the answer or passes on such a
    verdict."""
    judging_roles = [name for name, reward in rewards.items() if reward and reward.facts.judges]
    passing = graph_of({name: reward.facts.verdicts if reward else () for name, reward in rewards.items()})
    return frozenset(reachable(passing, judging_roles))


SPLITS: tuple[vocabulary.Split, ...] = ("train", "validation")


def _numbers(path: Path, verdict: Expression | None, what: str) -> Iterator[Finding]:
    """Find a verdict, which must be true or false, whose value can only be a number.

    Args:
        path: Path of the verdict in the spec.
        verdict: The expression; None without one.
        what: Meaning of the verdict for the message, such as "an answer is right or not".
    """
    if verdict is not None and is_number(verdict):
        message = f"{verdict.source} is a number, and {what}"
        hint = "compare it: … >= 0.5; of several instances, write all(…) or any(…)"
        yield Finding(path, message, "true or false", hint, word=verdict.source)


class ResolvedNames:
    """Resolved names of a spec, with all findings; None for no name, or for a name with a finding.

    Args:
        spec: The parsed spec.
        instances: The instances of each role; None where the graph has a fault.
        loaded: The spec as it was loaded, with the folders of its models, templates and data.
        allow: The permissions that a person gave.
    """

    def __init__(
        self, spec: Spec, instances: Instances | None, loaded: LoadedSpec, allow: Sequence[str]
    ) -> None:
        self.spec, self.instances, self.loaded, self.allow = spec, instances, loaded, allow
        sizes = {name: len(role_instances) for name, role_instances in (instances or {}).items()}
        self.counts = {name: sizes.get(name, role.count) for name, role in spec.roles.items()}
        """Number of instances of each role."""
        self.interpreter = vocabulary.python_interpreter(allow)
        """Interpreter of Python for the items that run programs."""
        self.findings: list[Finding] = []
        self.used: dict[tuple[Registry[Any], str], None] = {}
        """Keys are (registry, name) of each vocabulary item in use, also of items inside other items."""
        self.permissions: list[Permission] = []
        """Permissions that the vocabulary items need."""
        self.rewards: Rewards = {name: self._reward(name, role) for name, role in spec.roles.items()}
        self.tools_of = cache(self._tools)
        self.data = self._datasets()
        labels = {label for reward in self.rewards.values() if reward for label in reward.facts.labels}
        self.hidden = frozenset(labels.union(spec.data.hidden, *(d.hidden for d in self.data.values())))
        """Task fields that prompts do not see."""
        example_fields = self._add_examples()
        hidden_by_file = {d.file: self.hidden.intersection(d.columns) for d in self.data.values() if d.file}
        columns, turns = columns_of(self.data), turns_read(spec)
        self.texts = TextReader(
            spec=spec,
            instances=instances,
            folders=loaded.folders,
            columns=columns,
            hidden=self.hidden,
            labels=hidden_by_file,
            turns_read=turns,
            findings=self.findings,
            example_fields=example_fields,
        )
        self.roles = {name: self._role(name, reward) for name, reward in self.rewards.items()}
        self.untils = {name: self.texts.until(name) for name in spec.loops}
        self.loop_whens = {name: self.texts.loop_when(name) for name in spec.loops}
        self.environments = {name: self._environment(name) for name in spec.env_loops()}
        self.metrics = {name: self._metric(name, call) for name, call in spec.episode.metrics.items()}
        self.correct = self._correct()

    def _role(self, name: str, reward: vocabulary.Reward | None) -> ResolvedRole:
        role, texts = self.spec.roles[name], self.texts
        tool = self._tool(name, role)
        prompt, system = (None, None) if tool else texts.prompts(name)
        examples = texts.example_answer(name, prompt)
        value = texts.value(name, tool) if tool else None
        self._check_quoted(("roles", name, "run"), tool, role)
        for index, tool_call in enumerate(self.tools_of(name)):
            self._check_quoted(("roles", name, "tools", index), tool_call, role)
        run, parser = None, self._parser(name, role)
        if tool and role.run:
            pairs, reader = pairs_of(self.spec, self.instances, name, tool), parser if role.parses else None
            run = RunPlan(role.run.name, tool, value, pairs, reader, self._session(name, tool))
        path, signal = ("roles", name, "estimator"), self._signal(name, role.signal)
        estimator = self._build(vocabulary.estimators, role.estimator, path)
        key = None
        if estimator and role.estimator and estimator.key:
            key = texts.state_key((*path, *role.estimator.path_of(("by",))), estimator.key)
        return ResolvedRole(
            name=name,
            spec=role,
            prompt=prompt,
            system=system,
            examples=examples,
            parser=parser,
            reward=reward,
            estimator=estimator,
            signal=signal,
            loss=self._loss(name, role, estimator, signal),
            run=run,
            tools=tuple(self.tools_of(name)),
            when=texts.when(name),
            reset=texts.reset(name),
            formulas=self._formulas(name, role.reward, reward),
            likelihoods=self._likelihoods(name, reward),
            groupings=texts.groupings(name),
            state_key=key and StateKey(key, self.hidden),
        )

    # vocabulary

    def _parser(self, name: str, role: Role) -> vocabulary.Parser | None:
        path = ("roles", name, "parser")
        parser = self._build(vocabulary.parsers, role.parser, path)
        for needed_role in parser.roles if parser else ():
            self._check_needed(name, needed_role, path, "picks from")
        return parser

    def _reward(self, name: str, role: Role) -> vocabulary.Reward | None:
        path = ("roles", name, "reward")
        other_role = next((n for n in reversed([*self.spec.roles]) if n != name), None)
        examples = f"{other_role}.reward, 0.5 * {other_role}.reward, action == {other_role}.action"
        expected_forms = f", or an expression: {examples if other_role else 'action == task.answer'}"
        reward = self._build(vocabulary.rewards, role.reward, path, expected_forms)
        if reward and role.right is not None:
            right_reward = vocabulary.rewards.build(ItemCall(EXPRESSION, role.right, has_value=True))
            reward = judged_by(reward, right_reward)
        # An unknown name in an expression is found where the expression is compiled.
        is_expression = bool(reward and reward.formulas)
        for other_role in reward.read_roles if reward else ():
            if not is_expression or other_role in self.spec.roles:
                self.findings += unknown_role(self.spec, other_role, path)
        return reward

    def _formulas(
        self, name: str, call: ItemCall | None, reward: vocabulary.Reward | None
    ) -> Mapping[str, Expression | None]:
        """Compile the expressions of a role's reward, by their text; None for an expression with a
        finding."""
        expressions: dict[str, Expression | None] = {}
        if reward is None or call is None:
            return expressions
        for text, formula_path in reward.formulas:
            if text not in expressions:
                path: Path = ("roles", name, "reward", *call.path_of(formula_path))
                if text == self.spec.roles[name].right and formula_path == RIGHT:
                    path = ("roles", name, "right")
                expressions[text] = self.texts.formula(path, text, name)
        right_expression = expressions.get(self.spec.roles[name].right or "")
        self.findings += _numbers(("roles", name, "right"), right_expression, "an answer is right or not")
        return expressions

    def _likelihoods(
        self, name: str, reward: vocabulary.Reward | None
    ) -> Mapping[vocabulary.Likelihood, ResolvedLikelihood]:
        """Compile the texts whose log-probabilities a role's reward reads, and resolve their models."""
        path: Path = ("roles", name, "reward")
        texts: dict[vocabulary.Likelihood, ResolvedLikelihood] = {}
        for likelihood in reward.likelihoods if reward else ():
            text = None
            if self.spec.roles.keys() >= {*likelihood.roles}:  # else the role has a finding
                text = self.texts.likely(path, likelihood.of, name, likelihood.roles)
            model_value = json.loads(likelihood.model)
            if model_value in ("policy", "base"):
                texts[likelihood] = ResolvedLikelihood(text, model_value)
            else:
                expected = "policy, base, or a local or a tinker model"
                ref, findings = validate_option(ModelRef, model_value, path, "model", expected)
                self.findings += findings
                if ref is not None:
                    ref, findings = locate_model(self.loaded, ref, path)
                    self.findings += findings
                    texts[likelihood] = ResolvedLikelihood(text, ref)
            self.findings += self._scoring_findings(name, path, texts.get(likelihood))
        return texts

    def _scoring_findings(
        self, name: str, path: Path, likelihood: ResolvedLikelihood | None
    ) -> Iterator[Finding]:
        """Find a likelihood whose role has no chat to put its text into, and models that cannot score a
        text's tokens."""
        role = self.spec.roles[name]
        if role.run is not None:
            message = f"{name} has no model, and so no chat in which a text could be likely"
            yield Finding(path, message, "a role with a prompt", word="likelihood")
        elif likelihood is not None:
            refs = (
                [likelihood.model]
                if isinstance(likelihood.model, ModelRef)
                else answering(self.spec, name, self.counts)
            )
            for provider in dict.fromkeys(ref.provider for ref in refs if not ref.is_trainable):
                message = (
                    f"a likelihood needs log-probabilities of given tokens, which {provider} does not give"
                )
                hint = "name another that scores: model: local, or tinker:NAME"
                yield Finding(path, message, "a local or a tinker model", hint, word="likelihood")

    def _environment(self, name: str) -> vocabulary.Environment | None:
        """Resolve the environment of a loop and check its number of players."""
        call, path = self.spec.loops[name].env, ("loops", name, "env")
        environment = self._build(vocabulary.environments, call, path)
        if environment is None or call is None or self.instances is None:
            return environment
        counts = {role: self.counts[role] for role in self.spec.players_of(name)}
        least_players, upper, number = environment.min_players, environment.max_players, sum(counts.values())
        if not least_players <= number <= upper:
            player_range = f"{least_players}" if least_players == upper else f"{least_players} to {upper}"
            plural = "player" if player_range == "1" else "players"
            given_players = ", ".join(f"{role} × {count}" for role, count in counts.items())
            message = f"{call.name} takes {player_range} {plural}, and {name} has {number}: {given_players}"
            hint = "name those that move: players: […]" if number > upper else "raise a player's `count`"
            self.findings.append(Finding(path, message, f"{player_range} {plural}", hint, word=call.name))
        return environment

    def _tools(self, name: str) -> list[vocabulary.Tool | None]:
        """Resolve the tools that a role's model may call; the model gives a tool's argument, not the spec."""
        role, tools = self.spec.roles[name], list[vocabulary.Tool | None]()
        for index, call in enumerate(role.tools):
            path: Path = ("roles", name, "tools", index)
            tool = self._build(vocabulary.tools, call, path)
            tools.append(tool)
            if tool is None or tool.callee:
                continue
            if tool.agent is not None:
                self._check_agent(name, call, path)
            elif tool.open is None:
                action_text = "picks from" if tool.choose else "writes down"
                message = f"{call.name} {action_text} a role's inputs and cannot be called by a model"
                if tool.session:
                    message = f"{call.name} calls a function of another role, and no model calls it"
                expected = "a tool that does something"
                hint = f"give it a role of its own, with `run: {call.name}`, that {name} needs"
                self.findings.append(Finding(path, message, expected, hint, word=call.name))
            elif tool.source is not None:
                message = f"the model sets the argument of {call.name} in each call"
                self.findings.append(Finding(path, message, f"{call.name}, and its options", word=call.name))
        if role.tools and role.max_calls == 1 and not role.callees:
            path = ("roles", name, "tools")
            message = f"{name} may call its model once, so the model never sees the result of a tool call"
            hint = "raise `max_calls`, unless only the call itself is of interest"
            self.findings.append(Finding(path, message, "max_calls: 2 or more", hint, "warning", at_key=True))
        if role.max_calls > 1 and not role.tools:
            message = f"{name} has no tools, so a turn calls its model once"
            hint = "give it `tools`, or remove `max_calls`; for several turns use `loops`"
            self.findings.append(Finding(("roles", name, "max_calls"), message, "", hint, at_key=True))
        return tools

    def _check_agent(self, name: str, call: ItemCall, path: Path) -> None:
        """Add a fault for each key that a role may not have because an agent program writes its chat, such as
        `system`.

        Args:
            name: The role.
            call: The agent program.
            path: Key of the agent program in the spec.
        """
        role = self.spec.roles[name]
        other_keys = {"system": role.system, "examples": role.examples, "memory": role.memory}
        for key in (key for key, value in other_keys.items() if value is not None):
            message = f"{call.name} writes the messages to the model of {name}, except for its prompt"
            self.findings.append(Finding(("roles", name, key), message, f"no `{key}`", at_key=True))
        if len(role.tools) > 1:
            message = f"{call.name} offers its own tools to the model of {name}"
            self.findings.append(Finding(path, message, f"{call.name} alone", word=call.name))

    def _signal(self, name: str, call: ItemCall | None) -> SignalPlan | None:
        """Resolve a signal with the teachers, the gate and the template that it names."""
        path = ("roles", name, "signal")
        signal = self._build(vocabulary.signals, call, path)
        if signal is None or call is None:
            return None
        teacher_path = (*path, *call.path_of(("teacher",)))
        resolver = TeacherResolver(
            self.spec, self.counts, self.loaded, self.texts, name, teacher_path, self.findings
        )
        teachers, chooser, default_teacher = resolver.resolve(signal.teacher)
        gate = self.texts.gate(name, (*path, *call.path_of(("gate",))), signal.gate)
        demonstration_path = (*path, *call.path_of(("demonstration",)))
        demonstration = self.texts.demonstration(demonstration_path, signal.demonstration)
        return SignalPlan(signal, teachers, chooser, default_teacher, demonstration, gate)

    def _loss(
        self,
        name: str,
        role: Role,
        estimator: vocabulary.Estimator | None,
        signal: SignalPlan | None,
    ) -> vocabulary.Loss | None:
        """Resolve the loss of a role: its own, or the default of its signal or estimator.

        A signal that adds advantages to an estimator's leaves the loss to the estimator. A default is part of
        the item that names it, and is not recorded as an item in use.
        """
        if role.loss is not None:
            return self._build(vocabulary.losses, role.loss, ("roles", name, "loss"))
        default = estimator.loss if estimator else "importance_sampling"
        if signal and (signal.demonstration or not estimator):
            default = signal.signal.loss
        build_loss = partial(vocabulary.losses.build, ItemCall(default))
        loss, findings = resolve(build_loss, ("roles", name, "estimator"))
        self.findings += findings
        return loss

    def _example_metric(self) -> str:
        """Return examples of metrics over the spec's own roles, for a hint."""
        first_name, *_, last_name = (*self.spec.roles, *self.spec.roles)
        return f"{last_name}.right, mean({first_name}.reward)"

    def _metric(self, name: str, call: ItemCall) -> MetricPlan | None:
        path = ("episode", "metrics", name)
        if call.is_bare and call.value in vocabulary.metrics.names():  # a function of the episode
            call = ItemCall(call.value)
        if call.is_bare:
            expression = self._of_episode(path, str(call.value))
            return expression and MetricPlan(expression.expression, expression.roles)
        metric = self._build(vocabulary.metrics, call, path, f", or an expression: {self._example_metric()}")
        if metric and metric.role is not None:
            self.findings += unknown_role(self.spec, metric.role, path)
        return metric and MetricPlan(metric, (metric.role,) if metric.role else ())

    def _of_episode(self, path: Path, text: str) -> EpisodeExpression | None:
        """Compile an expression over the episode; on failure add findings and return None."""
        readable_names = {**self.spec.roles, **self.spec.loops}
        reading_reward = vocabulary.rewards.build(ItemCall(EXPRESSION, text, has_value=True))
        if unknown_names := [name for name in reading_reward.read_roles if name not in readable_names]:
            finding = name_not_found("role or loop", unknown_names[0], readable_names, path, ("roles",))
            hint = finding.hint or f"write an expression: {self._example_metric()}"
            self.findings.append(replace(finding, hint=hint, offset=0))
            return None
        self.findings += self._unjudged(path, reading_reward)
        expression = self.texts.metric(path, text)
        roles = tuple(name for name in reading_reward.read_roles if name in self.spec.roles)
        return expression and EpisodeExpression(expression, roles, reading_reward.facts.compares_verdicts)

    def _correct(self) -> list[EpisodeExpression | None]:
        """Compile the expressions of `episode.correct`.

        Without `episode.correct`, an episode is correct if the only role that can be right is right.
        """
        path, judged_roles = ("episode", "correct"), judged(self.rewards)
        verdicts = {
            name: f"all({name}.right)" if self.counts[name] > 1 else f"{name}.right"
            for name in self.spec.roles
        }
        sources = self.spec.episode.correct or [verdicts[name] for name in verdicts if name in judged_roles]
        if not self.spec.episode.correct and len(sources) > 1:
            names = " and ".join(name for name in verdicts if name in judged_roles)
            message = f"{names} can be right, and nothing says who decides whether an episode is correct"
            hint = f"write episode: {{correct: {sources[-1]}}}, or {' or '.join(sources[:-1])}"
            self.findings.append(Finding(path, message, "an expression", hint, at_key=True))
            return []
        for name in (text for text in sources if text in verdicts):
            message = f"{name} is a role, and an episode is correct by an expression"
            self.findings.append(Finding(path, message, hint=f"write {verdicts[name]}", word=name))
        expressions = [self._of_episode(path, text) for text in sources if text not in verdicts]
        for e in expressions:
            self.findings += _numbers(path, e and e.expression, "an episode is correct or not")
        return expressions

    def _unjudged(self, path: Path, reads: vocabulary.Reward) -> Iterator[Finding]:
        """Warn of an expression that reads the reward or the verdict of a role without a reward."""
        for read_role in reads.roles:
            if read_role in self.spec.roles and self.spec.roles[read_role].reward is None:
                message = f"{read_role} has no reward, so nothing says what it earned or whether it is right"
                yield Finding(path, message, "a role with a reward", severity="warning", word=read_role)

    def _tool(self, name: str, role: Role) -> vocabulary.Tool | None:
        """Resolve the tool that a role runs; None for a role with a model."""
        path = ("roles", name, "run")
        tool = self._build(vocabulary.tools, role.run, path)
        if tool is None or role.run is None:
            return None
        for needed_role in tool.roles:
            self._check_needed(name, needed_role, path, "reads")
        message, expected = "", ""
        if tool.choose is not None and not role.needs:
            message, expected = f"{role.run.name} picks from what {name} needs, which is nothing", "`needs`"
        elif tool.agent is not None:
            message = f"{role.run.name} asks the model of a role, and {name} has none"
            expected = f"a role with a prompt and `tools: [{role.run.name}: …]`"
        elif tool.callee:
            message = f"{name} has no model that could call {tool.callee}"
            expected = f"a role with a prompt and `tools: [{{role: {tool.callee}}}]`"
        elif tool.choose is None and tool.source is None and role.run.has_value:
            message = f"{role.run.name} offers functions to a model, and {name} has no model to call them"
            expected = f"a role with a prompt and `tools: [{role.run.name}: …]`"
        elif tool.choose is None and tool.source is None:
            message, expected = f"{role.run.name} needs an argument", f'{{{role.run.name}: "{{{{ … }}}}"}}'
        if message:
            self.findings.append(Finding(path, message, expected, word=role.run.name))
        return tool

    def _session(self, name: str, tool: vocabulary.Tool) -> tuple[vocabulary.Tool, ...]:
        """Return the tools of the role whose function `tool` calls (`run: function`); empty for any other
        tool.

        Adds a fault if that role has no tools.
        """
        roles = {key: needed_role for key, needed_role, _ in self.spec.roles[name].edges}
        if tool.session is None or (needed_role := roles.get(tool.session.role, "")) not in self.spec.roles:
            return ()
        tools = [candidate for candidate in self.tools_of(needed_role) if candidate and candidate.open]
        if not tools:
            message = f"{name} calls {tool.session.function} of the tools of {needed_role}, which has none"
            path, expected = ("roles", name, "run"), f"a role with `tools` that have {tool.session.function}"
            self.findings.append(Finding(path, message, expected, word=tool.session.role))
        return tuple(tools)

    def _check_quoted(self, path: Path, tool: vocabulary.Tool | None, role: Role) -> None:
        """Add a fault where a tool quotes a file of tasks to `role`, and that file has hidden fields of the
        tasks."""
        quoted_files = [*tool.files.items()] if tool else []
        for (file, fields), (tasks, hidden_fields) in product(quoted_files, self.texts.labels.items()):
            leaked_fields = sorted(hidden_fields.intersection(fields).difference(role.sees))
            if leaked_fields and is_same(file, tasks):
                leaked_names = ", ".join(leaked_fields)
                message = f"{file.name} would leak the label: it holds the tasks, with hidden {leaked_names}"
                hint = f"take another file; a role that may see the field says `sees: [{leaked_names}]`"
                self.findings.append(Finding(path, message, hint=hint, word=file.name))

    def _check_needed(self, name: str, other: str, path: Path, verb: str) -> None:
        """Add a fault if role `name` reads role `other` without an entry for it in `needs`.

        Args:
            name: The role.
            other: The role that is read.
            path: Key of the item that reads `other`.
            verb: Verb of the message, such as `reads`.
        """
        needs = self.spec.roles[name].needs
        if other not in needs:
            known_as = [f"it is known as {key} there" for key, edge in needs.items() if edge.of == other]
            hint = (known_as or [f"add {other} to the `needs` of {name}"])[-1]
            message = f"{name} {verb} {other}, which is not in its `needs`"
            findings = [*unknown_role(self.spec, other, path)]
            rests_on: tuple[Path, ...] = (("roles", name, "needs"),)
            self.findings += findings or [Finding(path, message, "", hint, word=other, rests_on=rests_on)]

    def _build(
        self, registry: Registry[ItemT], call: ItemCall | None, path: Path, others: str = ""
    ) -> ItemT | None:
        """Build the vocabulary item that `call` names; on failure add findings and return None.

        Args:
            registry: Registry of the item's kind.
            call: Call in the spec; None without one.
            path: Path of the call in the spec.
            others: Text for messages about other values that a spec may write there.
        """
        arguments = {
            "folder": self.loaded.folders[0],
            "interpreter": self.interpreter,
            "allowed": tuple(self.allow),
        }
        context = {name: arguments[name] for name in registry.context}
        return None if call is None else self._make(partial(registry.build, call, **context), path, others)

    def _make(self, make: Callable[[], ItemT], path: Path, others: str = "") -> ItemT | None:
        """Return the item that `make` builds, and record its code and permissions; on failure add findings
        and return None."""
        with vocabulary.record_items(self.used):
            item, findings = resolve(make, path, others)
        self.findings += findings
        self.permissions += [Permission(name, path) for name in item.permissions] if item else []
        return item

    # data

    def _datasets(self) -> dict[vocabulary.Split, vocabulary.Dataset]:
        data: dict[vocabulary.Split, vocabulary.Dataset] = {}
        if self.spec.trains_on_seeds():
            train = self.spec.train
            counts = {"train": (train.steps or 1) * train.batch_size, "validation": train.validation.tasks}
            return {s: vocabulary.seed_tasks(s, counts[s]) for s in SPLITS}
        checks = {name: reward.facts.label_check for name, reward in self.rewards.items() if reward}
        for s in SPLITS:
            call = getattr(self.spec.data, s)
            if call is None:
                continue
            open_rows = partial(vocabulary.open_dataset, call, split=s, folder=self.loaded.folders[0])
            other_forms = ", or the path of a .jsonl, .csv, .tsv or .parquet file"
            dataset = self._make(open_rows, ("data", s), other_forms)
            if dataset is None:
                continue
            refused = [name for name in dataset.permissions if not vocabulary.is_allowed(name, self.allow)]
            dataset = vocabulary.labelled(dataset, checks, call.value if call.name == "file" else call.name)
            data[s] = vocabulary.withheld(dataset, refused) if refused else dataset
            for name, reward in self.rewards.items():
                for column in reward.task_fields if reward else ():
                    if column not in dataset.columns:
                        read_text = f"the reward of {name} reads task.{column}"
                        message = f"{read_text}, which the {s} data does not have"
                        expected = f"data with that field; it has {', '.join(dataset.columns)}"
                        reward_path, hint = ("roles", name, "reward"), did_you_mean(column, dataset.columns)
                        self.findings.append(Finding(reward_path, message, expected, hint, word=column))
        if (split_rule := self.spec.data.split) is None:
            return data
        conflict = "no data.train" if self.spec.data.train is None else "a data.validation"
        if conflict != "a data.validation" or self.spec.data.validation is not None:
            message = f"split divides the rows of data.train, and there is {conflict}"
            expected = "data.train alone: validation takes its share of those rows"
            self.findings.append(Finding(("data", "split"), message, expected))
        if (all_rows := data.get("train")) is None:
            return {}
        open_part = partial(vocabulary.part_of, all_rows, share=split_rule.share, seed=split_rule.seed)
        return {s: open_part(s) for s in SPLITS}

    def _add_examples(self) -> tuple[str, ...] | None:
        """Add the examples of `data.examples` to the rows of each split, or add faults.

        Returns:
            The fields of an example; None for a spec without examples or with faults in them.
        """
        examples, train, columns = self.spec.data.examples, self.data.get("train"), columns_of(self.data)
        if examples is None or columns is None:
            return None
        path: Path = ("data", "examples")
        wrong_fields = [
            Finding(
                (*path, key), f"the data has no field {name!r}", "", did_you_mean(name, columns), word=name
            )
            for key, names in (("sees", examples.sees), ("by", [examples.by] if examples.by else []))
            for name in names
            if name not in columns
        ]
        if self.spec.data.train is None:
            message = "examples are rows of data.train, which the spec does not have"
            wrong_fields.append(Finding(path, message, "data.train", at_key=True))
        elif vocabulary.EXAMPLES in columns:
            message = f"the data has a field {vocabulary.EXAMPLES!r} of its own"
            wrong_fields.append(Finding(path, message, hint="rename the column", at_key=True))
        self.findings += wrong_fields
        if wrong_fields or train is None:
            return None
        hidden_fields = self.hidden.difference(examples.sees)
        shown_fields = frozenset(columns).difference(self.hidden, {"id"})
        pool = vocabulary.ExamplePool(
            train, examples.count, examples.seed, hidden_fields, shown_fields, examples.by
        )
        self.data.update([(s, vocabulary.with_examples(data, pool)) for s, data in self.data.items()])
        return tuple(column for column in columns if column not in {"id", *hidden_fields})
