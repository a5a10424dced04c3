"""Templates that a reflecting model may change, and the texts that the model gets: a role's episodes, and the
instructions.

The texts come from copies of episodes without the values that may not leave
(`engine/compile/leaving.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import Plan, check_source, size_of
from rolegraph.engine.compile.leaving import disclosure_rule_of, without_hidden
from rolegraph.engine.records import Episode, Source, Split, Task, Trajectory
from rolegraph.engine.spec.yaml_text import dump_yaml

Templates = Mapping[str, str]
"""Text of each template that may change, by role and part, such as `solver.prompt`."""
DataItem = tuple[Split, Task]
"""Task with its split."""
MINIBATCH = 3
"""Number of training tasks in one reflection."""
TRIES = 3
"""Attempts per reflection; another is made only after the compiler rejected the last."""
CORRECT, MEAN_REWARD = "correct", "mean reward"
"""Names of the scores that every spec may have."""
TEXT = 4_000
"""Largest number of characters of one text, such as a prompt or an answer."""
MEMBERS = 4
"""Largest number of members of a role's group on one task that are shown; those with the lowest rewards."""

PROMPT = """The workflow `{name}` asks several language models, each in a role. {description}
This is the Jinja2 template of the {part} of its role `{role}`:
```
<curr_param>
```

The role's answer is read by the parser {parser}. Below are tasks, the messages that the role got, its \
answers and their outcomes. A higher reward is better.
```
<side_info>
```

Find out from the outcomes why answers fail or earn little, and what the best answers do. Then write a \
better template for this role, for tasks of this kind in general and not for these tasks alone. Keep the \
form of the answer that the parser reads. Keep the expressions in braces that the role needs, such as \
{names}; other names may be unknown or hidden, and the template is then refused.

Give the whole new template between ``` and ```, and nothing else between them."""
"""Prompt of a reflection; gepa replaces the words in angle brackets."""
REFUSED = """The template was refused:

{faults}

Write the template again without these faults, between ``` and ```."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Input of an optimization: workflow, tasks, budget and settings of the search."""

    workflow: Plan
    source: Source
    """Source of the workflow's spec."""
    folder: Path
    templates: Templates
    """The spec's own templates that may change."""
    train: Sequence[DataItem]
    validation: Sequence[DataItem]
    budget: int
    """Largest number of episodes."""
    rollouts: int
    score: str
    """Name of the score to raise, one of `scores_of`."""
    seed: int

    @property
    def minibatch(self) -> int:
        """Number of training tasks whose episodes one reflection reads."""
        return min(MINIBATCH, len(self.train))

    @property
    def least(self) -> int:
        """Smallest useful budget in episodes: those for the spec's own templates and for one iteration."""
        return self.rollouts * (len(self.validation) + self.iteration)

    @property
    def iteration(self) -> int:
        """Largest number of tasks that one iteration evaluates: a minibatch twice, and the validation
        tasks."""
        return 2 * self.minibatch + len(self.validation)

    @property
    def calls(self) -> int:
        """Largest number of model calls of all episodes, without retries."""
        return self.budget * size_of(self.workflow).calls

    @property
    def foreign_prompts(self) -> str:
        """Warning about roles for which a shipped model answers; empty without such roles."""
        models = {str(endpoint.model) for endpoint in self.workflow.endpoints if endpoint.model.is_shipped}
        warning = (
            "was trained on the shipped prompts alone, so others hardly score higher; --model chooses a model"
        )
        return f"{', '.join(sorted(models))} {warning}" if models else ""

    @property
    def reflections(self) -> int:
        """Largest number of calls of the reflecting model, without retries."""
        return TRIES * ((self.budget // self.rollouts - len(self.validation)) // self.minibatch)


def scores_of(plan: Plan) -> list[str]:
    """Return the names of the scores that a plan's episodes may have, the default first.

    The default is `correct`, or `MEAN_REWARD` if no deciding role can be right.
    """
    rewards = [f"reward/{role.name}" for role in plan.roles if role.reward is not None]
    return [*([CORRECT] if plan.can_be_correct else []), MEAN_REWARD, *plan.metrics, *rewards]


def own_templates(plan: Plan) -> dict[str, str]:
    """Return the texts of the templates of all roles with a prompt, by names such as `solver.prompt`."""
    templates_by_name = {
        f"{role.name}.{part}": template
        for role in plan.asking
        for part, template in (("system", role.system), ("prompt", role.prompt))
    }
    return {name: template.source for name, template in templates_by_name.items() if template is not None}


def with_templates(source: Source, templates: Templates) -> Source:
    """Return a copy of a source with overrides that replace the templates of the spec."""
    # A quoted scalar takes any character; on a single line, no line break of its own is folded.
    quoted_texts = {
        name: dump_yaml(text, one_line=True, quoted=True, ascii_only=True) for name, text in templates.items()
    }
    overrides = (f"roles.{name}={text}" for name, text in quoted_texts.items())
    return replace(source, overrides=(*source.overrides, *overrides))


def template_faults(source: Source, templates: Templates) -> str:
    """Compile a spec with other templates; return its faults, one per line, or an empty text if it
    compiles."""
    faults = [f for f in check_source(with_templates(source, templates)).diagnostics if f.severity == "error"]
    fault_texts = [(f.message, f.expected and f"expected: {f.expected}", f.hint) for f in faults]
    return "\n".join("; ".join(filter(None, part)) for part in fault_texts)


def reflection_prompt(plan: Plan, template: str) -> str:
    """Return the prompt that asks for a better template.

    Args:
        plan: The compiled spec.
        template: Role and part, such as `solver.prompt`.
    """
    role, _, part = template.partition(".")
    spec: dict[str, Any] = yaml.safe_load(plan.resolved)
    (role_plan,) = (plan_role for plan_role in plan.roles if plan_role.name == role)
    old_text = role_plan.prompt if part == "prompt" else role_plan.system
    mentioned_fields = sorted(name for name in (old_text.mentions if old_text else ()) if "." in name)
    return PROMPT.format(
        name=plan.name,
        description=plan.spec.description,
        part="user message" if part == "prompt" else "system message",
        role=role,
        parser=f"`{spec['roles'][role].get('parser', 'text')}`",
        names=", ".join(f"`{{{{ {name} }}}}`" for name in mentioned_fields) or "those that it has",
    )


def feedback(plan: Plan, role: str, task: Task, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Return records of a role's answers to one task, for the reflecting model.

    Args:
        plan: The compiled spec.
        role: Name of the role.
        task: The task.
        episodes: All rollouts of the task, which make the role's group.

    Returns:
        A record for each of the group's worst `MEMBERS` trajectories: the visible task, what the role was
        asked and answered, the outcome, and a better answer of the group where there is one.
    """
    rule = disclosure_rule_of(plan)
    may_quote = rule.may_quote(role)
    copies = [without_hidden(copied, rule) for copied in episodes]
    members = [(copied, t) for copied in copies for t in copied.trajectories if t.name == role]
    members.sort(key=lambda member: _value(*member))
    records: list[dict[str, Any]] = []
    for episode, trajectory in members[:MEMBERS]:
        record: dict[str, Any] = {}
        if not may_quote:
            visible_fields = {name: _cut(value) for name, value in rule.visible(task).items() if name != "id"}
            record = {"Task": visible_fields, "Asked": _asked(trajectory), "Answered": _answered(trajectory)}
        record["Outcome"] = _outcome(episode, trajectory, may_quote=may_quote)
        best_episode, best_trajectory = members[-1]
        if not may_quote and _value(best_episode, best_trajectory) > _value(episode, trajectory):
            record["A better answer to the same task"] = {
                "Answered": _answered(best_trajectory),
                "Outcome": _outcome(best_episode, best_trajectory, may_quote=may_quote),
            }
        records.append(record)
    return records


def _value(episode: Episode, trajectory: Trajectory) -> tuple[float, float, bool]:
    """Return the sort key of a group's member: reward, then the episode's correctness, then no failure."""
    reward = 0.0 if trajectory.reward is None else trajectory.reward
    return reward, float(episode.is_correct), trajectory.failure is None


def _outcome(episode: Episode, trajectory: Trajectory, *, may_quote: bool) -> dict[str, str]:
    outcome: dict[str, str] = {}
    if trajectory.reward is not None:
        outcome["reward"] = f"{trajectory.reward:g}"
    outcome |= {f"reward term {name}": f"{value:g}" for name, value in trajectory.terms.items()}
    if (failure := trajectory.failure) is not None:
        message = f": {_cut(failure.message)}" if not may_quote and trajectory.failed_by == "form" else ""
        outcome["failure"] = f"{failure.name.value}{message}"
    return {**outcome, "the whole episode": "correct" if episode.is_correct else "not correct"}


def _asked(trajectory: Trajectory) -> str:
    messages = trajectory.steps[-1].chat_completions[:-1] if trajectory.steps else ()
    return _cut("\n".join(f"[{turn['role']}] {turn.get('content') or ''}" for turn in messages)) or "nothing"


def _answered(trajectory: Trajectory) -> str:
    return _cut(trajectory.steps[-1].model_response) if trajectory.steps else "nothing"


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]} …"
