"""Inputs of a chosen size for the limits of `rolegraph limits`: at a limit, just under and just over it.

An input beyond a limit must end in a text that names the limit, and one within it must not. `unprobed` names
the limits without such inputs, with the reasons. A text beyond the limit on what is shown must be cut there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import honest
import judge_said
import judge_served
import judge_written
from judge_written import AROUND, VARIABLES, write
from mutating import copied

from rolegraph.engine.compile import check_file
from rolegraph.engine.errors import ModelError, RolegraphError, UsageError
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.prompts.templates import compile_template
from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.spec.sweep import grid_points
from rolegraph.engine.vocabulary import ItemCall, ParseFailure, ToolError, open_dataset, parsers, tools
from rolegraph.engine.vocabulary.isolation import CallLimit, Isolation
from rolegraph.local.limit_list import LIMITS
from rolegraph.roles import countdown
from rolegraph.sandbox import SandboxError
from rolegraph.sandbox.python import evaluate
from tests.attack import tables

LABEL = "(limit: {name})"
FIELD = "at most {most:,}"
"""Text of a refused number of a spec, which names the number alone."""


class Probe(NamedTuple):
    """A maker of inputs, by their size, that returns what came of one."""

    of: Callable[[int], str]
    under: int | None = None
    """Largest size that is let through; by default the limit itself."""
    over: int | None = None
    """Smallest size that is refused for certain; by default one more than the limit."""
    says: str = LABEL


# what writes each kind of input, and returns what came of it


def spec(text: str, *given: str) -> str:
    write("x.yaml", text)
    return "\n".join(map(str, check_file("x.yaml", given).diagnostics))


def roles(*lines: str, more: str = "") -> str:
    """Return a spec of these roles."""
    return "\n".join(["rolegraph: 2", "name: x", "roles:", *(f"  {line}" for line in lines), more])


def role(name: str, more: str = "", prompt: str = "hi") -> str:
    return f"{name}: {{prompt: {json.dumps(prompt)}{more}}}"


def template(text: str) -> str:
    made, faults = compile_template(text, AROUND)
    if made is None:
        return "\n".join(fault.message for fault in faults)
    try:
        made.render(VARIABLES)
    except PromptError as error:
        return str(error)
    return ""


def parse(written: Any, text: str) -> str:
    try:
        return json.dumps(parsers.build(ItemCall.parse(written)).parse(text, {}))[:1_000]
    except (ParseFailure, RolegraphError, ValueError) as error:
        return str(error)


def table(text: str | bytes, suffix: str = ".jsonl") -> str:
    Path(f"t{suffix}").write_bytes(text.encode() if isinstance(text, str) else text)
    try:
        for _ in open_dataset(ItemCall.parse(f"t{suffix}"), split="train", folder=Path()).rows(None):
            pass
    except RolegraphError as error:
        return str(error)
    return ""


def bomb(name: str) -> str:
    """Read the Parquet file of the corpus that unpacks to gigabytes."""
    case = next(case for case in tables.CASES if name in case.says)
    return table(base64.b85decode(case.source.rpartition(" ")[2]), ".parquet")


def lines(text: str) -> str:
    Path("e.jsonl").write_text(f"{text}\n")
    try:
        for _ in read_episodes(Path("e.jsonl")):
            pass
    except RolegraphError as error:
        return str(error)
    return ""


def whole(size: int) -> str:
    """Read a JSON file and a run's settings of so many bytes."""
    folder = RunFolder(Path("whole"))
    folder.path.mkdir(exist_ok=True)
    text = json.dumps(honest.RUN["run.json"])
    folder.info_file.write_text(text + " " * (size - len(text)))
    try:
        folder.info()
        read_json(folder.info_file)
    except (RolegraphError, ValueError, OSError) as error:
        return str(error)
    return ""


def endpoint(body: str) -> str:
    try:
        return judge_said.asked(200, "application/json", body).text[:1_000]
    except ModelError as error:
        return str(error)


def episode(text: str, said: str, **task: Any) -> str:
    """Play an episode and return all of its JSON."""
    return json.dumps(judge_said.played(text, [said], **task), default=str)


def failures(made: dict[str, Any]) -> str:
    """Return the failures of an episode, whose texts may be too long to show."""
    return json.dumps(made["info"].get("failures", []))


