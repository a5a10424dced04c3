"""Tests that programs cannot escape the sandbox or exhaust the host, and that the next program still runs.

Inputs of each program are the path of a secret file, the path of its folder, and the port of a local server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolegraph.sandbox import ProgramResult, PythonSandbox, SandboxError
from tests.sandbox.edge import within

pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")

SECRET = "the secret word is kolkrabbi"
DEEP = "a = ()\nfor i in range(50): a = (a, a)\n"
"""Program with a small tuple that is exponentially slow to print, hash or compare."""

FILES = {
    "reads a file": "open(secret).read()",
    "reads a file in a block": "with open(secret) as file:\n    print(file.read())",
    "reads a file by a relative path": "open('../' * 20 + secret).read()",
    "reads its own environment": "open('/proc/self/environ').read()",
    "writes a file": "open(folder + '/new', 'w').write('x')",
    "appends to a file": "open(secret, 'a').write('x')",
    "reads by pathlib": "from pathlib import Path\nPath(secret).read_text()",
    "writes by pathlib": "from pathlib import Path\nPath(folder, 'new').write_text('x')",
    "lists by pathlib": "from pathlib import Path\nlist(Path(folder).iterdir())",
    "removes by pathlib": "from pathlib import Path\nPath(secret).unlink()",
    "asks whether a file is there": "from pathlib import Path\nPath(secret).exists()",
    "lists by os": "import os\nos.listdir(folder)",
    "removes by os": "import os\nos.remove(secret)",
    "renames by os": "import os\nos.rename(secret, folder + '/new')",
    "makes a folder": "import os\nos.mkdir(folder + '/new')",
    "changes its folder": "import os\nos.chdir(folder)",
    "reads the environment": "import os\nos.environ['KOLKRABBI']",
    "asks for a variable": "import os\nos.getenv('KOLKRABBI')",
    "opens through io": "import io\nio.open(secret).read()",
    "copies by shutil": "import shutil\nshutil.copy(secret, folder + '/new')",
    "takes a temporary file": "import tempfile\ntempfile.mkstemp(dir=folder)",
    "asks for files without end": "while True:\n    try: open(secret)\n    except OSError: pass",
}
NETWORK = {
    "opens a socket": "import socket\nsocket.create_connection(('127.0.0.1', port))",
    "fetches by urllib": "import urllib.request\nurllib.request.urlopen(f'http://127.0.0.1:{port}')",
    "fetches by http": "import http.client\nhttp.client.HTTPConnection('127.0.0.1', port).connect()",
    "fetches by requests": "import requests\nrequests.get(f'http://127.0.0.1:{port}')",
    "connects by asyncio": (
        "import asyncio\nasync def go():\n    await asyncio.open_connection('127.0.0.1', port)\n"
        "asyncio.run(go())"
    ),
}
PROCESSES = {
    "starts a process": "import subprocess\nsubprocess.run(['touch', folder + '/new'])",
    "asks a shell": "import os\nos.system('touch ' + folder + '/new')",
    "opens a pipe": "import os\nos.popen('cat ' + secret).read()",
    "forks": "import os\nos.fork()",
    "becomes another program": "import os\nos.execv('/bin/sh', ['sh'])",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "sends a signal": "import signal\nsignal.raise_signal(9)",
    "starts a worker": "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "starts a thread": "import threading\nthreading.Thread(target=print).start()",
}
HOST = {
    "looks at sys.modules": "import sys\nsys.modules['os'].system('true')",
    "looks at sys.path": "import sys\nsys.path.append(folder)",
    "takes a frame": "import sys\nsys._getframe(1).f_globals",
    "imports builtins": "import builtins\nbuiltins.open(secret).read()",
    "names __builtins__": "__builtins__['open'](secret)",
    "calls __import__": "__import__('subprocess').run(['true'])",
    "imports by name": "import importlib\nimportlib.import_module('os').system('true')",
    "loads a library": "import ctypes\nctypes.CDLL(None).system(b'true')",
    "collects garbage": "import gc\ngc.get_objects()",
    "inspects": "import inspect\ninspect.stack()",
    "unpickles": "import pickle\npickle.loads(b'cos\\nsystem\\n(S\\'true\\'\\ntR.')",
    "imports the sandbox's library": "import pydantic_monty",
    "imports the engine": "import rolegraph.sandbox",
    "walks from a tuple": "().__class__.__bases__[0].__subclasses__()",
    "walks from object": "object.__subclasses__()",
    "walks from a type": "int.__mro__",
    "walks by getattr": "getattr((), '__cl' + 'ass__')",
    "walks by a format": "'{0.__class__}'.format(())",
    "reads a function's globals": "def f(): pass\nf.__globals__",
    "reads a function's code": "def f(): pass\nf.__code__.co_consts",
    "reads a closure": "(lambda x: lambda: x)(1).__closure__",
    "asks for globals": "globals()['open'](secret)",
    "compiles": "compile('1', 'a', 'eval')",
    "calls what runs it": "execute('1', {}, 10**9)",
    "reads its own text": "open(__file__).read()",
    "holds a traceback": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_back",
    "holds a cause": "try:\n    1 / 0\nexcept Exception as e:\n    e.__context__.__traceback__",
    "waits at a prompt": "input('password? ')",
    "stops in a debugger": "breakpoint()",
}
TIME = {
    "loops": "while True: pass",
    "counts": "sum(range(10**15))",
    "swallows what stops it": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "loops at last": "try:\n    1 / 0\nfinally:\n    while True: pass",
    "sleeps": "import time\nwhile True: time.sleep(1000)",
    "prints without end": "while True: print('x' * 100)",
    "compares without end": DEEP + "b = ()\nfor i in range(50): b = (b, b)\na == b",
    "loops in its text": "class A:\n    def __str__(self):\n        while True: pass\nA()",
}
MEMORY = {
    "takes a long list": "[0] * 10**9",
    "takes a long text": "'x' * 10**12",
    "takes a large number": "9 ** 9 ** 9",
    "doubles a text": "text = 'x'\nwhile True: text += text",
    "grows a list": "items = []\nwhile True: items.append(len(items))",
    "grows a mapping": "items = {}\nwhile True: items[len(items)] = 0",
    "grows a set": "items = set()\nwhile True: items.add(len(items))",
    "swallows what stops it": (
        "items = []\nwhile True:\n    try:\n        items.append('x' * 10**6)\n    except BaseException: pass"
    ),
    "lists a range": "list(range(10**12))",
    "formats widely": "f'{1:1000000000}'",
    "nests a list": "a = []\nwhile True: a = [a]",
    "prints a deep tuple": DEEP + "print(a)",
    "ends in a deep key": DEEP + "{a: 1}",
}
ERRORS = {
    "recurses": ("def f(): return f()\nf()", r"^RecursionError: .*\(line 1\)$"),
    "recurses in eval": ("def f(): return eval('f()')\nf()", "^RecursionError: "),
    "recurses in ==": (
        "class A:\n    def __eq__(self, other): return self == other\nA() == A()",
        "^RecursionError: ",
    ),
    "is nested deeply": ("(" * 5000 + ")" * 5000, "^SyntaxError: .*nested"),
    "reads a deep text": ("import json\njson.loads('[' * 10**6)", "^json.JSONDecodeError: "),
    "searches without end": ("import re\nre.search(r'(a|a)*\\1b', 'a' * 40)", "^re.PatternError: "),
    "squares without end": ("x = 3\nwhile True: x = x * x", "^(used more than 16 MB|took longer than 30 s)$"),
    "prints a long number": ("str(10 ** 5000)", "^ValueError: Exceeds the limit"),
    "leaves": ("raise SystemExit", "^SystemExit"),
    "interrupts": ("raise KeyboardInterrupt", "^KeyboardInterrupt"),
    "says much": ("raise ValueError('x' * 10**7)", r"^ValueError: x{450,500}… \(cut\) \(line 1\)$"),
    "says much on many lines": ("raise ValueError('x\\n' * 10**6)", r"^ValueError: x \(line 1\)$"),
    "fails in its text": (
        "class A:\n    def __str__(self): return 1 / 0\nA()",
        r"^ZeroDivisionError: division by zero \(line 2\)$",
    ),
    "is no text": ("'\udc80'", "^UnicodeEncodeError: "),
    "holds a null": ("1 + \0", "^SyntaxError: "),
}

DENIED = r"^(Permission|ModuleNotFound|Attribute|Name|Runtime|Type|NotImplemented|Key)Error: "
CORPUS = [
    pytest.param(program, message, seconds, id=f"{kind}: {name}")
    for kind, programs, message, seconds in [
        ("files", FILES, DENIED, 30),
        ("network", NETWORK, DENIED, 30),
        ("processes", PROCESSES, DENIED, 30),
        ("host", HOST, DENIED, 30),
        ("time", TIME, r"^took longer than 1 s$", 1),
        ("memory", MEMORY, "^used more than 16 MB$", 30),
    ]
    for name, program in programs.items()
] + [pytest.param(*case, 30, id=f"errors: {name}") for name, case in ERRORS.items()]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


@pytest.mark.parametrize(("program", "message", "seconds"), CORPUS)
def test_a_program_that_wants_out_fails_and_the_next_one_runs(
    program: str,
    message: str,
    seconds: float,
    tmp_path: Path,
    server: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOLKRABBI", SECRET)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    inputs = {"secret": str(secret), "folder": str(tmp_path), "port": server.getsockname()[1]}

    async def both(python: PythonSandbox) -> ProgramResult:
        with pytest.raises(SandboxError, match=message) as raised:
            await python.run(program, inputs)
        assert SECRET not in f"{raised.value}{raised.value.output}"
        assert len(str(raised.value)) < 600
        assert len(raised.value.output) < 10_100
        return await python.run("1 + 1")

    assert within(both, seconds=seconds, memory=16 << 20) == ProgramResult(2, "")
    assert list(tmp_path.iterdir()) == [secret]
    assert secret.read_text() == SECRET
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("from pathlib import Path\nlist(Path('/').glob('*'))", []),
        ("import sys\nsys.argv", ["main.py"]),
        ("def f(): return locals()\nf()", {}),
        ("import time\ntime.sleep(10**6)\n'rested'", "rested"),
        ("a = []\na.append(a)\nstr(a)[:3]", "[[["),
        ("{i * (2**61 - 1): 0 for i in range(50000)}", None),
        (DEEP + "a", None),
        ("a = []\nfor i in range(10**5): a = [a]\na", None),
        ("class A: pass\na = A()\na.a = a\n[a, A]", None),
        ("print", "<built-in function print>"),
    ],
)
def test_what_is_harmless_may_be_done(program: str, value: Any) -> None:
    found = within(lambda python: python.run(program)).value
    assert found == value or value is None
    assert len(repr(found)) < 20_000
