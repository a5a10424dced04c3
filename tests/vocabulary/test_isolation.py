"""Tests of isolation: a function runs in a process that can be stopped, and later calls are unaffected."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rolegraph.engine.vocabulary import Import
from rolegraph.engine.vocabulary.isolation import WORKERS, CallLimit, CallTimeout, Isolation
from tests.vocabulary import isolated
from tests.waiting import until

T = TypeVar("T")


@pytest.fixture(scope="module")
def shared() -> Iterator[Isolation]:
    """Yield one pool for many tests, since workers take longer to start than most tests to run."""
    isolation = Isolation()
    yield isolation
    asyncio.run(isolation.__aexit__(None, None, None))


async def worker_pids(isolation: Isolation) -> set[int]:
    """Return the process ids of workers that run calls concurrently."""
    calls = (isolation.run(isolated.pid, 0.2, limit=10) for _ in range(WORKERS))
    return {*await asyncio.gather(*calls)}


def within(work: Callable[[Isolation], Awaitable[T]], shared: Isolation | None = None) -> T:
    """Return the result of `work`, called with the `shared` pool or with one of its own."""

    async def run() -> T:
        async with AsyncExitStack() as stack:
            return await work(shared or await stack.enter_async_context(Isolation()))

    return asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_result_comes_back(shared: Isolation) -> None:
    assert within(lambda isolation: isolation.run(isolated.double, 21, limit=10), shared) == 42


def test_a_worker_imports_no_more_of_the_engine_than_it_needs(shared: Isolation) -> None:
    imported = within(lambda isolation: isolation.run(isolated.imported, limit=10), shared)
    assert {"rolegraph.engine.vocabulary.isolation", "rolegraph.engine.vocabulary"} <= {*imported}
    assert not {"rolegraph.engine.compile", "rolegraph.engine.run.scheduler"} & {*imported}


def test_calls_run_side_by_side_and_more_than_there_are_workers_take_turns(shared: Isolation) -> None:
    async def many(isolation: Isolation) -> list[int]:
        calls = (isolation.run(isolated.double, n, limit=10) for n in range(5 * WORKERS))
        return await asyncio.gather(*calls)

    assert within(many, shared) == [2 * n for n in range(5 * WORKERS)]


def test_event_loops_of_several_threads_share_the_workers() -> None:
    isolation = Isolation()

    async def many() -> set[int]:
        return set[int]().union(*[await worker_pids(isolation) for _ in range(3)])

    async def close() -> None:
        async with isolation:
            pass

    with ThreadPoolExecutor(3) as threads:
        loops = [threads.submit(asyncio.run, many()) for _ in range(3)]
        pids = set[int]().union(*(loop.result(60) for loop in loops))
    assert len(pids) <= WORKERS
    assert any(map(alive, pids))
    asyncio.run(close())
    assert not any(map(alive, pids))


def test_a_call_that_is_cancelled_while_it_waits_takes_no_one_s_turn(shared: Isolation) -> None:
    async def cancelled(isolation: Isolation) -> list[int]:
        busy = [asyncio.create_task(isolation.run(isolated.sleep, 0.3, limit=10)) for _ in range(WORKERS)]
        waiting = [asyncio.create_task(isolation.run(isolated.double, n, limit=10)) for n in range(4)]
        await asyncio.sleep(0)
        for call in waiting[::2]:
            call.cancel()
        assert await asyncio.gather(*busy) == ["slept"] * WORKERS
        after = (isolation.run(isolated.double, 4, limit=10) for _ in busy)
        return await asyncio.gather(*waiting[1::2], *after)

    assert within(cancelled, shared) == [2, 6] + [8] * WORKERS


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce the limit")
def test_a_call_takes_no_more_memory_than_its_limit_and_the_next_one_has_as_much(shared: Isolation) -> None:
    def take(size: int) -> int:
        return within(lambda isolation: isolation.run(isolated.take, size, limit=60, memory=1 << 26), shared)

    for _ in range(3):
        with pytest.raises(CallLimit, match="limit: call_memory"):
            take(1 << 27)
        assert take(1 << 25) == 1 << 25


@pytest.mark.parametrize("function", [isolated.sleep, isolated.spin_in_c])
def test_a_call_is_stopped_when_its_time_is_up(function: Callable[..., Any], shared: Isolation) -> None:
    async def stopped(isolation: Isolation) -> int:
        await isolation.run(isolated.double, 1, limit=10)
        arguments = (3600.0,) if function is isolated.sleep else ()
        with pytest.raises(CallTimeout):
            await isolation.run(function, *arguments, limit=0.1)
        return await isolation.run(isolated.double, 2, limit=10)

    assert within(stopped, shared) == 4


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (isolated.raise_value_error, (), ValueError, "out of range"),
        (isolated.raise_odd, (), RuntimeError, "Odd: very odd"),
        (isolated.leave, (), RuntimeError, "SystemExit: 3"),
        (isolated.die, (), RuntimeError, "died with exit code -9"),
        (isolated.unpicklable, (), Exception, "pickle"),
        (isolated.give_refusing, (), ImportError, "not on this machine"),
        (isolated.double, (isolated.Refusing(),), ImportError, "not on this machine"),
        (isolated.double, (threading.Lock(),), Exception, "pickle"),
    ],
    ids=[
        "raises",
        "raises what cannot travel",
        "exits",
        "dies",
        "returns what cannot travel",
        "returns what cannot be made",
        "takes what cannot be made",
        "takes what cannot travel",
    ],
)
def test_whatever_a_call_does_is_its_own_error_and_the_next_call_works(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    error: type[Exception],
    message: str,
    shared: Isolation,
) -> None:
    async def both(isolation: Isolation) -> int:
        beside = asyncio.create_task(isolation.run(isolated.sleep, 0.2, limit=10))
        with pytest.raises(error, match=message):
            await isolation.run(function, *arguments, limit=10)
        assert await beside == "slept"
        return await isolation.run(isolated.double, 2, limit=10)

    assert within(both, shared) == 4


def test_workers_that_are_killed_while_idle_are_replaced() -> None:
    async def replaced(isolation: Isolation) -> int:
        pids = await worker_pids(isolation)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(map(alive, pids)))
        assert not pids & await worker_pids(isolation)
        return await isolation.run(isolated.double, 2, limit=10)

    assert within(replaced) == 4


def test_a_busy_machine_fails_no_call(tmp_path: Path, shared: Isolation) -> None:
    """A worker that is stopped for longer than its call's limit has used no processor time meanwhile."""
    started = tmp_path / "pid"

    async def stopped(isolation: Isolation) -> str:
        call = asyncio.create_task(isolation.run(isolated.sleep, 0.2, str(started), limit=1.0))
        await until(lambda: started.exists() and bool(started.read_text()))
        pid = int(started.read_text())
        os.kill(pid, signal.SIGSTOP)
        await asyncio.wait({call}, timeout=1.5)
        os.kill(pid, signal.SIGCONT)
        return await call

    assert within(stopped, shared) == "slept"


