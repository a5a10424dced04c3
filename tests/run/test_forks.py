"""Tests of `memory: {fork: ROLE}` and `memory: {reset: …}`: conversations that fork, fold and begin anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import ContextFull, ModelError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.records import Episode, FailureName, NodeId
from rolegraph.engine.training.policies.batches import build_datum, step_advantages, token_sequences
from tests.edge import ScriptedModel, run_one
from tests.run.test_chats import asked_of, faults, weighted
from tests.run.test_memory import Calling, contents
from tests.run.written import Roles, plan, said, show, whose

FORK: dict[str, Any] = {"memory": {"fork": "agent"}}
STEPS = {"steps": {"roles": ["branch"], "times": 2}, "work": {"roles": ["agent", "steps"], "times": 2}}


def folding(**branch: Any) -> Roles:
    """Return an agent whose branch takes two turns, and whose next prompt reads the last of them."""
    return {
        "agent": {"memory": "chat", "needs": {"branch": "previous"}, "prompt": f"go {show('branch')}"},
        "branch": {"needs": ["agent"], **FORK, "prompt": "try {{ self.round }}", **branch},
    }


def test_a_branch_goes_on_from_the_agent_and_the_agent_reads_its_action_alone(tmp_path: Path) -> None:
    model = ScriptedModel(whose)
    run_one(plan(tmp_path, folding(), STEPS), model)
    first, second = ["go ", said("agent1.1")], ["go branch1.2 ", said("agent1.2")]
    assert asked_of(model, "agent", "branch") == {
        NodeId("agent", 1, 1): ["go "],
        NodeId("branch", 1, 1): [*first, "try 1"],
        NodeId("branch", 1, 2): [*first, "try 1", said("branch1.1"), "try 2"],
        NodeId("agent", 1, 2): [*first, "go branch1.2 "],
        NodeId("branch", 1, 3): [*first, *second, "try 1"],
        NodeId("branch", 1, 4): [*first, *second, "try 1", said("branch1.3"), "try 2"],
    }


class Hashing:
    """Model whose token ids are different in each call, and whose answers follow from its seed and prompt."""

    def __init__(self, context: int = 10_000) -> None:
        self.context, self.requests = context, list[Request]()

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        before = request.continues.ids if request.continues else ()
        fresh = request.messages[request.continues.messages if request.continues else 0 :]
        ids = (*before, *(hash_of(message["content"]) for message in fresh))
        if len(ids) > self.context:
            raise ContextFull(f"it has {len(ids)} tokens")
        answer = (hash_of(f"{request.seed} {ids}"), 1)
        return Completion(said(str(answer[0])), "", ids, answer, (-0.5, -0.25))

    async def aclose(self) -> None: ...


def hash_of(text: str) -> int:
    return sum(place * byte for place, byte in enumerate(text.encode(), 2)) % 100_003


def run(plan: Plan, **settings: Any) -> Episode:
    return run_one(plan, Hashing(**settings), seed=3)  # pyright: ignore[reportArgumentType]


def tokens(episode: Episode, role: str) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return prompt and response of each step of each trajectory of a role."""
    return [[(tuple(s.prompt_ids), tuple(s.response_ids)) for s in t.steps] for t in episode[role]]


