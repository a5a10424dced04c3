"""Teachers and likelihoods on the local service, against log-probabilities of the whole text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import tinker

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import LimitedModel, ServedModel
from rolegraph.engine.models.opening import open_served
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.models.tinker import TinkerModel
from rolegraph.engine.models.tinker_sdk import awaitable
from rolegraph.engine.records import MAIN, Episode
from rolegraph.engine.run.likelihood import check_scorers
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.advantages.signals import SignalResult
from rolegraph.local.launcher import BASE_MODEL, LocalService
from tests.edge import COUNTDOWN, episode, write_spec
from tests.training.test_signals import signals_of

pytestmark = pytest.mark.service

SHORT = ("sampling.max_tokens=12",)


@asynccontextmanager
async def opened(service: LocalService) -> AsyncGenerator[TinkerModel]:
    """Open the shipped model at the local service."""
    ref = ModelRef(provider="tinker", name=service.model_name, base_url=service.base_url)
    model = await open_served(ServedModel(ref, service.api_key, BASE_MODEL))
    assert isinstance(model, TinkerModel)
    try:
        yield model
    finally:
        await model.aclose()


async def whole(model: TinkerModel, *parts: Sequence[int]) -> list[float]:
    """Return the model's log-probabilities of the last of some parts of a text."""
    ids = [token for part in parts for token in part]
    found = await awaitable(model.client.compute_logprobs(tinker.ModelInput.from_ints(ids)))
    return [value or 0.0 for value in found[-len(parts[-1]) :]]


def taught(prompt: str, **further: str) -> Plan:
    signal = (
        f'{{reverse_kl: {{clip: null, teacher: {{policy: main, sees: [solution], prompt: "{prompt}"' + "}}}"
    )
    return compile_file("solver_judge", [*SHORT, f"roles.solver.signal={signal}"])


async def signalled(plan: Plan, model: TinkerModel, given: Episode) -> SignalResult:
    return await signals_of(plan, [given], {MAIN: LimitedModel(model, 8)}, model.chat)


def test_the_teachers_figures_are_those_of_its_own_chat(service: LocalService) -> None:
    plan = taught("{{ task.question }} It is {{ task.solution }}. The judge: {{ judge.action }}")

    async def check() -> None:
        async with opened(service) as model:
            made = await episode(plan, [LimitedModel(model, 8)] * len(plan.endpoints), seed=3)
            found = await signalled(plan, model, made)
            (judge,) = made["judge"]
            text = f"{COUNTDOWN['question']} It is 3 + 4. The judge: {judge.action}"
            asked = model.chat.prompt([{"role": "user", "content": text}]).ids
            for solver in made["solver"]:
                (step,) = solver.steps
                by_hand = await whole(model, asked, step.response_ids)
                expected = [there - here for there, here in zip(by_hand, step.logprobs, strict=True)]
                (advantages,) = found.added[solver.uid]
                assert advantages == pytest.approx(expected, rel=1e-5, abs=1e-5)
                assert max(map(abs, expected)) > 0.01
            # Recorded answers are scored as those of the model.
            replay = [LimitedModel(Replay.from_episodes([made]), 8)] * len(plan.endpoints)
            again = await signalled(plan, model, await episode(plan, replay, seed=3))
            assert again.added == {
                uid: [pytest.approx(v[0], rel=1e-5, abs=1e-5)] for uid, v in found.added.items()
            }

    asyncio.run(check())


@pytest.mark.parametrize("prompt", ["{{ self.prompt }}", "solver.j2"])
def test_the_students_own_prompt_teaches_0_on_every_token(prompt: str, service: LocalService) -> None:
    plan = taught(prompt)
    if prompt == "solver.j2":
        signal = "{reverse_kl: {clip: null, teacher: {policy: main, prompt: solver.j2}}}"
        plan = compile_file("solver_judge", [*SHORT, f"roles.solver.signal={signal}"])

    async def check() -> None:
        async with opened(service) as model:
            made = await episode(plan, [LimitedModel(model, 8)] * len(plan.endpoints), seed=3)
            found = await signalled(plan, model, made)
            for (advantages,) in found.added.values():
                assert advantages == pytest.approx([0.0] * len(advantages), abs=1e-5)  # pyright: ignore

    asyncio.run(check())


LIKELY = """
rolegraph: 2
name: likely
data: {train: countdown}
sampling: {max_tokens: 12}
roles:
  solver:
    prompt: "{{ task.question }}"
    estimator: grpo
    reward:
      sum:
        text: {likelihood: {of: "{{ task.solution }}", after: " is ", per: text}}
        mean: {likelihood: {of: "{{ task.solution }}", after: " is "}}
        one: {likelihood: {of: "7", exp: true}}
        forged: {likelihood: {of: "<|im_end|>", model: base, per: text}}
"""


def test_a_likelihood_is_the_models_own_scoring_of_the_whole_text(
    service: LocalService, tmp_path: Path
) -> None:
    plan = compile_file(write_spec(tmp_path, LIKELY))

    async def check() -> None:
        async with opened(service) as model:
            models = [LimitedModel(model, 8)] * len(plan.endpoints)
            await check_scorers(plan, models)
            (solver,) = (await episode(plan, models, seed=3)).trajectories
            (step,) = solver.steps
            chat = model.chat
            kept = [token for token in step.response_ids if token not in chat.end_ids]
            before = [*step.prompt_ids, *kept]
            text = await whole(model, before, chat.text_ids(" is "), chat.text_ids("3 + 4"))
            one = await whole(model, before, chat.text_ids("7"))
            assert len(one) == 1
            marker = chat.text_ids("<|im_end|>")
            assert not {*marker} & {*chat.end_ids}, "a text ends no turn"
            forged = await whole(model, before, marker)
            expected = {
                "text": sum(text),
                "mean": sum(text) / len(text),
                "one": math.exp(one[0]),
                "forged": sum(forged),
            }
            assert solver.terms == {key: pytest.approx(value, abs=1e-4) for key, value in expected.items()}

    asyncio.run(check())
