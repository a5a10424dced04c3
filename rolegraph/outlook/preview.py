"""Renders the prompts of a plan without a model: its episodes run as usual, on made-up answers.

Input: a plan, a task, and optionally a recorded episode. Output: each role's prompts, rendered by the run's
own code. No model is called, tools return recorded or example results, no reward is computed, and hidden
fields contain their names; `stand_ins.py` has the replacements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.imitation import demonstrations
from rolegraph.engine.compile.leaving import disclosure_rule_of, without_quoting
from rolegraph.engine.compile.role_plan import EnvPlan
from rolegraph.engine.models import LimitedModel, Request
from rolegraph.engine.models.rates import policy_rate
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts import Expression
from rolegraph.engine.records import Episode, FailureMetadata, FailureName, Message, NodeId, Task
from rolegraph.engine.run.scheduler import run_episode
from rolegraph.engine.run.turn import EpisodeJob
from rolegraph.engine.spec import CALL_OF_A_ROLE, Edge, OnFailure
from rolegraph.engine.vocabulary import Function, Tool
from rolegraph.engine.vocabulary.isolation import Isolation
from rolegraph.outlook.stand_ins import (
    PLACEHOLDER,
    PreviewModel,
    example_answer,
    example_run,
    example_tool,
    hidden_value,
    lenient_parser,
    still_environment,
)

MOST = 6
"""Largest number of prompts kept for one role and task."""
ROUNDS = 3
"""Number of rounds of a loop whose prompts are kept; later rounds continue in the same way."""
MOST_WAYS = 8
"""Largest number of runs of one task, each with other example answers of the parsers."""
_MARK = re.compile(r"\[(\w+)(?: \d+)?(?:, round \d+)?(?: of outer round \d+)?\]")


class SentPrompt(NamedTuple):
    """Prompt, and the turns that send the same prompt."""

    nodes: Sequence[NodeId]
    """Turns that send this prompt; prompts that differ only by numbers in made-up answers count as equal."""
    endpoint: int
    """Endpoint that the first turn calls, as a position in the plan's endpoints."""
    messages: Sequence[Message]
    functions: Sequence[Function] = ()
    """Functions that the model may call."""
    note: str = ""
    """Remark on the prompt, such as that no turn reached it."""
    pieces: Sequence[tuple[str, bool]] = ()
    """Prompt in the model's chat template, as (part, whether it is a special token)."""
    tokens: int | None = None
    """Length in tokens; None without the model's tokenizer."""


@dataclass(slots=True)
class RolePrompts:
    """Prompts that `preview` shows for one role on one task."""

    role: RolePlan
    asked: list[SentPrompt] = field(default_factory=list[SentPrompt])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further facts by name: loop, condition, tools."""
    more: int = 0
    """Number of prompts left out: those of rounds after `ROUNDS`, and those beyond `MOST`."""
    values: list[str] = field(default_factory=list[str])
    """Arguments of the tool that the role runs instead of a model."""
    problems: list[str] = field(default_factory=list[str])
    """Failures, such as prompts that cannot be rendered."""

    def add_value(self, value: str) -> None:
        """Add an argument of a call of the role's tool, unless it is listed already."""
        if _unmarked(value) not in map(_unmarked, self.values) and len(self.values) < MOST:
            self.values.append(value)

    @property
    def records(self) -> Sequence[Mapping[str, object]]:
        """Rows of plain data, one for each message of a prompt, each argument of a tool, and each problem."""
        messages: list[Mapping[str, object]] = [
            {
                "turns": self.who(prompt),
                "speaker": message["role"],
                "content": message_text(message),
                "tokens": prompt.tokens,
                "note": prompt.note,
            }
            for prompt in self.asked
            for message in prompt.messages
        ]
        other_texts = (("tool", self.values), ("problem", self.problems))
        return messages + [
            {"speaker": speaker, "content": text} for speaker, texts in other_texts for text in texts
        ]

    def who(self, asked: SentPrompt) -> str:
        """Return the names of a prompt's turns, such as `solver 1–2, round 2`."""
        name = self.role.name
        if self.role.count > 1:
            name += f" {_numbers(node.index for node in asked.nodes)}"
        return name if self.role.loop is None else f"{name}, {self._rounds(asked)}"

    def _rounds(self, asked: SentPrompt) -> str:
        """Return the rounds of a prompt, such as `rounds 2–3`, or in a nested loop `round 1 of outer rounds
        1–2`."""
        inner_rounds: dict[int, list[int]] = {}
        for node in asked.nodes:
            number, outer = self.role.round_at(node.round)
            inner_rounds.setdefault(outer, []).append(number)
        alike: dict[str, list[int]] = {}
        for outer, numbers in inner_rounds.items():
            alike.setdefault(_counted("round", numbers), []).append(outer)
        if not self.role.is_nested:
            return ", ".join(alike)
        return ", ".join(f"{rounds} of {_counted('outer round', outer)}" for rounds, outer in alike.items())