def test_a_trunk_is_token_for_token_what_it_is_without_its_forks(tmp_path: Path) -> None:
    """Two forks, and a fork of one of them, leave the trunk's tokens as they are."""
    loop = {"talk": {"roles": ["agent"], "times": 3}}
    agent = {"memory": "chat", "prompt": "round {{ self.round }}"}
    forks: Roles = {
        "critic": {**FORK, "needs": ["agent"], "prompt": "what is wrong?"},
        "poet": {**FORK, "needs": ["agent"], "prompt": "as a poem"},
        "editor": {"memory": {"fork": "poet"}, "needs": ["poet"], "prompt": "shorter"},
    }
    (tmp_path / "one").mkdir()
    alone = run(plan(tmp_path / "one", {"agent": agent}, loop))
    forked = run(
        plan(tmp_path, {"agent": agent, **forks}, {"talk": {"roles": ["agent", *forks], "times": 3}})
    )
    assert tokens(forked, "agent") == tokens(alone, "agent")
    trunk, poems = tokens(forked, "agent")[0], tokens(forked, "poet")[0]
    for before, poem, edited in zip(trunk, poems, tokens(forked, "editor")[0], strict=True):
        assert poem[0][: len(before[0]) + 2] == (*before[0], *before[1])
        assert edited[0][: len(poem[0]) + 2] == (*poem[0], *poem[1])


def test_each_sampled_token_is_trained_once_in_the_role_that_sampled_it(tmp_path: Path) -> None:
    made = plan(tmp_path, folding(), STEPS)
    done = run(made)
    trained: list[int] = []
    for trajectory in done.trajectories:
        steps = step_advantages(done, weighted(trajectory, 1.0), made.trained[trajectory.name])
        sequences = [*token_sequences(steps)]
        assert len(sequences) == (1 if trajectory.name == "agent" else 2), "one for each fork"
        for sequence in sequences:
            datum, _ = build_datum(sequence, "importance_sampling", 1.0)
            inputs = datum.loss_fn_inputs
            pairs = zip(inputs["target_tokens"].tolist(), inputs["advantages"].tolist(), strict=True)
            trained += [token for token, advantage in pairs if advantage]
    sampled = [token for t in done.trajectories for step in t.steps for token in step.response_ids]
    assert sorted(trained) == sorted(sampled)


def test_steps_say_which_turn_they_go_on_from(tmp_path: Path) -> None:
    done = run(plan(tmp_path, folding(), STEPS))
    forked = [step.metadata.get("forked") for step in done["branch"][0].steps]
    agent = [{"role": "agent", "index": 1, "round": number} for number in (1, 2)]
    assert forked == [agent[0], None, agent[1], None]
    assert not any({"forked", "restarted"} & step.metadata.keys() for step in done["agent"][0].steps)


def test_a_skipped_or_failed_turn_of_the_trunk_leaves_the_branch_where_it_is(tmp_path: Path) -> None:
    """The branch goes on with its own turns while the agent is skipped, and with nothing begins by itself."""

    def answer(request: Request) -> str:
        if request.id.node == NodeId("agent", 1, 1):
            raise ModelError("down")
        return whose(request)

    roles = folding(system="own", memory={"fork": "agent", "reset": "false"})
    roles["agent"]["when"] = "self.round != 3"
    model = ScriptedModel(answer)
    run_one(plan(tmp_path, roles, {"work": {"roles": ["agent", "branch"], "times": 3}}), model)
    asked = asked_of(model, "branch")
    trunk = ["go branch1.1 ", said("agent1.2")]
    assert asked[NodeId("branch", 1, 1)] == ["own", "try 1"]
    assert asked[NodeId("branch", 1, 2)] == [*trunk, "try 2"]
    assert asked[NodeId("branch", 1, 3)] == [*trunk, "try 2", said("branch1.2"), "try 3"]


def test_some_forks_of_each_instance_go_on_from_their_own(tmp_path: Path) -> None:
    roles: Roles = {
        "agent": {"count": 2, "prompt": "you are {{ self.index }}"},
        "branch": {"needs": {"agent": "each"}, "count": 2, **FORK, "prompt": "again"},
    }
    model = ScriptedModel(whose)
    run_one(plan(tmp_path, roles), model)
    trunk = {node.index: chat[:2] for node, chat in asked_of(model, "branch").items()}
    one, two = ([f"you are {n}", said(f"agent{n}.1")] for n in (1, 2))
    assert trunk == {1: one, 2: one, 3: two, 4: two}


