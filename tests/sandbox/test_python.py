"""Tests of the public interface of the sandbox: values, output, concurrency, limits and processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.sandbox import ProgramResult, PythonSandbox, SandboxError
from tests.sandbox.edge import alive, environment, interpreters, within
from tests.waiting import until

pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the /proc that it reads")
ENDLESS = "while True: pass"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}


def run(code: str, inputs: dict[str, Any] | None = None) -> ProgramResult:
    return within(lambda python: python.run(code, inputs or {}))


def problem(code: str, inputs: dict[str, Any] | None = None) -> SandboxError:
    with pytest.raises(SandboxError) as raised:
        run(code, inputs)
    return raised.value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 3\nx", 3),
        ("x = 3", None),
        ("", None),
        ("# nothing\n", None),
        ("x = 3\nx  # three; or more\n# and no more\n", 3),
        ("import math; math.sqrt(16)  # a; b", 4.0),
        ("a = 'é;'; a", "é;"),
        ("x = 'a; 1 # b'", None),
        ("1;", None),
        ("if False:\n    a; b", None),
        ("for i in range(3): i; i", None),
        ('x = """\n1 + 1\n"""', None),
        ('x = """\n1 # """', None),
        ('"""\nq\n"""', "\nq\n"),
        ("x = 1 + \\\n2", None),
        ("x = 5 \\\n-3", None),
        ("x = [1,\n2]", None),
        ("(1,\n2)", [1, 2]),
        ("max(\n1,\n2\n)", 2),
        ("d = {\n'a': 1}\nd['a']", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n'ok'", "ok"),
        ("def f(): return 4\nf()", 4),
        ("def d(f): return f\n@d\ndef g(): return 1", None),
        ("import asyncio\nasync def f(): return 4\nasyncio.run(f())", 4),
        ("x = 1\r\nx + 1\r\n", 2),
        ("if __name__ == '__main__':\n    x = 5\nx", 5),
    ],
)
def test_the_value_is_that_of_the_expression_at_the_end(code: str, value: Any) -> None:
    assert run(code).value == value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("[1, (2.5, {'three'}), {'a': None, 4: True}]", [1, [2.5, ["three"]], {"a": None, "4": True}]),
        ("from decimal import Decimal\nDecimal('1.50')", "1.50"),
        ("import datetime\ndatetime.date(2020, 1, 2)", "2020-01-02"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)", "P(x=3)"),
        ("from collections import Counter, namedtuple\n[Counter('aab'), namedtuple('P', 'x')(1)]", ...),
        ("1 / 3", 1 / 3),
        ("10 ** 400", 10**400),
        ("10 ** 5000", "an integer of more than 1,000 digits"),
    ],
)
def test_the_value_is_plain_data(code: str, value: Any) -> None:
    assert run(code).value == ([{"a": 2, "b": 1}, [1]] if value is ... else value)


def test_what_is_printed_comes_back_also_when_the_program_fails() -> None:
    assert run("print('a', 1)\nprint('b')\n3") == ProgramResult(3, "a 1\nb\n")
    error = problem("print('a')\n1 / 0")
    assert (str(error), error.output) == ("ZeroDivisionError: division by zero (line 2)", "a\n")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(x):\n    return 1 / x\n\nf(0)", "ZeroDivisionError: division by zero (line 2)"),
        ("x = 1\n\n\n(x +\n y)", "NameError: name 'y' is not defined (line 5)"),
        ("x = 1\ny = = 2", "SyntaxError: Expected an expression (line 2)"),
        ("assert 1 == 2, 'no'", "AssertionError: no (line 1)"),
    ],
)
def test_an_error_is_told_as_python_says_it_with_its_line(code: str, message: str) -> None:
    assert str(problem(code)) == message


def test_a_long_output_and_a_long_value_are_cut_with_a_mark() -> None:
    assert run("for i in range(10**5): print('x' * 99)").output == ("x" * 99 + "\n") * 100 + "… (cut)"
    assert run("'y' * 20_000").value == "y" * 9_999 + "… (cut)"
    items = run("list(range(10**5))").value
    assert items[:-1] == list(range(len(items) - 1))
    assert items[-1] == "… (cut)"
    assert 1_000 < len(items) < 3_000


