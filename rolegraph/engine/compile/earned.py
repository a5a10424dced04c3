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
        stripped_marks = role.parser.strips if role.parser else ()
        lost_marks = [mark for mark in stripped_marks if any(mark in pattern for pattern in patterns)]
        if lost_marks:
            message = f"the reward of {name} looks for {', '.join(lost_marks)}, which its parser takes off"
            hint = "keep the tags (keep_tag: true), or look for what is inside them"
            yield Finding(("roles", name, "reward"), message, "", hint, severity="warning")
    if instances is None:
        return
    roles_read = words_read(spec)
    can_be_right = judged(rewards)
    for decider in (name for e in names.correct if e for name in e.verdicts if name not in can_be_right):
        episode = "no episode" if len(names.correct) == 1 else f"no episode in which {decider} runs"
        message = f"{episode} can be correct: no reward of {decider} tells right from wrong"
        others_right = ", ".join(name for name in rewards if name in can_be_right)
        hint = f"name a role that can be right: {others_right}" if others_right else ""
        rests_on = _rewards_of({decider, *ancestors(scored(rewards), decider)})
        path: Path = ("episode", "correct")
        yield Finding(path, message, hint=hint, severity="warning", rests_on=rests_on, word=decider)
    for name, role in names.roles.items():
        if role.reward is not None:
            yield from _paid_alike(spec, name, role.reward, instances, roles_read)
        fewest = role.run.tool.least if role.run else 1
        if role.run and fewest > 1 and _candidates(spec, name, role.run.tool, instances) < fewest:
            message = f"{name} has one action, so {role.run.name} has nothing to compare it with"
            hint = "raise the `count` of the role that it reads, or let it need others, too"
            yield Finding(("roles", name, "run"), message, hint=hint, severity="warning")


def _paid_alike(
    spec: Spec, name: str, reward: Reward, instances: Instances, read: RoleGraph
) -> Iterator[Finding]:
    """Warn of a reward that is the same for all answers of role `name`, or that adds an outcome once per
    turn.

    All answers have the same reward where the role that rates them does not read them.
    """
    role, loop, own_instances = spec.roles[name], spec.loop_of(name), instances[name]
    is_discounted = any((grouping.credit or role.credit).discount for grouping in role.group)
    is_player = spec.env_loop_of(name) is not None  # a rater may read answers through the environment
    for rater in (rater for rater in reward.facts.outcomes if rater in instances and rater != name):
        if is_discounted and spec.rounds_of(name) > 1 and spec.loop_of(rater) != loop:
            message = f"with `return` credit, the reward of {rater} is added once per turn of {name}"
            hint = "leave `credit` out: each turn then gets the outcome once"
            yield Finding(("roles", name, "credit"), message, hint=hint, severity="warning")
        raters = instances[rater]
        if rater not in reward.views or is_player or any(name in i.lineage for i in raters):
            continue
        joined_sets = {tuple(joined(Edge(join="branch"), reader, raters)) for reader in own_instances}
        if not nx.has_path(read, name, rater) or len(joined_sets) == 1 < min(len(own_instances), len(raters)):
            message = f"{rater} does not read the answer that it rates, so all {name} get the same reward"
            hint = f"let {rater} read it, and nothing else of {name}: needs: {{{name}: each}}"
            path, rests_on = ("roles", name, "reward"), tuple(("roles", i, "needs") for i in spec.roles)
            yield Finding(path, message, hint=hint, word=rater, severity="warning", rests_on=rests_on)


def _candidates(spec: Spec, name: str, tool: Tool, instances: Instances) -> int:
    """Return the largest number of actions from which one turn of role `name` can choose with a choosing
    tool."""
    keys = tool.pairs[:1] if tool.pairs else tool.roles
    edges = [(other, edge) for key, other, edge in spec.roles[name].edges if not keys or key in keys]

    def turns(other: str, edge: Edge, me: Instance) -> int:
        members, rounds = joined(edge, me, instances[other]), spec.shared_rounds(name, other)
        round_count = len(rounds.read(spec.rounds_of(name), "history"))
        return len(members) * (round_count if edge.round == "history" else 1)

    return max(sum(turns(other, edge, me) for other, edge in edges) for me in instances[name])


def _read(spec: Spec, rewards: Rewards) -> Iterator[Finding]:
    """Find rewards that read a role without a reward, their own role, each other in a cycle, or an
    environment.

    A reward may read an environment only if its role is one of the environment's players.
    """
    players = [player for loop in spec.env_loops() for player in spec.players_of(loop)]
    for name, reward in rewards.items():
        path: Path = ("roles", name, "reward")
        for read_role in reward.roles if reward else ():
            if read_role in spec.roles and spec.roles[read_role].reward is None:
                message = f"the reward reads the reward of {read_role}, which has none"
                yield Finding(path, message, "a role with a reward", word=read_role)
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
        path, *rest_of_cycle = _rewards_of(cycle)
        expected, last_role = "rewards without a cycle", cycle[-1]
        yield Finding(path, message, expected, hint, word=last_role, covers=tuple(rest_of_cycle))


