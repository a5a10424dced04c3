"""Tools by themselves: the choice or result of each."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.vocabulary import (
    BadOptions,
    ItemCall,
    Pairs,
    Tool,
    ToolError,
    Upstream,
    View,
    Views,
    tools,
)
from rolegraph.roles.calculator import calculate


def tool(yaml: object, **context: Any) -> Tool:
    return tools.build(ItemCall.parse(yaml), **context)


def seeing(**actions: list[Any]) -> Upstream:
    return {name: Views([View(n, a) for n, a in enumerate(those, 1)]) for name, those in actions.items()}


def chosen(yaml: object, upstream: Upstream, pairs: dict[int, list[int]] | None = None) -> Any:
    choose = tool(yaml).choose
    assert choose is not None
    return choose(upstream, Pairs(pairs or {}))


def asked(yaml: object, *values: Any, **context: Any) -> list[Any]:
    """Call a tool's only function with each value in one episode; return the results."""
    made = tool(yaml, **context)
    assert made.open is not None

    async def ask() -> list[Any]:
        async with made.open() as (function,):
            (name,) = function.parameters["properties"]
            assert function.parameters["required"] == [name]
            return [await function.call({name: value}) for value in values]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("actions", "winner"),
    [
        (["a", "b", "b "], "b"),
        (["a", "b", "b", "a"], "a"),
        ([" a", "b", "c"], " a"),
        ([{"x": 1, "y": 2}, 3, {"y": 2, "x": 1}], {"x": 1, "y": 2}),
        ([None, True, None], None),
    ],
)
def test_a_majority_is_of_text_and_ties_go_to_the_first(actions: list[Any], winner: Any) -> None:
    assert chosen("majority", seeing(solver=actions)) == winner


def test_a_majority_of_very_many_answers_does_not_compare_each_with_each() -> None:
    lists = [[number, *range(1_000)] for number in range(4_096)]
    assert chosen("majority", seeing(solver=[*lists, lists[7]])) == lists[7]


def test_a_majority_is_of_all_that_is_needed_but_for_the_failed() -> None:
    views = Views(
        [View(1, "", failure="malformed_output"), View(2, "", failure="malformed_output"), View(3, "b")]
    )
    assert chosen("majority", {"solver": views}) == "b"
    with pytest.raises(ToolError, match="all of solver failed"):
        chosen("majority", {"solver": Views([views[0]])})  # pyright: ignore[reportArgumentType]
    assert chosen("majority", seeing(a=["x", "y"], b=["y"])) == "y"


def test_nothing_is_chosen_by_what_failed() -> None:
    """Failed candidates are not chosen, and the default of a failed scorer is no score."""
    best = {"argmax": "solver", "by": "scorer"}
    pairs = {1: [1], 2: [2], 3: [3]}
    solvers = Views([View(1, "a"), View(2, "b"), View(3, "", failure="malformed_output")])
    scorers = Views([View(1, 9, failure="malformed_output"), View(2, 0.5), View(3, 7)])
    assert chosen(best, {"solver": solvers, "scorer": scorers}, pairs) == "b"
    assert chosen(
        {"top": "solver", "by": "scorer", "k": 3}, {"solver": solvers, "scorer": scorers}, pairs
    ) == [
        "b",
        "a",
    ]
    down = Views([View(1, 9, failure="malformed_output"), View(2, 8, failure="malformed_output")])
    with pytest.raises(ToolError, match="has a score of scorer"):
        chosen(best, {"solver": solvers, "scorer": down}, pairs)
    with pytest.raises(ToolError, match="all of solver failed"):
        chosen(best, {"solver": Views([View(3, "", failure="malformed_output")]), "scorer": scorers}, pairs)


@pytest.mark.parametrize(("others", "same"), [(["x", "x"], None), (["x", "y"], False), ([], None)])
def test_equal_is_not_known_where_one_failed_and_the_others_are_the_same(
    others: list[str], same: bool | None
) -> None:
    views = Views(
        [View(1, "x", failure="malformed_output"), *(View(n, word) for n, word in enumerate(others, 2))]
    )
    if same is None:
        with pytest.raises(ToolError):
            chosen("equal", {"solver": views})
    else:
        assert chosen("equal", {"solver": views}) is same