def test_a_fork_finds_the_calls_of_tools_of_its_trunk(tmp_path: Path) -> None:
    tools = {"tools": ["calculator"], "max_calls": 2, "parser": "text"}
    roles: Roles = {"agent": {**tools, "prompt": "one"}, "branch": {**tools, **FORK, "needs": ["agent"]}}
    model = Calling()
    done = run_one(plan(tmp_path, roles), model)
    assert contents(model.requests[2])[:4] == ["one", "", "7", "it is 7"]
    before = done["agent"][0].steps[-1]
    so_far = (*before.prompt_ids, *before.response_ids)
    assert (*done["branch"][0].steps[0].prompt_ids[: len(so_far)],) == so_far


@pytest.mark.parametrize(("model", "continues"), [({}, True), ({"model": "local:other"}, False)])
def test_a_fork_with_another_model_goes_on_from_the_messages(
    model: Mapping[str, Any], continues: bool, tmp_path: Path
) -> None:
    """Token ids are passed on between policies of one base model only."""
    roles: Roles = {"agent": {"prompt": "one"}, "judge": {**FORK, "policy": "judge", "needs": ["agent"]}}
    made = plan(tmp_path, roles, policies={"judge": model})
    asked = Hashing()
    run_one(made, asked)  # pyright: ignore[reportArgumentType]
    (_, judge) = asked.requests
    assert [message["role"] for message in judge.messages] == ["user", "assistant", "user"]
    assert (judge.continues is not None) == continues


def test_a_fork_that_outgrows_the_context_fails_alone(tmp_path: Path) -> None:
    done = run(plan(tmp_path, folding(), STEPS), context=8)
    (failure,) = done.metadata["failures"]
    assert (failure["role"], failure["round"], failure["name"]) == ("branch", 4, FailureName.CONTEXT_FULL)
    assert len(done["agent"][0].steps) == 2


# reset


def thinking(reset: str, **thinker: Any) -> Roles:
    memory = {"reset": reset}
    system = "think"
    return {
        "meta": {"prompt": "lead", "needs": {"thinker": "previous"}},
        "thinker": {
            "needs": ["meta"],
            "memory": memory,
            "system": system,
            "prompt": "{{ self.round }}",
            **thinker,
        },
    }


TALK = {"talk": {"roles": ["meta", "thinker"], "times": 4}}


def leading(request: Request, *, restart: int = 3) -> str:
    """Answer `restart` as the leader in one round, else as `whose` does."""
    is_restart = request.id.node.role == "meta" and request.id.node.round == restart
    return said("restart") if is_restart else whose(request)


RESTART = 'meta.action == "restart"'


def test_a_reset_begins_the_conversation_anew_with_system_and_prompt(tmp_path: Path) -> None:
    model = ScriptedModel(leading)
    done = run_one(plan(tmp_path, thinking(RESTART), TALK), model)
    asked = asked_of(model, "thinker")
    assert asked[NodeId("thinker", 1, 2)] == ["think", "1", said("thinker1.1"), "2"]
    assert asked[NodeId("thinker", 1, 3)] == ["think", "3"]
    assert asked[NodeId("thinker", 1, 4)] == ["think", "3", said("thinker1.3"), "4"]
    steps = done["thinker"][0].steps
    assert [step.metadata.get("restarted") for step in steps] == [None, None, True, None]


