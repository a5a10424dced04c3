"""Checks of rewards, of tools that choose, and of hidden fields: what rewards read, who sees labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isinf

import networkx as nx

from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.lineage import Instance, Instances, joined
from rolegraph.engine.compile.names import ResolvedNames, Rewards, judged
from rolegraph.engine.compile.structure import RoleGraph, ancestors, cycles, format_cycle, graph_of, reachable
from rolegraph.engine.compile.texts import not_hidden
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.spec import Edge, Finding, Path, Spec
from rolegraph.engine.vocabulary import Reward, Tool


def scored(rewards: Rewards) -> RoleGraph:
    """Return a graph with an edge from each role to the roles whose rewards read its reward."""
    return graph_of({name: reward.roles if reward else () for name, reward in rewards.items()})


def earning_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Yield faults and warnings about what rewards read and pay, tools that choose, and hidden fields in
    `sees`."""
    spec, rewards, instances = names.spec, names.rewards, names.instances
    faults = [*_read(spec, rewards), *_unjudged(rewards)]
    yield from faults
    yield from _failing(spec)
    if not faults:
        yield from _failing_pays(spec, rewards)
    yield from _shown(names)
    for name, role in names.roles.items():
        patterns = role.reward.facts.patterns if role.reward else ()
        strips = role.parser.strips if role.parser else ()
        lost = [mark for mark in strips if any(mark in pattern for pattern in patterns)]
        if lost:
            message = f"the reward of {name} looks for {', '.join(lost)}, which its parser takes off"
            hint = "keep the tags (keep_tag: true), or look for what is inside them"
            yield Finding(("roles", name, "reward"), message, "", hint, severity="warning")
    if instances is None:
        return
    read = words_read(spec)
    right = judged(rewards)
    for decides in (name for it in names.correct if it for name in it.verdicts if name not in right):
        episode = "no episode" if len(names.correct) == 1 else f"no episode in which {decides} runs"
        message = f"{episode} can be correct: no reward of {decides} tells right from wrong"
        others = ", ".join(name for name in rewards if name in right)
        hint = f"name a role that can be right: {others}" if others else ""
        rests_on = _rewards_of({decides, *ancestors(scored(rewards), decides)})
        path: Path = ("episode", "correct")
        yield Finding(path, message, hint=hint, severity="warning", rests_on=rests_on, word=decides)
    for name, role in names.roles.items():
        if role.reward is not None:
            yield from _paid_alike(spec, name, role.reward, instances, read)
        least = role.run.tool.least if role.run else 1
        if role.run and least > 1 and _candidates(spec, name, role.run.tool, instances) < least:
            message = f"{name} has one action, so {role.run.name} has nothing to compare it with"
            hint = "raise the `count` of the role that it reads, or let it need others, too"
            yield Finding(("roles", name, "run"), message, hint=hint, severity="warning")


def _paid_alike(
    spec: Spec, name: str, reward: Reward, instances: Instances, read: RoleGraph
) -> Iterator[Finding]:
    """Warn of a reward that is the same for all answers of role `name`, or that adds an outcome once per
    turn.

    The first happens where the rating role does not read the answer that it rates.
    """
    role, loop, mine = spec.roles[name], spec.loop_of(name), instances[name]
    discounted = any((grouping.credit or role.credit).discount for grouping in role.group)
    plays = spec.env_loop_of(name) is not None  # a rater may read answers through the environment
    for other in (other for other in reward.facts.outcomes if other in instances and other != name):
        if discounted and spec.rounds_of(name) > 1 and spec.loop_of(other) != loop:
            message = f"with `return` credit, the reward of {other} is added once per turn of {name}"
            hint = "leave `credit` out: each turn then gets the outcome once"
            yield Finding(("roles", name, "credit"), message, hint=hint, severity="warning")
        theirs = instances[other]
        if other not in reward.views or plays or any(name in it.lineage for it in theirs):
            continue
        branches = {tuple(joined(Edge(join="branch"), me, theirs)) for me in mine}
        if not nx.has_path(read, name, other) or len(branches) == 1 < min(len(mine), len(theirs)):
            message = f"{other} does not read the answer that it rates, so all {name} get the same reward"
            hint = f"let {other} read it, and nothing else of {name}: needs: {{{name}: each}}"
            path, rests_on = ("roles", name, "reward"), tuple(("roles", it, "needs") for it in spec.roles)
            yield Finding(path, message, hint=hint, word=other, severity="warning", rests_on=rests_on)


