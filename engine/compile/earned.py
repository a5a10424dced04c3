"""Checks of rewards and hidden fields: the roles that rewards read, and the roles that see labels. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.engine.compile.graph import Needs, ancestors, cycles, env_loop, format_cycle, players_of
from rolegraph.engine.compile.names import ResolvedNames, Rewards
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.spec import Finding, Path, Spec
from rolegraph.engine.vocabulary import Parser, Reward


def scored(rewards: Rewards) -> Needs:
    """Return the graph of rewards: by role, the roles whose scores its reward waits for."""
    return {
        name: [other for other in reward.roles if other in rewards] if reward else []
        for name, reward in rewards.items()
    }


def earning_findings(spec: Spec, names: ResolvedNames, last: str | None) -> Iterator[Finding]:
    """Find faults in the rewards of roles and in the hidden fields that roles are shown.

    `last` is the role that decides whether an episode is correct, unless the spec names another; None where
    the graph has a fault.
    """
    rewards = names.rewards
    yield from _read(spec, rewards)
    yield from _failing(spec)
    yield from _shown(spec, names, rewards)
    for name, role in names.roles.items():
        yield from _stripped(name, role.parser, role.reward)
    right = [name for name, reward in rewards.items() if reward is not None and not reward.delegates]
    if last and spec.episode.correct is None and rewards[last] is None and right:
        message = f"no episode can be correct: the last role decides, and {last} has no reward"
        hint = f"say whose it is: episode: {{correct: {right[-1]}}}"
        yield Finding(("roles", last), message, hint=hint, at_key=True, severity="warning")


def _read(spec: Spec, rewards: Rewards) -> Iterator[Finding]:
    """Find rewards that read a role without a reward, the role itself, a cycle, or no environment."""
    loop = env_loop(spec)
    players = [] if loop is None else players_of(spec, loop)
    for name, reward in rewards.items():
        path: Path = ("roles", name, "reward")
        for other in reward.roles if reward else ():
            if other in spec.roles and spec.roles[other].reward is None:
                message = f"the reward reads what {other} earns, which has no reward"
                yield Finding(path, message, "a role with a reward", word=other)
        if reward and reward.reads_environment and name not in players:
            message = f"the reward reads what {name} gets from an environment, but {name} moves in none"
            expected = f"a player: {', '.join(players)}" if players else "a loop with `env`"
            yield Finding(path, message, expected, word="env")
        if reward and name in reward.read_roles:
            message = f"the reward of {name} reads {name} itself"
            yield Finding(path, message, "other roles", word=name)
    for cycle in cycles(scored(rewards)):
        if len(cycle) > 1:
            message = f"the rewards wait for each other: {format_cycle(cycle)}"
            hint = "rated_by and same_as read only the action of a role, and wait for no reward"
            path = ("roles", cycle[0], "reward")
            yield Finding(path, message, "rewards without a cycle", hint, word=cycle[-1])


def _failing(spec: Spec) -> Iterator[Finding]:
    """Find rewards of failed turns that have no effect."""
    for name, role in spec.roles.items():
        failing = role.on_failure
        if failing.reward is None:
            continue
        path: Path = ("roles", name, "on_failure", "reward")
        if role.reward is None:
            yield Finding(path, f"{name} has no reward, so its failed turns earn nothing", at_key=True)
        elif failing.then != "zero":
            what = "is kept out of the gradient" if failing.then == "mask" else "ends the episode"
            message = f"a failed turn of {name} {what}, whatever it earns"
            yield Finding(path, message, "then: zero", "or leave `reward` out", at_key=True)


def _shown(spec: Spec, names: ResolvedNames, rewards: Rewards) -> Iterator[Finding]:
    """Find `shows` of fields that are not hidden, and labels that reach a role which they reward."""
    columns = {column for dataset in names.data.values() for column in dataset.columns}
    edges: Needs = {
        name: [other for key, edge in role.needs.items() if (other := edge.of or key) in spec.roles]
        for name, role in spec.roles.items()
    }
    reads = scored(rewards)
    for name, role in spec.roles.items():
        if not role.shows:  # finding all roles that it reaches takes quadratic time
            continue
        later = [other for other in spec.roles if other != name and name in ancestors(edges, other)]
        for field in role.shows:
            path: Path = ("roles", name, "shows")
            if columns and field not in columns:
                expected = f"one of {', '.join(sorted(names.hidden & columns))}" if names.hidden else ""
                hint = did_you_mean(field, columns)
                yield Finding(path, f"the task has no field {field!r}", expected, hint, word=field)
            elif field not in names.hidden:
                message = f"task.{field} is not hidden: every role may read it"
                yield Finding(path, message, "a hidden field", "leave it out here", word=field)
                continue
            for other in (name, *later):
                rewarded = (rewards[it] for it in {other, *ancestors(reads, other)})
                if any(field in reward.fields for reward in rewarded if reward):
                    reach = "" if other == name else f"its words reach {other}, which "
                    message = f"{name} sees task.{field}, and {reach}is rewarded by it"
                    yield Finding(path, message, word=field, severity="warning")


def _stripped(name: str, parser: Parser | None, reward: Reward | None) -> Iterator[Finding]:
    """Warn of a reward that matches tags which the parser removes."""
    if parser is None or reward is None:
        return
    lost = [mark for mark in parser.strips if any(mark in pattern for pattern in reward.patterns)]
    if lost:
        message = f"the reward of {name} looks for {', '.join(lost)}, which its parser takes off"
        hint = "keep the tags (keep_tag: true), or look for what is inside them"
        yield Finding(("roles", name, "reward"), message, "", hint, severity="warning")