def test_a_conversation_that_began_anew_does_not_come_back_where_the_turn_failed(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.id.node == NodeId("thinker", 1, 3):
            raise ModelError("down")
        return leading(request)

    model = ScriptedModel(answer)
    run_one(plan(tmp_path, thinking(RESTART), TALK), model)
    assert asked_of(model, "thinker")[NodeId("thinker", 1, 4)] == ["think", "4"]


def test_a_reset_that_cannot_be_computed_fails_the_turn_by_name(tmp_path: Path) -> None:
    """The first turn has no conversation to drop, so nothing is computed."""
    model = ScriptedModel(whose)
    done = run_one(plan(tmp_path, thinking("meta.action + 1 > 3"), TALK), model)
    failed = [(f["role"], f["round"], f["name"]) for f in done.metadata["failures"]]
    assert failed == [("thinker", number, FailureName.PROMPT_ERROR) for number in (2, 3, 4)]
    assert [*asked_of(model, "thinker")] == [NodeId("thinker", 1, 1)]


def test_a_reset_turn_trains_a_sequence_of_its_own(tmp_path: Path) -> None:
    made = plan(tmp_path, thinking("self.round == 3"), TALK)
    done = run(made)
    trajectory = weighted(done["thinker"][0], 1.0)
    sequences = [*token_sequences(step_advantages(done, trajectory, made.trained["thinker"]))]
    assert [len(sequence) for sequence in sequences] == [2, 2]


# faults

RUNS = {"run": {"text": "x"}, "prompt": None}
ONE = {"talk": {"roles": ["agent"], "times": 2}}


@pytest.mark.parametrize(
    ("roles", "word"),
    [
        ({"agent": {}, "b": {"memory": {"fork": "agnet"}, "needs": ["agent"]}}, "agnet"),
        ({"agent": {}, "b": FORK}, "neither waits"),
        ({"agent": {"needs": ["b"]}, "b": FORK}, "no turn before"),
        ({"agent": {"memory": {"fork": "agent"}}}, "its own conversation"),
        ({"agent": {"memory": {"fork": "b"}}, "b": {**FORK, "needs": ["agent"]}}, "from each other"),
        ({"agent": {"count": 2}, "b": {**FORK, "needs": ["agent"], "count": 3}}, "3 instances for 2"),
        ({"agent": {"sees": ["solution"]}, "b": {**FORK, "needs": ["agent"]}}, "task.solution"),
        ({"agent": {}, "b": {**FORK, "needs": ["agent"], "tools": "calculator", "max_calls": 2}}, "`tools`"),
        ({"agent": {}, "b": {**FORK, "needs": ["agent"], "system": "s"}}, "`system`"),
        ({"agent": RUNS, "b": {**FORK, "needs": ["agent"]}}, "runs a tool"),
        ({"agent": {}, "b": {"memory": {"reset": "other.action"}, "needs": ["agent"]}, "other": {}}, "other"),
        ({"agent": {}, "b": {"memory": {}}}, "memory"),
    ],
)  # fmt: skip
def test_a_fork_that_cannot_be_is_a_fault(roles: dict[str, Any], word: str, tmp_path: Path) -> None:
    loop = {"talk": {"roles": ["b"], "times": 2}} if "other" in roles else {}
    found = faults(tmp_path, roles, loop)
    assert len(found) == 1, found
    assert word in found[0]


def test_a_chat_named_after_a_role_with_its_own_is_a_fault(tmp_path: Path) -> None:
    roles: Roles = {"agent": {"memory": "chat"}, "b": {"memory": {"chat": "agent"}, "needs": ["agent"]}}
    (fault,) = faults(tmp_path, roles, ONE)
    assert fault == "b keeps the conversation agent, and the role agent keeps one of its own"
    roles["agent"]["memory"] = {"chat": "agent"}
    assert faults(tmp_path, roles, ONE) == []
    assert faults(tmp_path, {**roles, "b": {**FORK, "needs": ["agent"]}}, ONE) == []


def test_own_is_no_shared_conversation(tmp_path: Path) -> None:
    own = {"memory": "chat", "prompt": "{{ self.round }}"}
    model = ScriptedModel(whose)
    loop = {"talk": {"roles": ["a", "b"], "times": 2}}
    run_one(plan(tmp_path, {"a": own, "b": {**own, "needs": ["a"]}}, loop), model)
    chat: Sequence[str] = asked_of(model, "b")[NodeId("b", 1, 2)]
    assert chat == ["1", said("b1.1"), "2"]