def _candidates(spec: Spec, name: str, tool: Tool, instances: Instances) -> int:
    """Return the largest number of actions from which one turn of role `name` can choose with a choosing
    tool."""
    wanted = tool.pairs[:1] if tool.pairs else tool.roles
    edges = [(other, edge) for key, other, edge in spec.roles[name].edges if not wanted or key in wanted]

    def turns(other: str, edge: Edge, me: Instance) -> int:
        members, rounds = joined(edge, me, instances[other]), spec.shared_rounds(name, other)
        earlier = len(rounds.read(spec.rounds_of(name), "history"))
        return len(members) * (earlier if edge.round == "history" else 1)

    return max(sum(turns(other, edge, me) for other, edge in edges) for me in instances[name])


def _read(spec: Spec, rewards: Rewards) -> Iterator[Finding]:
    """Find rewards that read a role without a reward, their own role, each other in a cycle, or an
    environment.

    A reward may read an environment only if its role is one of the environment's players.
    """
    players = [player for loop in spec.env_loops() for player in spec.players_of(loop)]
    for name, reward in rewards.items():
        path: Path = ("roles", name, "reward")
        for other in reward.roles if reward else ():
            if other in spec.roles and spec.roles[other].reward is None:
                message = f"the reward reads the reward of {other}, which has none"
                yield Finding(path, message, "a role with a reward", word=other)
        if reward and reward.reads_environment and name not in players:
            message = f"the reward reads what {name} gets from an environment, but {name} moves in none"
            expected = f"a player: {', '.join(players)}" if players else "a loop with `env`"
            yield Finding(path, message, expected, word="env")
        # An expression reads the siblings of a turn under the role's own name, but not what they earned.
        if reward and name in (reward.roles if reward.formulas else reward.read_roles):
            message = f"the reward of {name} reads {name} itself"
            yield Finding(path, message, "other roles", word=name)
    for cycle in cycles(scored(rewards)):
        message = f"the rewards wait for each other: {format_cycle(cycle)}"
        hint = "a reward that reads only the action of a role waits for no reward"
        path, *others = _rewards_of(cycle)
        expected, last = "rewards without a cycle", cycle[-1]
        yield Finding(path, message, expected, hint, word=last, covers=tuple(others))


def _rewards_of(roles: Iterable[str]) -> tuple[Path, ...]:
    """Return the path in the spec of each role's `reward`."""
    return tuple(("roles", name, "reward") for name in roles)


def _unjudged(rewards: Rewards) -> Iterator[Finding]:
    """Find rewards that read whether another role is right, although that role cannot be right or wrong."""
    right = judged(rewards)
    for name, reward in rewards.items():
        for other in reward.facts.compares_verdicts if reward else ():
            theirs = rewards.get(other)
            if theirs is None or other in right:
                continue
            message = f"the reward reads whether {other} is right, and its reward tells no right from wrong"
            others = ", ".join(it for it in rewards if it in right and it != name)
            expected = f"a role that can be right: {others}" if others else "a role that can be right"
            yield Finding(("roles", name, "reward"), message, expected, word=other)


def _failing(spec: Spec) -> Iterator[Finding]:
    """Find a `right` or an `on_failure.reward` without effect: the role has no reward, or masks its failed
    turns, or ends the episode."""
    for name, role in spec.roles.items():
        failing = role.on_failure
        if role.right is not None and role.reward is None:
            message = f"{name} has no reward, so `right` has no effect"
            yield Finding(("roles", name, "right"), message, "a reward", at_key=True)
        if failing.reward is None:
            continue
        path: Path = ("roles", name, "on_failure", "reward")
        if role.reward is None:
            yield Finding(path, f"{name} has no reward, so `on_failure.reward` has no effect", at_key=True)
        elif failing.then in ("mask", "fail"):
            what = "is kept out of the gradient" if failing.then == "mask" else "ends the episode"
            message = f"a failed turn of {name} {what}, so its reward has no effect"
            yield Finding(path, message, "then: zero", "or leave `reward` out", at_key=True)