def test_inputs_are_found_under_their_names_and_stay_as_they_are_outside() -> None:
    inputs = {"items": [1, {"a": 2}], "text": "t"}
    code = "items.append(3)\nitems[1]['a'] = text\ntext = 'u'\nlen = 4\n[items, text]"
    assert run(code, inputs).value == [[1, {"a": "t"}, 3], "u"]
    assert inputs == {"items": [1, {"a": 2}], "text": "t"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"f": print}, "not plain data"),
        ({"not a name": 1}, "'not a name' is not a Python identifier"),
        ({"if": 1}, "'if' is not a Python identifier"),
    ],
)
def test_inputs_that_cannot_be_given_are_the_callers_mistake(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run("1", inputs)


def test_programs_share_nothing() -> None:
    async def three(python: PythonSandbox) -> list[str]:
        await python.run("x = 1\nabs = len\nimport random\nrandom.seed(4)\nrandom.random()", {"given": 1})
        found: list[str] = []
        for code in ("x", "given", "abs('a')"):
            with pytest.raises(SandboxError) as raised:
                await python.run(code)
            found.append(str(raised.value).partition(":")[0])
        return found

    assert within(three, processes=1) == ["NameError", "NameError", "TypeError"]


def test_a_program_gives_the_same_each_time() -> None:
    code = "import random\n[random.random(), random.choice('abc'), hash('a'), list({'b', 'a'})]"
    assert run(code) == run(code)


def test_hundreds_at_once_take_turns() -> None:
    async def many(python: PythonSandbox) -> list[Any]:
        return [ran.value for ran in await asyncio.gather(*(python.run(f"{n} * 2") for n in range(300)))]

    assert within(many, processes=3) == [2 * n for n in range(300)]


def test_event_loops_of_several_threads_share_one() -> None:
    python = PythonSandbox(seconds=30, processes=2)

    async def some() -> list[Any]:
        return [ran.value for ran in await asyncio.gather(*(python.run(f"{n} * 2") for n in range(8)))]

    with ThreadPoolExecutor(3) as threads:
        loops = [threads.submit(asyncio.run, some()) for _ in range(3)]
        assert [loop.result(60) for loop in loops] == [[2 * n for n in range(8)]] * 3


def test_programs_go_on_beside_one_that_does_not_end() -> None:
    async def beside(python: PythonSandbox) -> int:
        endless = asyncio.create_task(python.run(ENDLESS))
        others = await asyncio.gather(*(python.run("1") for _ in range(20)))
        assert not endless.done()
        endless.cancel()
        return len(others)

    assert within(beside, seconds=600, processes=2) == 20


def test_a_limit_is_named_with_what_was_printed_by_then() -> None:
    async def both(python: PythonSandbox) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for code in ("print('a')\nwhile True: pass", "print('b')\nx = [0] * 10**9"):
            with pytest.raises(SandboxError) as raised:
                await python.run(code)
            found.append((str(raised.value), raised.value.output))
        return found

    assert within(both, seconds=1.5, memory=32 << 20) == [
        ("took longer than 1.5 s", "a\n"),
        ("used more than 32 MB", "b\n"),
    ]


@on_linux
def test_a_cancelled_program_ends_and_the_next_has_its_turn() -> None:
    async def cancelled(python: PythonSandbox) -> ProgramResult:
        running = asyncio.create_task(python.run(ENDLESS))
        await until(interpreters)
        waiting = asyncio.create_task(python.run(ENDLESS))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await python.run("1 + 1")

    assert within(cancelled, seconds=600, processes=1).value == 2
    assert not interpreters()


@on_linux
def test_a_process_that_is_killed_fails_its_own_program_only() -> None:
    async def killed(python: PythonSandbox) -> ProgramResult:
        running = asyncio.create_task(python.run(ENDLESS))
        await until(interpreters)
        for pid in interpreters():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="died"):
            await running
        return await python.run("1 + 1")

    assert within(killed, seconds=600, processes=1).value == 2


@on_linux
def test_a_process_sees_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLKRABBI_KEY", "x")

    async def environments(python: PythonSandbox) -> list[bytes]:
        running = asyncio.create_task(python.run(ENDLESS))
        await until(interpreters)
        found = [environment(pid) for pid in interpreters()]
        running.cancel()
        return found

    assert within(environments, seconds=600) == [b""]


AT_ONCE = """
import asyncio
from rolegraph.sandbox import PythonSandbox

async def main():
    python = PythonSandbox(processes=8)
    await asyncio.gather(*(python.run("1") for _ in range(8)))

asyncio.run(main())
"""


def test_the_first_programs_of_a_host_may_start_at_once_and_it_may_end_soon_after() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


PARENT = """
import asyncio, sys
from rolegraph.sandbox import PythonSandbox

async def main():
    await PythonSandbox(seconds=3).run("while True: pass")

asyncio.run(main())
"""


@on_linux
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_with_its_parent_however_that_ends(how: signal.Signals) -> None:
    """Check that the interpreters of a dead parent end, at the latest at their time limit."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=ENVIRONMENT, stderr=subprocess.DEVNULL)

    async def gone() -> None:
        started: set[int] = set()
        await until(lambda: started.update(interpreters(parent.pid)) or started)
        parent.send_signal(how)
        parent.wait()
        await until(lambda: not any(alive(pid) for pid in started))

    try:
        asyncio.run(gone())
    finally:
        parent.kill()
        parent.wait()


def test_where_the_interpreter_is_missing_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[sandbox\]'"):
        run("1")


def test_an_interpreter_that_does_not_start_is_no_programs_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(WorldError, match="the sandbox did not start"):
        run("1")