def _rewards_of(roles: Iterable[str]) -> tuple[Path, ...]:
    """Return the path in the spec of each role's `reward`."""
    return tuple(("roles", name, "reward") for name in roles)


def _unjudged(rewards: Rewards) -> Iterator[Finding]:
    """Find rewards that read whether another role is right, although that role cannot be right or wrong."""
    judged_roles = judged(rewards)
    for name, reward in rewards.items():
        for subject in reward.facts.compares_verdicts if reward else ():
            other_reward = rewards.get(subject)
            if other_reward is None or subject in judged_roles:
                continue
            message = f"the reward reads whether {subject} is right, and its reward tells no right from wrong"
            right_ones = ", ".join(n for n in rewards if n in judged_roles and n != name)
            expected = f"a role that can be right: {right_ones}" if right_ones else "a role that can be right"
            yield Finding(("roles", name, "reward"), message, expected, word=subject)


def _failing(spec: Spec) -> Iterator[Finding]:
    """Find a `right` or an `on_failure.reward` without effect: the role has no reward, or masks its failed
    turns, or ends the episode."""
    for name, role in spec.roles.items():
        failure_rule = role.on_failure
        if role.right is not None and role.reward is None:
            message = f"{name} has no reward, so `right` has no effect"
            yield Finding(("roles", name, "right"), message, "a reward", at_key=True)
        if failure_rule.reward is None:
            continue
        path: Path = ("roles", name, "on_failure", "reward")
        if role.reward is None:
            yield Finding(path, f"{name} has no reward, so `on_failure.reward` has no effect", at_key=True)
        elif failure_rule.then in ("mask", "fail"):
            consequence = "is kept out of the gradient" if failure_rule.then == "mask" else "ends the episode"
            message = f"a failed turn of {name} {consequence}, so its reward has no effect"
            yield Finding(path, message, "then: zero", "or leave `reward` out", at_key=True)


def _failing_pays(spec: Spec, rewards: Rewards) -> Iterator[Finding]:
    """Warn of trained roles whose reward can be below the 0 that a failed turn earns, so that they learn to
    fail."""
    for name, role in spec.roles.items():
        reward, on_failure = rewards.get(name), role.on_failure
        if not reward or not role.is_trained or on_failure.then != "zero" or on_failure.reward is not None:
            continue
        least_reward = reward.facts.bounds[0]
        if least_reward >= 0 or reward.reads_environment:  # which a failed turn earns, too
            continue
        clause = "may be below any number" if isinf(least_reward) else f"may be {least_reward:g}"
        message = (
            f"the reward of {name} {clause}, and a failed turn earns 0: failing pays more than being wrong"
        )
        lowest_reward = -1.0 if isinf(least_reward) else least_reward
        hint = f"say what a failed turn earns: on_failure: {{reward: {lowest_reward:g}}}"
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
    read_graph, reward_graph, chats = words_read(spec), scored(rewards), turns_read(spec)
    for name, role in names.roles.items():  # an edge that sets the count, or a `when`, passes no words on
        passed_names = {*role.mentions, *(role.parser.roles if role.parser else ())}
        if role.run and role.run.tool.session:  # the session's state may hold what that role wrote
            passed_names.add(role.run.tool.session.role)
        if role.prompt or (role.run and role.run.value):
            silent_roles = {n for key, n, _ in spec.roles[name].edges if key not in passed_names}
            silent_roles.difference_update(chats.get(name, ()))
            read_graph.remove_edges_from([(n, name) for n in silent_roles])
    for name, role in spec.roles.items():
        if not role.sees:
            continue
        reached_roles = reachable(read_graph, [name])
        for field in role.sees:
            path: Path = ("roles", name, "sees")
            if columns and field not in columns:
                visible_labels = sorted(names.hidden & columns)
                expected = f"one of {', '.join(visible_labels)}" if visible_labels else "a hidden field"
                hint = did_you_mean(field, visible_labels) or did_you_mean(field, columns)
                yield Finding(path, f"the task has no field {field!r}", expected, hint, word=field)
            elif field not in names.hidden:
                yield not_hidden(spec, field, path)
                continue
            for n in (name, *(r for r in spec.roles if r in reached_roles and r != name)):
                rewards_there = (rewards.get(r) for r in {n, *ancestors(reward_graph, n)})
                if any(field in reward.facts.fields for reward in rewards_there if reward):
                    route = "" if n == name else f"its words reach {n}, which "
                    message = f"{name} sees task.{field}, and {route}is rewarded by it"
                    yield Finding(path, message, word=field, severity="warning")


def words_read(spec: Spec) -> RoleGraph:
    """Return a graph of roles with an edge to each role from every role whose words it may read.

    A role reads answers of this round or an earlier one, arguments of its callers, results of the roles that
    it calls, and turns of its conversation.
    """
    chats = turns_read(spec)
    read_roles: dict[str, list[str]] = {}
    for name, role in spec.roles.items():
        read_roles[name] = [needed_role for _, needed_role, _ in role.edges] + chats.get(name, [])
        read_roles[name] += [*spec.callers_of(name), *spec.callees_of(name)]
    return graph_of(read_roles)
