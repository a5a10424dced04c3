"""Policies in training through the Tinker SDK, on a scripted service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import tinker
from starlette.responses import JSONResponse, Response

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.models import Request, ServedModel
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.records import MAIN, CallId, NodeId, SavedPolicy, Step
from rolegraph.engine.spec import Lora, ModelRef, Sampling
from rolegraph.engine.training.policies.batches import RoleBatch, StepAdvantages, build_datum
from rolegraph.engine.training.policies.policies import Policies, PolicyStart, UpdateResult
from rolegraph.engine.vocabulary import ItemCall, Loss, losses
from tests.models.tinker_edge import GAP, GRAD_NORM, Learnt, Service, failed, tinker_service

KEY = "tml-test-secret"


@pytest.fixture
def service() -> Iterator[Service]:
    with tinker_service(lambda _: ([1, 2], [-0.5, -0.5], "stop")) as service:
        yield service


class Training:
    """Scripted service, and policies on it."""

    def __init__(self, service: Service, tokenizer: Path) -> None:
        self.service, self.tokenizer = service, tokenizer

    @asynccontextmanager
    async def open(
        self,
        lora: Lora | None = None,
        *,
        state: str | None = None,
        version: int = 0,
        name: str = "tiny",
        traits: ServiceTraits | None = None,
    ) -> AsyncGenerator[Policies]:
        ref = ModelRef(provider="tinker", name=name, base_url=self.service.base_url)
        served = ServedModel(ref, KEY, self.tokenizer)
        saved = SavedPolicy(version=version, state=state, sampler="") if state else None
        start = PolicyStart(served, lora or Lora(), 7, saved, traits)
        async with Policies.open({MAIN: start}) as policies:
            yield policies

    def do(self, work: Callable[[Policies], Awaitable[object]]) -> None:
        async def run() -> None:
            async with self.open() as policies:
                await work(policies)

        asyncio.run(run())


@pytest.fixture
def training(service: Service, tokenizer: Path) -> Training:
    return Training(service, tokenizer)


def batch(role: str, *, data: int = 1, loss: Loss | str = "importance_sampling") -> RoleBatch:
    """Return a batch of `data` equal datums, with two prompt tokens and two response tokens."""
    step = Step([10, 11], [12, 13], [-1.0, -2.0], advantage=0.5)
    loss = loss if isinstance(loss, Loss) else losses.build(ItemCall(loss))
    learnt, spans = build_datum([StepAdvantages(step, [0.5, 0.5], role)], loss.name, 1.0)
    return RoleBatch(role, loss, [learnt] * data, [spans] * data, steps=data)


async def update(
    policies: Policies, *batches: RoleBatch, rate: float = 0.01, clip: float = 1.0
) -> UpdateResult:
    return (await policies.update_all({MAIN: batches}, {MAIN: rate}, clip))[MAIN]


# starting points


def test_a_new_adapter_has_the_shape_and_seed_that_were_asked_for(training: Training) -> None:
    async def run() -> None:
        async with training.open(Lora(rank=4, attention=True, mlp=False, unembed=False)) as policies:
            assert policies[MAIN].version == 0
            assert policies[MAIN].model == "tiny"

    asyncio.run(run())
    (created,) = training.service.asked_for("create_model")
    assert created["base_model"] == "tiny"
    asked = {"rank": 4, "seed": 7, "train_attn": True, "train_mlp": False, "train_unembed": False}
    assert asked.items() <= created["lora_config"].items()


def test_a_saved_state_is_taken_up_with_its_optimizer_and_its_version(training: Training) -> None:
    async def run() -> None:
        async with training.open(state="tinker://run/weights/step-000004", version=3) as policies:
            assert policies[MAIN].version == 3

    asyncio.run(run())
    (loaded,) = training.service.asked_for("load_weights")
    assert (loaded["path"], loaded["optimizer"]) == ("tinker://run/weights/step-000004", True)
    assert training.service.asked_for("create_model") == []


REFUSED = f"no room for {KEY}"


@pytest.mark.parametrize(
    "refusal",
    [JSONResponse({"detail": REFUSED}, status_code=400), failed(REFUSED, "user")],
    ids=["at once", "later"],
)
@pytest.mark.parametrize(
    ("operation", "state", "message"),
    [
        ("create_model", None, "cannot train 'tiny': .*no room for"),
        (
            "load_weights",
            "tinker://run/weights/gone",
            "cannot resume from tinker://run/weights/gone: .*no room for",
        ),
    ],
)
def test_what_the_service_refuses_to_open_is_the_person_s_mistake(
    operation: str, state: str | None, message: str, refusal: Response, training: Training
) -> None:
    training.service.refusals[operation] = iter([refusal])

    async def run() -> None:
        async with training.open(state=state):
            pass

    with pytest.raises(UsageError, match=message) as caught:
        asyncio.run(run())
    assert KEY not in str(caught.value)


def test_a_model_that_the_service_does_not_have_is_the_person_s_mistake(training: Training) -> None:
    async def run() -> None:
        async with training.open(name="tinny"):
            pass

    with pytest.raises(UsageError, match="cannot train 'tinny'"):
        asyncio.run(run())


def test_a_service_that_fails_to_open_is_the_world_s_fault(training: Training) -> None:
    training.service.refusals["create_model"] = iter([failed(f"out of memory, {KEY}", "server")])
    with pytest.raises(WorldError, match="out of memory") as caught:
        training.do(lambda policies: asyncio.sleep(0))
    assert KEY not in str(caught.value)


# sampling


def test_weights_to_sample_from_are_asked_for_once_a_version(training: Training) -> None:
    async def work(policies: Policies) -> None:
        before = await policies[MAIN].sampler()
        assert await policies[MAIN].sampler() is before
        assert len(training.service.asked_for("save_weights_for_sampler")) == 1
        await update(policies, batch("solver"))
        after = await policies[MAIN].sampler()
        assert after is not before
        assert len(training.service.asked_for("save_weights_for_sampler")) == 2

    training.do(work)


def test_an_answer_says_which_weights_gave_it(training: Training) -> None:
    ask = Request([{"role": "user", "content": "?"}], Sampling(), None, CallId("t", 0, NodeId("solver")))

    async def work(policies: Policies) -> None:
        for version in range(2):
            completion, *_ = await (await policies[MAIN].sampler()).complete(ask)
            assert completion.weight_version == version
            await update(policies, batch("solver"))

    training.do(work)
    sessions = [body["sampling_session_id"] for body in training.service.asked]
    assert [training.service.updates[session] for session in sessions] == [0, 1]


# updates


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("importance_sampling", ("importance_sampling", {})),
        ("ppo", ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})),
        ("cispo", ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0})),
        (
            {"ppo": {"clip_high_threshold": 1.3}},
            ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.3}),
        ),
        (
            {"gspo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}},
            ("gspo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        ),
    ],
)
def test_a_loss_is_sent_with_all_of_its_settings(
    training: Training, written: object, sent: tuple[str, dict[str, float]]
) -> None:
    loss = losses.build(ItemCall.parse(written))

    async def work(policies: Policies) -> None:
        await update(policies, batch("solver", loss=loss))

    training.do(work)
    (body,) = training.service.asked_for("forward_backward")
    assert (body["loss_fn"], body["loss_fn_config"]) == (sent[0], pytest.approx(sent[1]))
    inputs = body["data"][0].inputs
    assert inputs.get("sequence_ratio_mask") == ([0.0, 1.0, 1.0] if loss.name == "gspo" else None)


def test_all_batches_and_the_step_are_sent_before_any_is_awaited(training: Training) -> None:
    training.service.first["forward_backward"] = "optim_step"

    async def work(policies: Policies) -> None:
        async with asyncio.timeout(600):  # it would wait for ever
            await update(policies, batch("solver", data=2), batch("judge", loss="ppo"))

    training.do(work)
    names = [operation.name for operation in training.service.operations]
    assert names == ["create_model", "forward_backward", "forward_backward", "optim_step"]
    solver, judge = training.service.asked_for("forward_backward")
    assert (solver["loss_fn"], len(solver["data"])) == ("importance_sampling", 2)
    assert (judge["loss_fn"], len(judge["data"])) == ("ppo", 1)
    assert judge["data"] == [
        Learnt(
            [10, 11, 12],
            {
                "target_tokens": [11, 12, 13],
                "logprobs": [0.0, -1.0, -2.0],
                "advantages": [0.0, 0.5, 0.5],
            },
        )
    ]


def test_adam_s_settings_are_the_sdk_s_but_for_rate_and_clip(training: Training) -> None:
    training.do(lambda policies: update(policies, batch("solver"), rate=0.02, clip=0.5))
    (step,) = training.service.asked_for("optim_step")
    expected = tinker.AdamParams(learning_rate=0.02, grad_clip_norm=0.5)
    assert tinker.AdamParams.model_validate(step["adam_params"]) == expected


def test_loss_kl_and_the_gradient_s_norm_are_read_back(training: Training) -> None:
    async def work(policies: Policies) -> None:
        updated = await update(policies, batch("solver", data=3), batch("judge"))
        assert updated.loss == {"solver": 3.0, "judge": 1.0}
        assert updated.kl == pytest.approx({"solver": GAP, "judge": GAP})
        assert updated.grad_norm == GRAD_NORM

    training.do(work)


def test_an_update_makes_a_version_and_nothing_to_learn_makes_none(training: Training) -> None:
    async def work(policies: Policies) -> None:
        await update(policies, batch("solver"))
        assert policies[MAIN].version == 1
        assert await policies.update_all({MAIN: []}, {MAIN: 0.01}, 1.0) == {}
        assert policies[MAIN].version == 1

    training.do(work)
    assert len(training.service.asked_for("optim_step")) == 1


def test_a_checkpoint_is_a_state_and_weights_to_sample_from_under_one_label(training: Training) -> None:
    async def work(policies: Policies) -> None:
        saved = await policies.save("step-000002")
        state, sampler = "tinker://run/weights/step-000002", "tinker://run/sampler_weights/step-000002"
        assert saved == {MAIN: SavedPolicy(version=0, state=state, sampler=sampler)}

    training.do(work)
    (state,) = training.service.asked_for("save_weights")
    assert state["overwrite"] is True, "a step that is done again takes the place of the first"


# failures


FAULTS: list[tuple[str, Callable[[Policies], Awaitable[object]], str]] = [
    ("forward_backward", lambda p: update(p, batch("solver")), "cannot train on this batch"),
    ("optim_step", lambda p: update(p, batch("solver")), "cannot train on this batch"),
    ("save_weights", lambda p: p.save("last"), "cannot write the checkpoint last"),
    ("save_weights_for_sampler", lambda p: p.save("last"), "cannot write the checkpoint last"),
    ("save_weights_for_sampler", lambda p: p[MAIN].sampler(), "cannot give weights to sample from"),
]


@pytest.mark.parametrize(("operation", "work", "message"), FAULTS)
def test_what_the_service_fails_to_do_is_named_without_the_key(
    operation: str, work: Callable[[Policies], Awaitable[object]], message: str, training: Training
) -> None:
    training.service.refusals[operation] = iter([failed(f"the disk is full, {KEY}", "server")])

    async def run(policies: Policies) -> None:
        with pytest.raises(WorldError, match=f"{message}: the disk is full") as caught:
            await work(policies)
        assert KEY not in str(caught.value)
        assert policies[MAIN].version == 0

    training.do(run)


@pytest.mark.parametrize("operation", ["forward_backward", "optim_step"])
@pytest.mark.parametrize("media", ["application/json", "application/x-protobuf"])
@pytest.mark.parametrize("garbage", [b"<html>busy</html>", b"{", b"\x00\xff"])
def test_an_answer_that_cannot_be_read_ends_the_update_and_nothing_is_learnt_twice(
    operation: str, garbage: bytes, media: str, training: Training
) -> None:
    training.service.refusals[operation] = iter([Response(garbage, media_type=media)])

    async def run(policies: Policies) -> None:
        with pytest.raises(WorldError, match=r"cannot train on this batch.*--resume") as caught:
            await update(policies, batch("solver"))
        assert KEY not in str(caught.value)
        assert policies[MAIN].version == 0

    training.do(run)
    assert len(training.service.asked_for(operation)) == 1


async def vanishing(service: Service, operation: str, work: Awaitable[object], gone: ExitStack) -> None:
    """Stop the service while an operation of `work` is pending; raises what `work` raises."""
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def passing() -> Iterator[None]:
        loop.call_soon_threadsafe(sent.set)
        yield None

    service.refusals[operation] = passing()
    pending = asyncio.ensure_future(work)
    await sent.wait()
    gone.close()
    with pytest.raises(WorldError, match=f"service at {service.base_url} is gone"):
        async with asyncio.timeout(600):  # it would wait for ever
            await pending


def test_a_service_that_goes_away_in_an_update_is_named_instead_of_waited_for(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.tinker._PATIENCE_SECONDS", 0.1)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            serving = stack.enter_context(ExitStack())
            service = serving.enter_context(tinker_service(lambda _: ([], [], "stop")))
            service.first["forward_backward"] = "what never comes"
            policies = await stack.enter_async_context(Training(service, tokenizer).open())
            await vanishing(service, "optim_step", update(policies, batch("solver")), serving)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("operation", "state"), [("create_model", None), ("load_weights", "tinker://run/weights/x")]
)
def test_a_service_that_goes_away_while_it_opens_is_named_instead_of_waited_for(
    operation: str, state: str | None, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.tinker._PATIENCE_SECONDS", 0.1)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            serving = stack.enter_context(ExitStack())
            service = serving.enter_context(tinker_service(lambda _: ([], [], "stop")))
            service.first[operation] = "what never comes"
            opening = stack.enter_async_context(Training(service, tokenizer).open(state=state))
            await vanishing(service, operation, opening, serving)

    asyncio.run(run())
