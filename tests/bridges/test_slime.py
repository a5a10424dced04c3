"""Ejected slime modules: samples, their rewards and train data, against a router in SGLang's protocol."""
# slime is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import rolegraph as rg
from rolegraph.engine.training.advantages import estimate, group_episodes
from rolegraph.engine.training.recorded import advantages_by_uid, annotate
from tests.bridges import slime_types
from tests.cli.conftest import Command
from tests.models.edges import served, write_tokenizer

K = 4
"""Rollouts of a task."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 64, "stop": None, "stop_token_ids": None}
SERVED = ("solver_judge", "roles.judge.model=local:rolegraph-teacher")
TWO_ROUNDS = """
rolegraph: 1
name: two_rounds
data: {train: rows.jsonl, hidden: [solution]}
roles:
  writer:
    prompt: {inline: "{{ task.question }} Round {{ self.round }}."}
    memory: chat
    parser: {tag: answer}
    reward: {exact_match: {field: solution}}
    estimator: grpo
  critic:
    needs: [writer]
    prompt: {inline: "Is {{ writer.action }} right?"}
    trainable: false
loops: {talk: {roles: [writer, critic], times: 2}}
train: {rollouts: 4, batch_size: 2, steps: 1}
"""


@pytest.fixture
def sample_type(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return slime's Sample, or its restatement in place of the missing package."""
    try:
        return importlib.import_module("slime.utils.types").Sample
    except ImportError:
        types = ModuleType("slime.utils.types")
        types.Sample = slime_types.Sample  # pyright: ignore[reportAttributeAccessIssue]
        for name in ("slime", "slime.utils"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, "slime.utils.types", types)
        return slime_types.Sample


@pytest.fixture
def module(
    rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_type: Any
) -> Iterator[Callable[..., ModuleType]]:
    """Return a function that ejects a spec for slime, and imports the module."""
    assert sample_type

    def eject(spec: str, *words: str) -> ModuleType:
        done = rolegraph("eject", spec, *words, "--slime", "packed")
        assert done.returncode == 0, done.stderr
        monkeypatch.syspath_prepend(str(tmp_path / "packed"))
        return importlib.import_module(f"{Path(spec).stem}_slime")

    known = set(sys.modules)
    yield eject
    for name in set(sys.modules) - known:
        if name.endswith("_slime"):
            del sys.modules[name]


class Router:
    """SGLang's `/generate`, which answers each prompt with one of `texts`, by the prompt and its number."""

    def __init__(self, folder: Path, texts: Sequence[str]) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(write_tokenizer(folder)))
        self.texts = texts
        self.bodies: list[dict[str, Any]] = []
        self.answered: list[tuple[list[int], list[int], list[float]]] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/generate", self.generate, methods=["POST"])])

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        key = json.dumps([body["input_ids"], len(self.bodies)]).encode()
        draw = hashlib.blake2b(key, digest_size=1).digest()[0]
        ids: list[int] = self.tokenizer.encode(
            self.texts[draw % len(self.texts)] + "<|end|>", add_special_tokens=False
        )
        logprobs = [-0.25 - place / 64 for place in range(len(ids))]
        self.answered.append((body["input_ids"], ids, logprobs))
        meta = {
            "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
            "finish_reason": {"type": "stop"},
            "prompt_tokens": len(body["input_ids"]),
        }
        return JSONResponse({"text": self.tokenizer.decode(ids), "meta_info": meta})


def arguments(url: str, folder: Path) -> Namespace:
    parts = urlsplit(url)
    return Namespace(
        hf_checkpoint=str(folder), sglang_router_ip=parts.hostname, sglang_router_port=parts.port
    )


def step(module: ModuleType, args: Namespace, folder: Path, tasks: int, sample_type: Any) -> list[list[Any]]:
    """Return the samples of each rollout of a step's tasks, as slime's rollout loop collects them."""
    lines = (folder / "packed" / "prompts_train.jsonl").read_text().splitlines()[:tasks]
    rows = [json.loads(line) for line in lines]

    async def run() -> list[list[Any]]:
        prompts = [
            sample_type(index=place * K + number, group_index=place, **row)
            for place, row in enumerate(rows)
            for number in range(K)
        ]
        return [await module.custom_generate(args, sample, dict(SAMPLING)) for sample in prompts]

    return asyncio.run(run())