def message_text(message: Message) -> str:
    """Return a message as text: its reasoning, content and tool calls, one below the other."""
    calls = [
        f"{call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join(filter(None, (message.get("reasoning"), message["content"], *calls)))


class TaskPrompts(NamedTuple):
    """Prompts of all roles on one task."""

    task: Task
    """Task in which each hidden field contains its name."""
    hidden: Sequence[str]
    roles: Sequence[RolePrompts]


async def preview_task(plan: Plan, task: Task, recorded: Episode | None = None) -> TaskPrompts:
    """Render the prompts of each role on a task.

    Args:
        plan: The workflow.
        task: The task; values of its hidden fields are replaced by their names.
        recorded: Episode whose answers are used. A missing answer, or an answer that may quote a hidden
            field, is made up.

    Returns:
        The prompts by role. If no example answer leads to a prompt, its condition is the note.
    """
    hidden_fields = [key for key in task if key in plan.hidden]
    shown_fields = {
        key: hidden_value(value, key) if key in plan.hidden else value for key, value in task.items()
    }
    runs = _Runs(plan, shown_fields, recorded and without_quoting(recorded, disclosure_rule_of(plan)))
    parsers = [role.parser for role in plan.roles if role.spec.parses and recorded is None]
    for way in range(min(max([1, *(_words(parser.gives) for parser in parsers)]), MOST_WAYS)):
        await runs.run(way)
    if plan.may_skip:
        ways = min(max([1, *(len(parser.examples) for parser in parsers)]), MOST_WAYS)
        for way in (*range(1, ways), None) if ways > 1 else ():
            await runs.run(way, only_new=True)
        await runs.run(0, only_new=True, ignores_conditions=True)
    return TaskPrompts(shown_fields, hidden_fields, runs.roles)


def _words(shape: Mapping[str, Any]) -> int:
    """Return the number of words that an action, or one of its fields, may be, because a prompt may depend on
    each word."""
    schemas = (shape, *cast("Mapping[str, Any]", shape.get("properties", {})).values())
    return max(len(schema.get("enum", ())) for schema in schemas if schema not in (True, False))


async def made_up(
    plan: Plan, task: Task, answer: str = "", *, texts: Mapping[str, str] = MappingProxyType({})
) -> Episode:
    """Run an episode without a model and return it.

    Args:
        plan: The workflow.
        task: The task, with its hidden fields.
        answer: Text that replaces the placeholder in the example of each role's parser; the result is the
            role's answer.
        texts: Whole answers by role, instead of the parser's example.
    """
    return await _Runs(plan, task, None, texts).run(0, answer=answer)


class _Runs:
    """Episodes of one task that run without a real model, to collect the prompts for `preview`."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        recorded: Episode | None,
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._plan, self._task, self._recorded, self._texts = plan, task, recorded, texts
        self._replay = Replay.from_episodes([recorded], any_prompt=True) if recorded else None
        self._answering = {it.name for it in recorded.trajectories} if recorded else set[str]()
        """Names of the roles with a recorded answer."""
        self.roles = [RolePrompts(role, facts=facts_of(plan, role)) for role in plan.roles]
        self._by_name = {prompts.role.name: prompts for prompts in self.roles}
        self._seen: dict[str, dict[object, int]] = {prompts.role.name: {} for prompts in self.roles}
        """Position in `asked` of each prompt, by role; -1 for a prompt that is left out."""

    async def run(
        self, way: int | None, *, only_new: bool = False, ignores_conditions: bool = False, answer: str = ""
    ) -> Episode:
        """Run one episode with made-up answers and collect its prompts.

        Args:
            way: Position of the parser's example to answer with; None for a different example for each
                instance.
            only_new: True to keep only the prompts of turns that have no prompt yet.
            ignores_conditions: True to run every turn, with its condition as note.
            answer: Text that replaces the placeholder of the example.
        """
        reached_rounds = {
            name: {node.round for prompt in of.asked for node in prompt.nodes}
            for name, of in self._by_name.items()
        }
        model = PreviewModel(
            {name: of.role for name, of in self._by_name.items()}, way, answer, self._replay, self._texts
        )
        job = EpisodeJob({"id": "task", **self._task}, self._recorded.rollout if self._recorded else 0, 0)
        models = [LimitedModel(model, 4096)] * len(self._plan.endpoints)
        async with Isolation(self._plan.imports) as isolation:
            episode = await run_episode(
                self._harmless(way or 0, answer, ignores_conditions), job, models, isolation=isolation
            )
        for request in sorted(model.requests, key=lambda each: (each.id.node.round, each.id.node.index)):
            node = request.id.node
            if not only_new or node.round not in reached_rounds[node.role]:
                self._add(request, self._condition(node) if ignores_conditions else "")
        for failure in episode.failures.values():
            problem = self._unknown(failure) or f"{failure['name']}: {failure['message']}"
            problems = self._by_name[failure["role"]].problems
            if problem not in problems and not only_new:
                problems.append(problem)
        return episode

    def _condition(self, node: NodeId) -> str:
        """Return the condition of a turn that no example answer leads to: its role's condition, or a loop's.

        Without such a condition, the turn depends on the conditions of other turns.
        """
        role = self._by_name[node.role].role
        if role.when is not None and not _on_itself(role.when):
            return f"if {role.when.source}"
        index = role.loop
        while index is not None:
            loop = self._plan.loops[index]
            if loop.when is not None:
                return f"if {loop.when.source}"
            if loop.until is not None and max(role.round_at(node.round)) > 1:
                return f"unless {loop.until.source}"
            index = loop.outer
        return "after turns that other answers lead to"

    def _unknown(self, failure: FailureMetadata) -> str:
        """Return the reason why a prompt failed: it reads a service's answer, which a preview lacks; empty
        for any other failure.
        """
        needs = self._by_name[failure["role"]].role.spec.needs
        input_roles = [edge.of or name for name, edge in needs.items()]
        runs = [(name, self._by_name[name].role.run) for name in input_roles if name in self._by_name]
        services = [f"{name} ({run.name})" for name, run in runs if run and run.tool.example == PLACEHOLDER]
        is_prompt_error = FailureName(failure["name"]) is FailureName.PROMPT_ERROR
        if not is_prompt_error or not services or self._recorded is not None:
            return ""
        answer = f"the answer of {' and '.join(services)}"
        return f"the prompt reads parts of {answer}, which is unknown without a run; show one by --with RUN"

    def _add(self, request: Request, note: str) -> None:
        node = request.id.node
        prompts, prompt_places = self._by_name[node.role], self._seen[node.role]
        key = _unmarked(repr(request.messages))
        index = prompt_places.get(key)
        if index is None and len(prompts.asked) < MOST and max(prompts.role.round_at(node.round)) <= ROUNDS:
            prompt_places[key] = len(prompts.asked)
            call = f"call {request.id.call} of the turn" if request.id.call > 1 else ""
            remark = ", ".join(filter(None, (call, note)))
            endpoint = prompts.role.endpoints[node.index - 1]
            prompts.asked.append(SentPrompt((node,), endpoint, request.messages, request.tools, remark))
        elif index is None:
            prompt_places[key] = -1
            prompts.more += 1
        elif index >= 0 and node not in prompts.asked[index].nodes:
            old_prompt = prompts.asked[index]
            prompts.asked[index] = old_prompt._replace(nodes=(*old_prompt.nodes, node))

    def _harmless(self, way: int, answer: str, ignores_conditions: bool) -> Plan:
        """Return a copy of the plan for `preview` that computes no reward, runs no tool and changes no
        environment."""
        plan = self._plan
        return replace(
            plan,
            roles=tuple(self._harmless_role(role, way, answer, ignores_conditions) for role in plan.roles),
            loops=tuple(replace(loop, until=None, when=None) for loop in plan.loops)
            if ignores_conditions
            else plan.loops,
            envs=tuple(
                env if self._moves(env) and not ignores_conditions else still_environment(env)
                for env in plan.envs
            ),
            reward_order=(),
            reward_inputs={},
            metrics={},
            withheld=(),
        )

    def _moves(self, env: EnvPlan) -> bool:
        """Return True if an environment needs no permission, and each of its players has recorded moves."""
        players = {self._plan.roles[position].name for position in env.players}
        return not env.environment.permissions and self._answering.issuperset(players)

    def _harmless_role(self, role: RolePlan, way: int, answer: str, ignores_conditions: bool) -> RolePlan:
        run, closed_tools = role.run, _closed_tools(self._plan, role)
        if run is not None and run.tool.choose is None:
            run = example_run(run, role.name, self._recorded, self._by_name[role.name].add_value)
        if run is not None and run.parser is not None and role.name not in self._answering:
            example = example_answer(role, way, answer or f"[{role.name}]")
            run = replace(run, parser=lenient_parser(run.parser, example))
        return replace(
            role,
            spec=role.spec.model_copy(update={"on_failure": OnFailure(), "timeout": None}),
            when=None if ignores_conditions and not _on_itself(role.when) else role.when,
            reward=None,
            formulas={},
            run=run,
            tools=tuple(
                example_tool(tool, self._recorded)
                for tool in role.tools
                if tool not in closed_tools and tool.agent is None
            ),
        )


def _on_itself(condition: Expression | None) -> bool:
    """Return True for a condition that reads only `self`, such as `self.round > 1`, so that no answer changes
    it."""
    return condition is not None and {name.partition(".")[0] for name in condition.mentions} == {"self"}


def facts_of(plan: Plan, role: RolePlan) -> Mapping[str, str]:
    """Return facts about a role for the preview page, by name: its inputs, loop, condition, tools."""
    role_spec, loop, tools, callers = role.spec, "", "", plan.spec.callers_of(role.name)
    if role.loop is not None:
        of = plan.loops[role.loop]
        rounds = f"{of.times}" if of.outer is None else f"{plan.loops[of.outer].times} × {of.times}"
        until = f", until {of.until.source}" if of.until is not None else ""
        loop = f"{of.name}, at most {rounds} rounds{until}"
    if role_spec.tools:
        closed_tools = _closed_tools(plan, role)
        names = [callee.function.name for callee in role.callees]
        opened_names = [call.name for call in role_spec.tools if call.name != CALL_OF_A_ROLE]
        for name, tool in zip(opened_names, role.tools, strict=True):
            names.append(f"{name} (not opened: it is not allowed)" if tool in closed_tools else name)
        tools = f"{', '.join(names)}; at most {role_spec.max_calls} calls of the model"
    sources = (shot.source for of, shot in demonstrations(plan).values() if of.name == role.name)
    facts = {
        "prompt": ", ".join(role.prompt_files),
        "needs": ", ".join(_edge(name, edge) for name, edge in role_spec.needs.items()),
        "loop": loop,
        "when": role.when.source if role.when else "",
        "runs": role.run.name if role.run else "",
        "parser": role_spec.parser.name if role.run and role.run.parser else "",
        "tools": tools,
        "called by": f"{', '.join(callers)}; at most {role.count} calls" if callers else "",
        "sees hidden": ", ".join(sorted(role_spec.sees)),
        "memory": str(role_spec.memory or ""),
        "imitates": "; ".join(dict.fromkeys(sources)),
        "learning rate": ", ".join(str(policy_rate(plan.policies[it])) for it in plan.policies_of(role.name)),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _edge(name: str, edge: Edge) -> str:
    """Return a text for an edge, without defaults, such as `rival (of candidate, each, history)`."""
    join = f"chunks of {edge.chunk_size}" if edge.chunks else edge.join
    options = (
        f"of {edge.of}" if edge.of not in (None, name) else "",
        join if join != "all" else "",
        {"this": "", "previous": "previous round", "history": "all rounds before"}[edge.round],
    )
    return f"{name} ({', '.join(filter(None, options))})" if any(options) else name


def _closed_tools(plan: Plan, role: RolePlan) -> list[Tool]:
    """Return the tools of a role that lack a permission."""
    withheld = {permission.name for permission in plan.withheld}
    return [tool for tool in role.tools if not withheld.isdisjoint(tool.permissions)]


def _numbers(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `1–3, 5`."""
    numbers = sorted(set(numbers))
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(str(a) if a == end else f"{a}–{end}" for a, end in zip(starts, ends, strict=True))


def _counted(noun: str, numbers: Iterable[int]) -> str:
    """Return a noun with its numbers, such as `round 2` or `rounds 1–3`."""
    ranges = _numbers(numbers)
    return f"{noun}{'' if ranges.isdigit() else 's'} {ranges}"


def _unmarked(text: str) -> str:
    """Return a text without the instance and round numbers of its made-up answers, so that equal prompts
    compare equal."""
    return _MARK.sub(r"[\1]", text)