def test_a_choice_among_no_answers_is_a_tool_error() -> None:
    for yaml in ("majority", "equal", {"argmax": "solver", "by": "solver.x"}):
        with pytest.raises(ToolError, match="none of solver ran"):
            chosen(yaml, {"solver": Views([])})


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
def test_equal_is_true_where_all_actions_are_the_same(actions: list[str]) -> None:
    assert chosen("equal", seeing(s=actions)) is (len(set(actions)) == 1)


def test_equal_of_some_names() -> None:
    seen = seeing(a=["1"], b=[" 1"], c=["2"])
    assert chosen({"equal": ["a", "b"]}, seen) is True
    assert chosen({"equal": ["a", "c"]}, seen) is False
    assert chosen("equal", seen) is False
    assert tool({"equal": ["a", "b"]}).roles == ("a", "b")


def test_a_path_leads_into_an_action_and_numbers_may_be_text() -> None:
    scored = seeing(
        s=["a", "b", "c", "d"], by=[{"x": [0, 3]}, {"x": [9, " 4.5 "]}, {"x": [9]}, {"x": [9, None]}]
    )
    pairs = {n: [n] for n in (1, 2, 3, 4)}
    assert chosen({"top": "s", "by": "by.x.1", "k": 9}, scored, pairs) == ["b", "a", "c", "d"]
    bare = seeing(s=["a", "b", "c"], by=[1, 10**400, float("nan")])
    assert chosen({"argmax": "s", "by": "by"}, bare, pairs) == "a", "what is no finite number is no score"


def test_true_and_false_score_as_1_and_0() -> None:
    scored = seeing(s=["a", "b", "c"], by=[False, {"no": "score"}, True])
    pairs = {n: [n] for n in (1, 2, 3)}
    assert chosen({"top": "s", "by": "by", "k": 3}, scored, pairs) == ["c", "a", "b"]