def _failing_pays(spec: Spec, rewards: Rewards) -> Iterator[Finding]:
    """Warn of trained roles whose reward can be below the 0 that a failed turn earns, so that they learn to
    fail."""
    for name, role in spec.roles.items():
        reward, failing = rewards.get(name), role.on_failure
        if not reward or not role.is_trained or failing.then != "zero" or failing.reward is not None:
            continue
        least = reward.facts.bounds[0]
        if least >= 0 or reward.reads_environment:  # which a failed turn earns, too
            continue
        earns = "may be below any number" if isinf(least) else f"may be {least:g}"
        message = (
            f"the reward of {name} {earns}, and a failed turn earns 0: failing pays more than being wrong"
        )
        lowest = -1.0 if isinf(least) else least
        hint = f"say what a failed turn earns: on_failure: {{reward: {lowest:g}}}"
        yield Finding(("roles", name, "reward"), message, hint=hint, severity="warning", at_key=True)


def _shown(names: ResolvedNames) -> Iterator[Finding]:
    """Find bad names in `data.hidden` and `sees`, and shown fields that reach roles rewarded by them.

    An answer field leaks where a rewarded role can read it through the words of other roles.
    """
    spec, rewards = names.spec, names.rewards
    columns = {column for dataset in names.data.values() for column in dataset.columns}
    if "id" in spec.data.hidden:
        message = "task.id names the task in files, pages and spans, and is not hidden there"
        yield Finding(("data", "hidden"), message, "a field other than id", severity="warning", word="id")
    for field in spec.data.hidden if columns else ():
        if field not in columns:
            expected = f"one of {', '.join(column for column in sorted(columns) if column != 'id')}"
            message, hint = f"the data has no field {field!r} to hide", did_you_mean(field, columns)
            yield Finding(("data", "hidden"), message, expected, hint, word=field)
    read, before, chats = words_read(spec), scored(rewards), turns_read(spec)
    for name, role in names.roles.items():  # an edge that sets the count, or a `when`, passes no words on
        passed = {*role.mentions, *(role.parser.roles if role.parser else ())}
        if role.run and role.run.tool.session:  # the session's state may hold what that role wrote
            passed.add(role.run.tool.session.role)
        if role.prompt or (role.run and role.run.value):
            silent = {other for key, other, _ in spec.roles[name].edges if key not in passed}
            silent.difference_update(chats.get(name, ()))
            read.remove_edges_from([(other, name) for other in silent])
    for name, role in spec.roles.items():
        if not role.sees:
            continue
        reached = reachable(read, [name])
        for field in role.sees:
            path: Path = ("roles", name, "sees")
            if columns and field not in columns:
                shown = sorted(names.hidden & columns)
                expected = f"one of {', '.join(shown)}" if shown else "a hidden field"
                hint = did_you_mean(field, shown) or did_you_mean(field, columns)
                yield Finding(path, f"the task has no field {field!r}", expected, hint, word=field)
            elif field not in names.hidden:
                yield not_hidden(spec, field, path)
                continue
            for other in (name, *(it for it in spec.roles if it in reached and it != name)):
                rewarded = (rewards.get(it) for it in {other, *ancestors(before, other)})
                if any(field in reward.facts.fields for reward in rewarded if reward):
                    reach = "" if other == name else f"its words reach {other}, which "
                    message = f"{name} sees task.{field}, and {reach}is rewarded by it"
                    yield Finding(path, message, word=field, severity="warning")


def words_read(spec: Spec) -> RoleGraph:
    """Return a graph of roles with an edge to each role from every role whose words it may read.

    A role reads answers of this round or an earlier one, arguments of its callers, results of the roles that
    it calls, and turns of its conversation.
    """
    chats = turns_read(spec)
    read: dict[str, list[str]] = {}
    for name, role in spec.roles.items():
        read[name] = [other for _, other, _ in role.edges] + chats.get(name, [])
        read[name] += [*spec.callers_of(name), *spec.callees_of(name)]
    return graph_of(read)