def kept(text: str, size: int) -> str:
    """Play an episode that keeps so many characters: answers or results of as many as one may have."""
    each = MOST["answer_text"]
    judge_said.TOOL.update(result="x" * each, function={"parameters": honest.SCHEMA})
    return failures(judge_said.run(text.replace("COUNT", str(size // each)), ["x" * each]).to_dict())


def cut(size: int, shown: str, quote: str = "") -> str:
    """Return "cut" where a text of x, in quotes or not, was not shown as a whole."""
    return "whole" if f"{quote}{'x' * size}{quote}" in shown else "cut"


def failed(error: Exception) -> str:
    """Return the failures of an episode whose tool raises this."""
    judge_said.TOOL.update(result=error, function={"parameters": honest.SCHEMA})
    return failures(judge_said.played(judge_said.AGENT.replace("TOOL", "tool"), ["<answer>1</answer>"]))


def program(code: str) -> str:
    """Run a program in the sandbox; return what it printed and gave."""
    try:
        return json.dumps(evaluate(code, {}))
    except SandboxError as error:
        return str(error)


def program_reply(size: int) -> str:
    """Run a program at a server that replies so many bytes."""

    async def run(url: str) -> str:
        try:
            return str(await asyncio.to_thread(evaluate, "1", {}, interpreter=url))
        except (RolegraphError, SandboxError) as error:
            return str(error)

    ran = {"status": "Finished", "stdout": ""}
    spare = size - len(json.dumps({"status": "Success", "run_result": ran}))
    ran["stdout"] = "x" * spare
    return asyncio.run(replying(json.dumps({"status": "Success", "run_result": ran}), run))


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def tool(result: Any, said: str = CALL) -> str:
    judge_said.TOOL.update(result=result, function={"parameters": honest.SCHEMA})
    return episode(judge_said.AGENT.replace("TOOL", "tool"), said)


def shown(size: int) -> str:
    """Show a player an observation of so many characters."""
    judge_said.TRANSITIONS[:] = [{**honest.TRANSITION, "observations": {0: "x" * size, 1: ""}}]
    return episode(judge_said.game_of("fuzz_world"), "<answer>1</answer>")


def listed(functions: int, about: str = "Does f.", pages: int = 1) -> str:
    """Offer so many functions as an MCP server, on so many pages."""
    status, kind, page = copied(honest.MCP["tools/list"])
    one = {**page["result"]["tools"][0], "description": about}
    found = [
        {"tools": [{**one, "name": f"f{n}"} for n in range(functions)[at::pages]], "nextCursor": f"{at + 1}"}
        for at in range(pages)
    ]
    found[-1].pop("nextCursor")
    shown = cycle(found)
    replies = {**honest.MCP, "tools/list": lambda: (status, kind, {**page, "result": next(shown)})}
    return json.dumps(judge_said.mcp_served(replies, ["<answer>1</answer>"]), default=str)


def mcp_result(size: int) -> str:
    """Reply so many characters to a call, as an MCP server."""
    replies = copied(honest.MCP)
    replies["tools/call"][2]["result"] = {"content": [{"type": "text", "text": "x" * size}]}
    return json.dumps(judge_said.mcp_served(replies, [CALL]), default=str)


def solved(expression: str) -> str:
    """Evaluate an expression of countdown."""
    return "a value" if countdown.evaluate(expression) is not None else "unsolved"


def call(item: Any, **arguments: Any) -> str:
    """Call the function of a tool."""
    try:
        made = tools.build(ItemCall.parse(item), folder=Path())
        return str(asyncio.run(judge_written.asked(made, arguments)))
    except (ToolError, RolegraphError, ValueError) as error:
        return str(error)


def reply(size: int) -> str:
    """Answer the tool `http` with so many bytes."""

    async def ask(url: str) -> str:
        made = tools.build(ItemCall.parse({"http": {"url": url}}), folder=Path())
        try:
            return str(await judge_written.asked(made, {"body": {}}))[:100]
        except ToolError as error:
            return str(error)

    return asyncio.run(replying("x" * size, ask))


async def replying(body: str, ask: Callable[[str], Awaitable[str]]) -> str:
    """Ask a server that replies this, and return what comes of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


def served(path: str, body: Mapping[str, Any]) -> str:
    """Send a JSON body to the service; return its answer, and of an operation its result."""
    return judge_served.client().said("POST", path, json.dumps(body).encode())


def trained(change: Callable[[Any], None]) -> str:
    """Send a forward_backward of one datum, after `change` has changed the message."""
    return judge_served.client().trained(change)


def extended(many: int) -> str:
    """Extend so many specs, each the next."""
    write("e0.yaml", roles(role("a")))
    for n in range(1, many):
        write(f"e{n}.yaml", f"extends: e{n - 1}.yaml\n")
    return spec(f"extends: e{many - 1}.yaml\n")


def aliased(levels: int, around: str) -> str:
    """Return a spec whose values are inside one another by their names, each written once."""
    lines = (f"k{n}: &k{n} {around.format(f'*k{n - 1}')}" for n in range(1, levels))
    return "\n".join(["k0: &k0 {a: 1}", *lines])


def sample(**given: Any) -> str:
    return served(
        "/api/v1/asample",
        {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
            "sampling_session_id": "$sampler",
            **given,
            "sampling_params": {"max_tokens": 1, **given.get("sampling_params", {})},
        },
    )


def chat(**given: Any) -> str:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **given}
    return served("/v1/chat/completions", asked)


def created(**lora: Any) -> str:
    body = {"session_id": "$session", "model_seq_id": 9, "base_model": "tiny", "lora_config": lora}
    return served("/api/v1/create_model", body)


def saved(**given: Any) -> str:
    return served("/api/v1/save_weights", {"model_id": "$model", "path": "probe", **given})


def models(many: int) -> str:
    """Create so many models in one session."""
    session = json.loads(served("/api/v1/create_session", {}))["session_id"]
    made = {"session_id": session, "base_model": "tiny", "lora_config": {"rank": 1}}
    said = [served("/api/v1/create_model", {**made, "model_seq_id": n}) for n in range(many)]
    served(f"/api/v1/sessions/{session}/finish", {})
    return said[-1]


def headed(size: int) -> str:
    """Send headers of so many bytes to the service; return the beginning of its answer, or "closed"."""
    return judge_served.client().headed(b"x" * size) or "closed"


def isolated(size: int) -> str:
    """Take so many bytes in a process of its own."""
    try:
        return str(ISOLATION.run_blocking(eval, f"len(bytearray({size}))", limit=60))
    except CallLimit as error:
        return str(error)


def points(*words: str) -> str:
    """Span the grid of a sweep."""
    try:
        return str(len(grid_points(words)))
    except UsageError as error:
        return str(error)


def sparse(columns: int) -> Callable[[Any], None]:
    """Make the targets a sparse tensor of this width, without a value."""

    def change(asked: Any) -> None:
        tensor = asked.data[0].loss_fn_inputs["target_tokens"]
        tensor.ClearField("dense")
        del tensor.shape[:]
        tensor.shape.extend([1, columns])
        tensor.sparse_csr.crow_indices = (0).to_bytes(8, "little") * 2

    return change


def many_data(parts: int) -> Callable[[Any], None]:
    """Repeat the datum, which has some four parts."""

    def change(asked: Any) -> None:
        one = asked.data[0]
        asked.data.extend([one] * (parts // 4))

    return change


def deep(open_: str, close: str, levels: int, inner: str = "1") -> str:
    return open_ * levels + inner + close * levels


ISOLATION = Isolation()
LOOP = "{% for a in range(SIZE) %}{% for b in range(1000) %}x{% endfor %}{% endfor %}"
SCHEMA = {"json": {"items": {"type": "integer"}}}
MANY = roles(role("a", ", count: COUNT"))
MANY_TOOLS = roles("a: {run: {fuzz_tool: x}, count: COUNT}")
TRAIN = roles(role("a"), more="train: {FIELD}")


def train(field: str) -> str:
    return spec(TRAIN.replace("FIELD", field))


REFUSED: Mapping[str, Probe] = {
    "spec_bytes": Probe(lambda n: spec(roles(role("a")).ljust(n, "#"))),
    "spec_depth": Probe(lambda n: spec(f"a: {deep('[', ']', n)}"), under=38, over=42),
    "spec_depth by aliases": Probe(lambda n: spec(aliased(n, "[{}]")), under=38, over=42),
    "spec_depth by merges": Probe(lambda n: spec(aliased(n, "{{<<: {}}}")), under=38, over=42),
    "spec_values": Probe(lambda n: spec(f"x: [{'1,' * n}]"), under=9_000, over=20_010),
    "spec_values by aliases": Probe(
        lambda n: spec(f"x: [&a [{'1,' * 98}1], {'*a,' * (n // 100)}]"), under=9_800, over=10_200
    ),
    "spec_digits": Probe(lambda n: spec(roles(role("a", f", weight: {'1' * n}")))),
    "spec_extends": Probe(extended, under=15, over=19),
    "spec_count": Probe(lambda n: train(f"steps: {n}"), says=FIELD),
    "spec_instances": Probe(lambda n: spec(roles(role("a", f", count: {n}"))), says=FIELD),
    "spec_rounds": Probe(
        lambda n: spec(roles(role("a"), more=f"loops: {{p: {{roles: a, times: {n}}}}}")), says=FIELD
    ),
    "spec_calls": Probe(lambda n: spec(roles(role("a", f", max_calls: {n}"))), says=FIELD),
    "spec_rank": Probe(lambda n: train(f"lora: {{rank: {n}}}"), says=FIELD),
    "spec_staleness": Probe(lambda n: train(f"staleness: {n}"), says=FIELD),
    "spec_faults": Probe(lambda n: spec(roles(role("a"), more="\n".join(f"x{i}: 1" for i in range(n))))),
    "spec_roles": Probe(lambda n: spec(roles(*(role(f"a{i}") for i in range(n))))),
    "spec_name": Probe(lambda n: spec(roles(role("a" * n))), says="not starting with a digit"),
    "spec_templates": Probe(
        lambda n: spec(roles(*(role(f"a{i}", prompt="{{ 1 }}" * 900) for i in range(n // 900)))),
        over=30_000,
        under=9_000,
    ),
    "spec_turns": Probe(
        lambda n: spec(
            roles(role("a", ", count: 100"), more=f"loops: {{p: {{roles: a, times: {n // 100}}}}}")
        ),
        over=40_100,
    ),
    "spec_edges": Probe(
        lambda n: spec(roles(role("a", f", count: {n // 400}"), role("b", ", count: 400, needs: a"))),
        over=200_400,
    ),
    "spec_lineages": Probe(
        lambda n: spec(
            roles("r0: {count: 30, prompt: hi}")
            + "".join(f"\n  {role(f'r{i}', f', needs: {{r{i - 1}: each}}')}" for i in range(1, n))
        ),
        under=60,
        over=190,
    ),
    "sweep_points": Probe(lambda n: points(f"seed={','.join(map(str, range(n)))}")),
    "sweep_points by two": Probe(
        lambda n: points(*(f"{key}={','.join(map(str, range(n)))}" for key in "ab")), under=31, over=32
    ),
    "prompt_source": Probe(lambda n: template("x" * n)),
    "prompt_parts": Probe(lambda n: template("{{ 1 }}" * n), under=400, over=2_100),
    "prompt_depth": Probe(lambda n: template(f"{{{{ {deep('(', ')', n)} }}}}"), under=28, over=33),
    "prompt_blocks": Probe(lambda n: template(deep("{% if 1 %}", "{% endif %}", n))),
    "prompt_digits": Probe(lambda n: template(f"{{{{ {'9' * n} }}}}")),
    "prompt_text": Probe(lambda n: template(f"{{% set x = 'a' * {n} %}}")),
    "prompt_items": Probe(lambda n: template(f"{{% set x = [1] * {n} %}}")),
    "prompt_bits": Probe(
        lambda n: template("{% set a = " + "9" * 300 + " %}{% set x = " + "*".join("a" * n) + " %}"),
        under=4,
        over=5,
    ),
    "prompt_indent": Probe(lambda n: template(f"{{{{ [1] | tojson(indent={n}) }}}}")),
    "prompt_work": Probe(lambda n: template(LOOP.replace("SIZE", str(n))), under=10, over=400),
    "completion_bytes": Probe(lambda n: endpoint(f'"{"a" * (n - 2)}"'), under=7_000_000),
    "completion_parts": Probe(lambda n: endpoint("[" + "[]," * (n - 2) + "[]]")),
    "answer_text": Probe(lambda n: episode(judge_said.OWN, "a" * n)),
    "episode_size": Probe(lambda n: kept(MANY, n), over=40_400_000),
    "episode_size by tools": Probe(lambda n: kept(MANY_TOOLS, n), over=40_400_000),
    "failure_text": Probe(lambda n: cut(n, failed(ToolError("x" * n))), says="cut"),
    "message_text": Probe(lambda n: cut(n, failed(ValueError("x" * n))), says="cut"),
    "call_shown": Probe(lambda n: cut(n, tool("x", f"<tool_call>{'x' * n}</tool_call>"), "'"), says="cut"),
    "line_shown": Probe(lambda n: cut(n - 7, spec(f"x: 1  #{'x' * (n - 7)}")), says="cut"),
    "value_shown": Probe(lambda n: cut(n - 2, train(f"steps: {'x' * (n - 2)}"), "'"), says="cut"),
    "answer_calls": Probe(lambda n: tool("x", CALL * n)),
    "answer_words": Probe(lambda n: parse({"one_of": [f"w{i}" for i in range(n)]}, "w1")),
    "pattern_text": Probe(lambda n: parse({"regex": "(" + "a" * (n - 2) + ")"}, "a")),
    "pattern_groups": Probe(lambda n: parse({"regex": "(a)" * n}, "a")),
    "pattern_bytes": Probe(lambda n: parse({"regex": r"\pL" * n}, "a"), under=5, over=330),
    "pattern_work": Probe(
        lambda n: parse({"regex": "((a{0,30}){0,30}b)"}, "a" * n), under=1_000, over=399_000
    ),
    "json_depth": Probe(lambda n: parse("json", deep("[", "]", n))),
    "json_digits": Probe(lambda n: parse("json", "9" * n), under=4_299, says="holds no JSON"),
    "json_starts": Probe(
        lambda n: parse("json", "{x " * n + " [7]"), under=63, over=65, says="holds no JSON"
    ),
    "json_read": Probe(lambda n: parse("json", "[" * 60 + "1," * (n // 2)), under=10_000, over=60_000),
    "schema_work": Probe(lambda n: parse(SCHEMA, str([*range(n)])), under=1_000, over=100_000),
    "countdown_text": Probe(lambda n: solved("(1" + " " * (n - 3) + ")"), says="unsolved"),
    "countdown_depth": Probe(lambda n: solved("-" * n + "1"), under=38, over=42, says="unsolved"),
    "tool_text": Probe(lambda n: tool("x" * n), under=399_000),
    "observation_text": Probe(shown),
    "tool_functions": Probe(listed),
    "reply_bytes": Probe(reply, under=900_000),
    "mcp_bytes": Probe(mcp_result, under=3_900_000),
    "mcp_bytes by pages": Probe(lambda n: listed(10, "x" * (n // 10), 5), under=3_900_000, over=4_000_100),
    "program_text": Probe(lambda n: cut(n, program(f"print('x' * {n})")), says="cut"),
    "program_text by value": Probe(lambda n: cut(n, program(f"'x' * {n}")), under=9_990, says="cut"),
    "program_depth": Probe(lambda n: program(f"x = 1\nfor _ in range({n}):\n  x = [x]\nx"), says="(cut)"),
    "program_error": Probe(lambda n: cut(n - 12, program(f"raise ValueError('x' * {n - 12})")), says="cut"),
    "program_reply": Probe(program_reply),
    "call_memory": Probe(isolated, under=500_000_000, over=1_100_000_000),
    "calculator_text": Probe(lambda n: call("calculator", expression="1" + " " * (n - 3) + "+1")),
    "calculator_depth": Probe(lambda n: call("calculator", expression=deep("-", "", n)), under=48),
    "calculator_bits": Probe(lambda n: call("calculator", expression=f"2**{n}"), under=4_000),
    "calculator_bits by far": Probe(
        lambda n: call("calculator", expression=f"2**{n}"), under=4_000, over=10**12
    ),
    "record_line": Probe(lambda n: lines("x" * (n - 1))),
    "record_values": Probe(lambda n: lines("[" + "1," * (n - 3) + "1]"), under=100_000, over=3_000_010),
    "record_parts": Probe(
        lambda n: table('{"a": [' + "[]," * (n - 3) + "[]]}"), under=900_000, over=1_000_100
    ),
    "whole_file": Probe(whole),
    "parquet_memory": Probe(lambda n: bomb("parquet_memory") if n else "", under=0, over=1),
    "parquet_rows": Probe(lambda n: bomb("parquet_rows") if n else "", under=0, over=1),
    "row_text": Probe(lambda n: table('{"a": "' + "x" * (n - 10) + '"}\n')),
    "service_body_bytes": Probe(
        lambda n: served("/v1/completions", {"model": "tiny", "prompt": "", "user": "x" * n}),
        under=2**22 - 200,
        over=2**22,
    ),
    "service_train_bytes": Probe(
        lambda n: trained(lambda asked: setattr(asked, "loss_fn", "x" * n)), under=2**25 - 2_000, over=2**25
    ),
    "service_parts": Probe(lambda n: trained(many_data(n)), under=1_000, over=4 * 2**16),
    "service_targets": Probe(lambda n: trained(sparse(n))),
    "service_header_bytes": Probe(headed, under=16_000, over=1_000_000, says="closed"),
    "service_listed": Probe(
        lambda n: judge_served.client().said("GET", f"/api/v1/training_runs?limit={n}", b"")
    ),
    "service_models": Probe(models),
    "service_name": Probe(lambda n: chat(model="x" * n)),
    "service_number": Probe(lambda n: chat(max_tokens=n)),
    "service_seed": Probe(lambda n: chat(seed=n)),
    "service_temperature": Probe(lambda n: chat(temperature=n), says="(limit: service_temperature)"),
    "service_rate": Probe(
        lambda n: served("/api/v1/optim_step", {"model_id": "$model", "adam_params": {"learning_rate": n}}),
        under=10**29,
        over=10**31,
    ),
    "service_rank": Probe(lambda n: created(rank=n), under=64),
    "service_metadata": Probe(lambda n: saved(user_metadata={"a": "x" * (n - 1)})),
    "service_samples": Probe(lambda n: sample(num_samples=n), under=8),
    "service_top": Probe(lambda n: sample(topk_prompt_logprobs=n)),
    "service_choice_top": Probe(lambda n: chat(logprobs=True, top_logprobs=n)),
    "service_choices": Probe(lambda n: chat(n=n), under=8),
    "service_stops": Probe(lambda n: chat(stop=["x"] * n)),
    "service_stop_text": Probe(lambda n: chat(stop="x" * n)),
    "service_text_per_token": Probe(
        lambda n: chat(messages=[{"role": "user", "content": "x" * n * 48}]), under=20, over=33
    ),
    "service_checkpoint_seconds": Probe(lambda n: saved(ttl_seconds=n)),
}

MOST = {limit.name: limit.most for limit in LIMITS}


def limit_of(name: str) -> str:
    """Return the limit that a probe tries: the first word of its name."""
    return name.partition(" ")[0]


UNPROBED: Mapping[str, str] = {
    "takes its seconds": "completion_seconds reply_seconds game_seconds game_stop_seconds tool_close_seconds "
    "service_header_seconds service_body_seconds service_left_seconds service_silent_seconds",
    "grows by thousands of calls": "service_sessions service_pending service_kept service_kept_bytes",
    "lets others wait, refuses nobody": "service_live service_live_tokens service_read_tokens",
    "lets the oldest go, refuses nobody": "service_loaded service_snapshots",
}
"""Limits without a probe, by the reason."""


def unprobed() -> list[str]:
    """Return a line for each reason, with the limits that have no probe for it."""
    known = [*map(limit_of, REFUSED), *" ".join(UNPROBED.values()).split()]
    new = {"has no probe yet": " ".join(sorted({*MOST} - {*known}))}
    return [f"{why}: {names}" for why, names in {**UNPROBED, **new}.items() if names]


def sizes(name: str) -> tuple[int, int]:
    """Return the largest size that a limit lets through, and the smallest that it refuses."""
    probe, most = REFUSED[name], MOST[limit_of(name)]
    return (most if probe.under is None else probe.under), (most + 1 if probe.over is None else probe.over)


def judge(text: str) -> str:
    """Return what came of an input of a size; raise AssertionError where the limit does not hold."""
    name, size = json.loads(text)
    probe, (under, over) = REFUSED[name], sizes(name)
    said = probe.of(size)
    limit = limit_of(name)
    named = probe.says.format(name=limit, most=MOST[limit]) in said
    assert named or size < over, f"{name} lets {size:,} through: {said[-100:]!r}"
    assert not named or size > under, f"{name} refuses {size:,}: {said[-100:]!r}"
    return judge_written.FAULT if named else judge_written.RESULT


def draw(rng: random.Random) -> str:
    """Draw a limit, and a size at it, just under it or over it."""
    name = rng.choice([*REFUSED])
    under, over = sizes(name)
    return json.dumps([name, rng.choice([under // 2, max(under - 1, 0), under, over, over + 1])])


def all_sizes() -> list[str]:
    """Return an input at each limit and one just over it."""
    return [json.dumps([name, size]) for name in REFUSED for size in sizes(name)]