def test_a_candidate_may_score_itself() -> None:
    own = seeing(s=[{"score": 1, "x": "a"}, {"score": 2, "x": "b"}])
    assert chosen({"argmax": "s", "by": "s.score"}, own, {1: [1], 2: [2]})["x"] == "b"


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8), st.integers(1, 8))
def test_top_is_the_beginning_of_a_stable_order(scores: list[int], k: int) -> None:
    names = [f"n{n}" for n in range(len(scores))]
    pairs = {n: [n] for n in range(1, len(scores) + 1)}
    found = chosen({"top": "s", "by": "by", "k": k}, seeing(s=names, by=scores), pairs)
    assert found == [names[n] for n in sorted(range(len(names)), key=lambda n: -scores[n])][:k]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4) ^ 2", 98),
        ("7/2", 3.5),
        ("6/2", 3),
        ("0.1 + 0.2", 0.3),
        ("sqrt(2) * sqrt(2)", 2),
        ("-3 // 2 + 10 % 4", 0),
        ("max(1, 2.5, round(pi, 2))", 3.14),
        ("2**100", 2**100),
        ("4 × 5 − 6 ÷ 3", 18),
        ("log(e)", 1),
    ],
)
def test_arithmetic(expression: str, value: float) -> None:
    assert calculate(expression) == value
    assert asked("calculator", expression) == [value]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1/0",
        "9**9**9",
        "2**-1**9999999",
        "10.0**400",
        "(-8)**0.5",
        "round(5, -1000000000)",
        "lcm(" + ",".join(str(10**40 + n) for n in range(400)) + ")",
        "(" * 300 + "1" + ")" * 300,
        "-" * 400 + "1",
        "__import__('os').system('true')",
        "().__class__",
        "[1 for _ in range(10**9)]",
        "'a' * 3",
        "x + 1",
        "True",
        "sqrt(1, 2)",
        "sqrt(-1)",
        "1 if 2 else 3",
        "open('/etc/passwd')",
        "1e400",
        "3j",
        "1;2",
        "\0",
    ],
)
def test_what_is_not_arithmetic_is_an_error(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        calculate(expression)
    with pytest.raises(ToolError):
        asked("calculator", expression)


@given(st.text(max_size=30) | st.text("0123456789.+-*/%^() ,sqrtpieln", max_size=30))
def test_whatever_is_asked_gives_a_number_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(calculate(text), int | float)


def test_python_gives_its_output_and_its_value_and_its_error() -> None:
    pytest.importorskip("pydantic_monty")
    programs = ["print('a')\n{'b': (1, None)}", "x = 3", "None", "'text\\n'"]
    assert asked("python", *programs) == ["a\n{'b': [1, None]}", "", "", "text\n"]
    assert tool("python").permissions == ("python",)
    with pytest.raises(ToolError, match=r"^ZeroDivisionError: division by zero \(line 2\)$"):
        asked("python", "x = 1\nx / 0")


def test_a_program_with_a_fence_around_a_part_of_it_says_so() -> None:
    pytest.importorskip("pydantic_monty")
    with pytest.raises(ToolError, match=r"^SyntaxError.*; a Markdown fence stands in the program$"):
        asked("python", "```python\nx = 1\n```\nassert x == 1")
    with pytest.raises(ToolError, match=r"^SyntaxError[^;]*$"):
        asked("python", "def f(")


def test_a_corpus_is_searched(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    rows = [{"text": "the Seine", "title": "Paris"}, {"text": "the Tiber"}, {"text": "the Thames"}]
    (tmp_path / "wiki.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (found,) = asked({"search": {"corpus": "wiki.jsonl", "k": 2}}, "Paris and the Tiber", folder=tmp_path)
    assert [hit["text"] for hit in found] == ["the Tiber", "the Seine"] or found[0]["title"] == "Paris"
    assert len(found) == 2
    made = tool({"search": "{{ task.question }}", "corpus": "wiki.jsonl"}, folder=tmp_path)
    assert (made.source, made.permissions) == ("{{ task.question }}", ())


# what asks a URL


class _Service(BaseHTTPRequestHandler):
    seen: list[tuple[str, str, Any]] = []  # noqa: RUF012  # one for the test

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.seen.append((self.command, self.path, json.loads(body) if body else None))
        assert not {"authorization", "cookie"} & {name.lower() for name in self.headers}
        status, said = {
            "/json": (200, '{"a": [1]}'),
            "/text": (200, "just text"),
            "/found": (200, '{"results": ["one", {"text": "two"}, "three"]}'),
            "/list": (200, '["one", "two"]'),
            "/away": (302, ""),
            "/long": (200, "x" * 1_100_000),
        }.get(self.path.partition("?")[0], (404, "not here"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/json")
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def service() -> Iterator[str]:
    _Service.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_json_is_sent_and_comes_back(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert asked({"http": {"url": f"{service}/json"}}, '{"q": "x"}', {"q": 1}) == [{"a": [1]}] * 2
    assert asked({"http": {"url": f"{service}/text", "method": "GET"}}, '{"q": "a b"}') == ["just text"]
    assert _Service.seen == [
        ("POST", "/json", {"q": "x"}),
        ("POST", "/json", {"q": 1}),
        ("GET", "/text?q=a%20b", None),
    ] or _Service.seen[-1] == ("GET", "/text?q=a+b", None)
    assert tool({"http": {"url": f"{service}/json"}}).permissions == (f"{service}/json",)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("/nowhere", "1", "answers 404: not here"),
        ("/away", "1", "answers 302"),
        ("/long", "1", "more than 1,000,000 bytes"),
        ("/json", "no json", "not JSON"),
    ],
)
def test_what_goes_wrong_with_a_service_is_told(service: str, path: str, value: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        asked({"http": {"url": service + path}}, value)


def test_a_retriever_gives_passages(service: str) -> None:
    assert asked({"search": {"url": f"{service}/found", "k": 2}}, "q") == [["one", {"text": "two"}]]
    assert asked({"search": {"url": f"{service}/list"}}, "q") == [["one", "two"]]
    assert _Service.seen[0] == ("POST", "/found", {"query": "q", "k": 2})
    with pytest.raises(ToolError, match="no list of passages"):
        asked({"search": {"url": f"{service}/text"}}, "q")


def test_a_server_that_does_not_answer_is_a_tool_error() -> None:
    with pytest.raises(ToolError, match="cannot reach"):
        asked({"http": {"url": "http://127.0.0.1:1/x"}}, "1")


def test_one_of_corpus_and_url() -> None:
    for options in ({}, {"corpus": "a.jsonl", "url": "http://a"}):
        with pytest.raises(BadOptions, match="either a corpus or a url"):
            tool({"search": {**options, "k": 1}})


def test_a_dropped_connection_is_said_to_be_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            connection, _ = server.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        threading.Thread(target=reset, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        sender = tool({"http": "{}", "url": url})

        async def ask() -> None:
            assert sender.open is not None
            async with sender.open() as (function,):
                await function.call({"body": "{}"})

        with pytest.raises(ToolError, match=r"cannot reach .*: the connection was dropped"):
            asyncio.run(ask())
