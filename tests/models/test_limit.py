"""Tests of the limit for all calls of a model: concurrency, and retries of transient failures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.limit import ATTEMPTS, FIRST_WAIT, LONGEST_ASKED, LONGEST_WAIT, backoff
from rolegraph.engine.records import CallDone, CallId, Event, NodeId
from rolegraph.engine.spec import Sampling
from tests.clock import run_virtually
from tests.edge import Answer, ScriptedModel

BUSY = ModelError("overloaded", transient=True)


class Scoring(ScriptedModel):
    """Model that holds every call until `go` is set, and scores given tokens."""

    def __init__(self) -> None:
        super().__init__(lambda _: "")
        self.go = asyncio.Event()
        self.started = asyncio.Semaphore(0)

    async def held(self) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.started.release()
        await self.go.wait()
        self.under_way -= 1

    async def complete(self, request: Request) -> Completion:
        await self.held()
        return Completion("done")

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        await self.held()
        return [-1.0] * len(response_ids)


def request(task: str = "t") -> Request:
    return Request([], Sampling(), None, CallId(task, 0, NodeId("solver")))


def failing(times: int, error: Exception = BUSY) -> Answer:
    """Return a function that fails `times` times and then answers."""
    faults = iter([error] * times)

    def answer(request: Request) -> str:
        if fault := next(faults, None):
            raise fault
        return "done"

    return answer


def complete(model: ScriptedModel, observe: Callable[[Event], None] | None = None) -> str:
    answer, *_ = asyncio.run(limited_call(model, observe))
    return answer.text


async def limited_call(
    model: ScriptedModel, observe: Callable[[Event], None] | None
) -> tuple[Completion, float, float]:
    return await LimitedModel(model, 1).complete(request(), observe=observe)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.0)


def test_answers_and_log_probabilities_share_one_limit() -> None:
    async def run() -> int:
        model = Scoring()
        limited = LimitedModel(model, 2)
        calls: list[Coroutine[Any, Any, object]] = [limited.complete(request()) for _ in range(4)]
        calls += [limited.logprobs([1], [2, 3]) for _ in range(4)]
        running = [asyncio.create_task(call) for call in calls]
        for _ in range(2):
            await model.started.acquire()
        model.go.set()
        await asyncio.gather(*running)
        return model.most_under_way

    assert asyncio.run(run()) == 2


class Busy(ScriptedModel):
    """Model that is overloaded as a teacher and for one task."""

    def __init__(self) -> None:
        super().__init__(lambda _: "done")
        self.failed = asyncio.Event()

    async def complete(self, request: Request) -> Completion:
        if request.id.task == "unlucky":
            await self.logprobs([], [])
        return await super().complete(request)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        self.failed.set()
        raise BUSY


@pytest.mark.parametrize(
    "ask",
    [lambda limited: limited.complete(request("unlucky")), lambda limited: limited.logprobs([1], [2])],
    ids=["call", "teacher"],
)
def test_what_waits_to_be_tried_again_holds_no_slot(
    ask: Callable[[LimitedModel], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 60.0)
    monkeypatch.setattr("rolegraph.engine.models.limit.LONGEST_WAIT", 60.0)

    async def run() -> None:
        model = Busy()
        limited = LimitedModel(model, 1)
        unlucky = asyncio.create_task(ask(limited))
        await model.failed.wait()
        answer, *_ = await limited.complete(request("another"))
        assert answer.text == "done"
        assert not unlucky.done()
        unlucky.cancel()

    asyncio.run(run())


def test_a_passing_failure_is_tried_again_and_each_call_is_told(no_wait: None) -> None:
    events: list[Event] = []
    assert complete(ScriptedModel(failing(2)), events.append) == "done"
    calls = [event for event in events if isinstance(event, CallDone)]
    assert [(call.id, call.answered) for call in calls] == [
        (request().id, False),
        (request().id, False),
        (request().id, True),
    ]
    assert all(call.seconds >= 0.0 for call in calls)


def test_a_failure_that_does_not_pass_ends_after_a_few_attempts(no_wait: None) -> None:
    model = ScriptedModel(failing(100))
    with pytest.raises(ModelError, match="overloaded"):
        complete(model)
    assert len(model.requests) == ATTEMPTS


@pytest.mark.parametrize("error", [ModelError("400: no"), RuntimeError("a bug"), TimeoutError()])
def test_what_will_not_pass_is_raised_at_once(error: Exception) -> None:
    model = ScriptedModel(failing(1, error))
    events: list[Event] = []
    with pytest.raises(type(error)):
        complete(model, events.append)
    assert len(model.requests) == 1
    assert [event.answered for event in events if isinstance(event, CallDone)] == [False]


def test_the_slot_of_a_call_that_failed_is_free_again() -> None:
    async def run() -> str:
        limited = LimitedModel(ScriptedModel(failing(1, ModelError("400: no"))), 1)
        with pytest.raises(ModelError):
            await limited.complete(request())
        return (await limited.complete(request()))[0].text

    assert asyncio.run(run()) == "done"


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "just as it is given the slot"])
def test_who_gives_up_waiting_leaves_the_slot_to_the_next_in_order(given: bool) -> None:
    answered: list[str] = []

    async def run() -> None:
        model = Scoring()
        limited = LimitedModel(model, 1)

        async def call(name: str) -> None:
            await limited.complete(request(), observe=lambda _: freed(name))
            answered.append(name)

        def freed(name: str) -> None:
            if given and name == "first":
                second.cancel()

        first = asyncio.create_task(call("first"))
        await model.started.acquire()
        second, third, fourth = (asyncio.create_task(call(name)) for name in ("second", "third", "fourth"))
        await asyncio.sleep(0)
        if not given:
            second.cancel()
            await asyncio.wait([second])
        model.go.set()
        await asyncio.gather(first, third, fourth)
        assert second.cancelled()
        await call("last")

    asyncio.run(run())
    assert answered == ["first", "third", "fourth", "last"]


def test_a_timeout_does_not_count_the_wait_for_a_slot() -> None:
    async def run() -> None:
        model = Scoring()
        limited = LimitedModel(model, 1)
        first = asyncio.create_task(limited.complete(request()))
        await model.started.acquire()
        second = asyncio.create_task(limited.complete(request(), seconds=0.001))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.shield(second)
        assert not second.done(), "its own limit has passed, but it was never asked"
        model.go.set()
        assert (await second)[0].text == "done"
        await first

    asyncio.run(run())


def test_a_model_without_log_probabilities_cannot_teach() -> None:
    limited = LimitedModel(ScriptedModel(lambda _: ""), 1)
    with pytest.raises(UsageError, match="gives no log-probabilities"):
        asyncio.run(limited.logprobs([1], [2]))


class Numbers(ScriptedModel):
    """Model that gives these log-probabilities, for answers and for given tokens."""

    def __init__(self, *given: Any) -> None:
        super().__init__(lambda _: "")
        self.given = [*given]

    async def complete(self, request: Request) -> Completion:
        return Completion("four", response_ids=[7] * len(self.given), logprobs=self.given)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        return self.given


def test_an_answer_keeps_its_text_where_a_number_is_unusable_and_the_first_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> list[Completion]:
        first = LimitedModel(Numbers(-0.5, math.nan), 1)
        return [(await it.complete(request()))[0] for it in (first, first.with_model(Numbers(1.5)))]

    answers = asyncio.run(ask())
    assert [(it.text, len(it.response_ids), it.logprobs) for it in answers] == [
        ("four", 2, ()),
        ("four", 1, ()),
    ]
    assert [it.unusable_numbers for it in answers] == [("log-probability nan",), ("log-probability 1.5",)]
    assert len(caplog.messages) == 1 and "task 't', rollout 0, solver 1" in caplog.messages[0]


@pytest.mark.parametrize("given", [[-0.5], [-0.5, math.nan], [-math.inf, -0.5], [None, -0.5], [-0.5, 3.0]])
def test_a_teachers_number_that_is_no_log_probability_is_refused(given: list[Any]) -> None:
    with pytest.raises(ModelError, match="no log-probability for each of 2 tokens"):
        asyncio.run(LimitedModel(Numbers(*given), 1).logprobs([1], [2, 3]))


def test_the_wait_doubles_up_to_a_bound_and_is_random_from_the_first_attempt() -> None:
    for attempt in range(1, 20):
        least = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
        waits = {backoff(attempt) for _ in range(100)}
        assert len(waits) > 1
        assert least <= min(waits)
        assert max(waits) <= 2 * least <= 2 * LONGEST_WAIT


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        (None, FIRST_WAIT, 2 * FIRST_WAIT),
        (0.0, FIRST_WAIT, 2 * FIRST_WAIT),
        (7.0, 7.0, 7.0 + FIRST_WAIT),
        (10_000.0, LONGEST_ASKED, LONGEST_ASKED + FIRST_WAIT),
    ],
)
def test_a_server_that_asks_for_time_is_given_it_within_bounds(
    asked: float | None, least: float, most: float
) -> None:
    model = ScriptedModel(failing(1, ModelError("busy", transient=True, after=asked)))
    (answer, *_), seconds = run_virtually(limited_call(model, None))
    assert answer.text == "done"
    assert least <= seconds <= most


def test_newer_weights_stand_behind_the_same_limit() -> None:
    model = ScriptedModel(lambda _: "yes", lambda _: 0.01)
    older = LimitedModel(model, 2)
    newer = older.with_model(model)

    async def six() -> None:
        calls = [limited.complete(request()) for limited in (older, newer) for _ in range(3)]
        await asyncio.gather(*calls)

    asyncio.run(six())
    assert model.most_under_way == 2