def test_processes_that_a_call_has_started_end_with_it(tmp_path: Path, shared: Isolation) -> None:
    started = tmp_path / "pid"
    with pytest.raises(CallTimeout):
        within(lambda isolation: isolation.run(isolated.sleep_in_child, str(started), limit=0.2), shared)
    pid = int(started.read_text())
    asyncio.run(until(lambda: not alive(pid)))


def test_a_cancelled_call_stops_its_worker(tmp_path: Path, shared: Isolation) -> None:
    started = tmp_path / "pid"

    async def cancelled(isolation: Isolation) -> int:
        call = asyncio.create_task(isolation.run(isolated.sleep, 3600, str(started), limit=3600))
        await until(lambda: started.exists() and bool(started.read_text()))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        pid = int(started.read_text())
        await until(lambda: not alive(pid))
        return await isolation.run(isolated.double, 2, limit=10)

    assert within(cancelled, shared) == 4


def test_nothing_is_left_when_it_closes(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    calls: list[asyncio.Future[Any]] = []  # keeps a reference: the loop has none

    async def interrupted() -> None:
        async with Isolation() as isolation:
            sleeping = isolation.run(isolated.sleep, 3600, str(started), limit=3600)
            waiting = (isolation.run(isolated.sleep, 3600, limit=3600) for _ in range(2 * WORKERS))
            calls.append(asyncio.gather(sleeping, *waiting, return_exceptions=True))
            await until(lambda: started.exists() and bool(started.read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert not alive(int(started.read_text()))


def test_workers_see_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY", "API_KEY", "TOKEN", "SECRET", "PASSWORD", "FOLDER"):
        monkeypatch.setenv(f"ROLEGRAPH_TEST_{name}", "x")
    asked = lambda isolation: isolation.run(isolated.keys, limit=10)  # noqa: E731
    assert within(asked) == []
    own = Import("tests.vocabulary.isolated", None)
    assert within(asked, Isolation([own])) == ["ROLEGRAPH_TEST_FOLDER"]


PARENT = """
import asyncio, sys
from rolegraph.engine.vocabulary.isolation import Isolation
from tests.vocabulary import isolated

async def main():
    async with Isolation() as isolation:
        await isolation.run(isolated.sleep, 600, sys.argv[1], limit=600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the /proc that it reads")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_with_its_parent_however_that_ends(tmp_path: Path, how: signal.Signals) -> None:
    started = tmp_path / "pid"
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(started)], env=environment, stderr=subprocess.DEVNULL
    )

    async def gone() -> None:
        await until(lambda: started.exists() and bool(started.read_text()))
        pid = int(started.read_text())
        assert alive(pid)
        parent.send_signal(how)
        await until(lambda: not alive(pid))

    try:
        asyncio.run(gone())
        parent.wait()
    finally:
        parent.kill()
        parent.wait()


SHADOWED = ("types", "random", "logging", "engine", "numpy", "tests")
SCRIPT = """
import asyncio, sys, threading
sys.path[:] = [place for place in sys.path if place not in ("", sys.argv[1])]
from pathlib import Path
from rolegraph.engine.vocabulary.isolation import Isolation
from rolegraph.engine.vocabulary.imports import Import, import_file

def of_the_script(number):
    return number + 1

async def main():
    named = import_file(Path("named/rewards.py"))
    sys.path.append("packages")
    from package.deeper import rewards
    imports = [named, Import.of(rewards.reward)]
    async with Isolation(imports) as isolation:
        print(await isolation.run(of_the_script, 1, limit=10))
        print(await isolation.run(sys.modules[named.module].reward, limit=10))
        print(await isolation.run(rewards.reward, limit=10))

asyncio.run(main())
"""


def test_workers_search_neither_the_current_folder_nor_the_script_s(tmp_path: Path) -> None:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "helper.py").write_text("VALUE = 40\n")
    (tmp_path / "named" / "random.py").write_text("raise SystemExit(9)\n")
    reward = "def reward():\n    import random, helper\n    return helper.VALUE + random.randint(2, 2)\n"
    (tmp_path / "named" / "rewards.py").write_text(reward)
    package = tmp_path / "packages" / "package" / "deeper"
    package.mkdir(parents=True)
    (package / "rewards.py").write_text("def reward():\n    return 'of a package'\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # -P: the shadows would break the script itself, before any worker starts.
    ran = subprocess.run(
        [sys.executable, "-P", str(script), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.split("\n")[:3] == ["2", "42", "of a package"], ran.stderr
    assert not (tmp_path / "ran").exists()


def test_an_import_that_fails_is_the_error_of_the_call(tmp_path: Path) -> None:
    missing = Import("rewards_that_went", str(tmp_path / "rewards_that_went.py"))

    async def fails() -> None:
        async with Isolation([missing]) as isolation:
            await isolation.run(isolated.double, 1, limit=10)

    with pytest.raises(Exception, match="cannot import"):
        asyncio.run(fails())