def test_each_role_keeps_its_reward_and_the_advantage_of_its_estimator(
    module: Callable[..., ModuleType], tmp_path: Path, sample_type: Any
) -> None:
    ejected = module("solver_judge", "model.concurrency=1")
    answers = ["<answer>1</answer>", "<answer>2</answer>", "no tag", "<answer>1+9</answer>"]
    router = Router(tmp_path / "model", answers)
    with served(router.app()) as url:
        args = arguments(url, tmp_path / "model")
        rollouts = step(ejected, args, tmp_path, 3, sample_type)
    assert [len(rollout) for rollout in rollouts] == [3] * 3 * K
    assert all(len({sample.rollout_id for sample in rollout}) == 1 for rollout in rollouts)
    samples = [sample for rollout in rollouts for sample in rollout]
    data = ejected.convert_samples_to_train_data(args, samples)

    # The same from Rolegraph's own records of these episodes.
    plan = rg.load("solver_judge").plan
    episodes = [rg.Episode.from_dict(rollout[0].metadata["rolegraph"]["episode"]) for rollout in rollouts]
    groups, _ = group_episodes(episodes, plan.trained)
    found = estimate(groups, {name: role.estimator for name, role in plan.trained.items() if role.estimator})
    own = [t for e in annotate(episodes, advantages_by_uid(groups, found), {}) for t in e.trajectories]
    assert data["raw_reward"] == [trajectory.reward for trajectory in own]
    assert data["rewards"] == [trajectory.steps[0].advantage for trajectory in own]
    assert len(set(data["rewards"])) > 2
    for sample, trajectory, mask in zip(samples, own, data["loss_masks"], strict=True):
        (only,) = trajectory.steps
        assert sample.tokens == [*only.prompt_ids, *only.response_ids]
        assert sample.response_length == len(only.response_ids) == sum(mask)
        assert sample.rollout_log_probs == [*only.logprobs]
    sent = {(tuple(prompt), tuple(ids)) for prompt, ids, _ in router.answered}
    assert {(tuple(t.steps[0].prompt_ids), tuple(t.steps[0].response_ids)) for t in own} == sent
    sums = {r[0].rollout_id: sum(s.response_length for s in r) for r in rollouts}
    assert data["rollout_mask_sums"] == [sums[sample.rollout_id] for sample in samples]


def test_turns_that_continue_a_chat_are_one_sample_with_a_mask(
    module: Callable[..., ModuleType], tmp_path: Path, sample_type: Any
) -> None:
    rows = [{"id": f"t{n}", "question": f"Say {n}.", "solution": str(n)} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "two_rounds.yaml").write_text(TWO_ROUNDS)
    ejected = module("two_rounds.yaml")
    router = Router(tmp_path / "model", ["<answer>0</answer>", "<answer>1</answer>"])
    with served(router.app()) as url:
        rollouts = step(ejected, arguments(url, tmp_path / "model"), tmp_path, 2, sample_type)
    for rollout in rollouts:
        (sample,) = rollout  # the critic is not trained
        (writer,) = rg.Episode.from_dict(sample.metadata["rolegraph"]["episode"])["writer"]
        first, second = writer.steps
        assert sample.tokens == [*second.prompt_ids, *second.response_ids]
        between = len(second.prompt_ids) - len(first.prompt_ids) - len(first.response_ids)
        sampled = [1] * len(first.response_ids) + [0] * between + [1] * len(second.response_ids)
        assert between > 0 and sample.loss_mask == sampled
        assert len(sample.rollout_log_probs) == sample.response_length == len(sampled)


def test_an_evaluation_gives_one_sample_with_the_episodes_correctness(
    module: Callable[..., ModuleType], tmp_path: Path, sample_type: Any
) -> None:
    ejected = module("solver_judge")
    row = json.loads((tmp_path / "packed" / "prompts_train.jsonl").read_text().splitlines()[0])
    router = Router(tmp_path / "model", ["<answer>1</answer>"])
    with served(router.app()) as url:
        args = arguments(url, tmp_path / "model")
        made = asyncio.run(
            ejected.custom_generate(args, sample_type(index=0, **row), dict(SAMPLING), evaluation=True)
        )
    (sample,) = made
    assert sample.reward == 0.0
    assert sum(sample.loss_mask) == 0 and len(sample.loss_mask) == sample.response_length


def test_a_rollout_without_an_answer_gives_a_masked_sample(
    module: Callable[..., ModuleType], tmp_path: Path, sample_type: Any
) -> None:
    ejected = module("solver_judge")
    row = json.loads((tmp_path / "packed" / "prompts_train.jsonl").read_text().splitlines()[0])

    async def refuse(request: Request) -> Response:
        return JSONResponse({"error": "no"}, status_code=400)

    write_tokenizer(tmp_path / "model")
    with served(Starlette(routes=[Route("/generate", refuse, methods=["POST"])])) as url:
        args = arguments(url, tmp_path / "model")
        made = asyncio.run(ejected.custom_generate(args, sample_type(index=0, **row), dict(SAMPLING)))
    data = ejected.convert_samples_to_train_data(args, made)
    assert data["loss_masks"] == [[0]] and data["rewards"] == [0.0]


def test_the_sampling_is_slimes_with_the_limit_and_the_stops_of_the_role(
    module: Callable[..., ModuleType], tmp_path: Path, sample_type: Any
) -> None:
    ejected = module("solver_judge", "roles.solver.sampling={max_tokens: 9, temperature: 0.1, stop: [END]}")
    router = Router(tmp_path / "model", ["<answer>1</answer>"])
    with served(router.app()) as url:
        step(ejected, arguments(url, tmp_path / "model"), tmp_path, 1, sample_type)
    sent = router.bodies[0]["sampling_params"]
    assert (sent["max_new_tokens"], sent["temperature"], sent["stop"]) == (9, 1.0, ["END"])
    assert router.tokenizer.convert_tokens_to_ids("<|end|>") in sent["stop_token_ids"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("solver_judge_distill",), "roles.judge learns from a signal"),
        (("solver_judge", "roles.solver.estimator=ema"), "keeps a state"),
        (("solver_judge", "policies.other={}", "roles.judge.policy=other"), "trains the policies"),
        ((*SERVED, "roles.judge.trainable=false"), "does not serve"),
    ],
)
def test_what_slime_cannot_train_is_refused(rolegraph: Command, words: Sequence[str], says: str) -> None:
    done = rolegraph("eject", *words, "--slime", "packed")
    assert done.returncode == 2
    assert says in done.stderr
