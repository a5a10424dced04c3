"""CPU time of one call, by the length of its answer, in Rolegraph's clients and in others.

    python benchmarks/calls.py               # Markdown tables; needs pip install -e '.[bench]'
    python benchmarks/calls.py --rounds 15
    python benchmarks/calls.py --held        # memory of a step and its datum

A stub in a process of its own gives an answer of 5, 1,000 or 8,000 tokens with ids and log-probabilities, in
the form of vLLM's chat completions (`openai:` and the peers), of its completions (`vllm:`) and of a Tinker
service. 16 calls are in flight. The systems take turns, and a ratio is the median of the rounds' ratios to
aiohttp with orjson, which is the least that a program of a few lines needs. Only the CPU time of the client
and its threads counts. Everything is measured twice: with Python's own threshold of the garbage collector, as
in a program that imports Rolegraph, and with that of the command.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rolegraph.engine.models import Request, ServedModel, open_model, open_served
from rolegraph.engine.models.limit import LimitedModel
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.records import CallId, NodeId, Step
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.training.policies.batches import StepAdvantages, build_datum
from rolegraph.local.launcher import BASE_MODEL
from tests.models.tinker_edge import tinker_service

HELD = 256
"""Answers of 1,000 tokens whose memory is measured."""
CALLS = {5: 96, 1000: 48, 8000: 16}
"""Calls of a round, by tokens of the answer."""
IN_FLIGHT = 16
COLLECTORS = {"Python's own": gc.get_threshold()[0], "the command's": 100_000}
"""Threshold of the youngest generation, by the name of the table."""
LEAST = "aiohttp and orjson"
MESSAGES = [{"role": "user", "content": "Make 7 from the numbers 3, 4, each used once. " * 20}]
CALL = CallId("t", 0, NodeId("solver"))
Call = Callable[[], Awaitable[int]]
"""A call that returns the number of tokens with a log-probability."""


def asked(tokens: int) -> dict[str, Any]:
    """The fields that Rolegraph sends."""
    extras = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True, "return_prompt_token_ids": True}
    return {"model": str(tokens), "messages": MESSAGES, "temperature": 1.0, "seed": 3, **extras}


def answers(tokens: int, tokenizer: Any) -> dict[str, dict[str, Any]]:
    """An answer by the path of the request; that of completions lacks the ids of the prompt."""
    draw = random.Random(tokens)
    ids = tokenizer.encode("the sum of 3 and 4 is 7. " * tokens, add_special_tokens=False)[:tokens]
    scores = [-abs(draw.gauss(0, 1)) for _ in ids]
    words = [tokenizer.decode([token]) for token in ids]
    entries = [
        {"token": word, "logprob": score, "bytes": [*word.encode()]}
        for word, score in zip(words, scores, strict=True)
    ]
    named = [f"token_id:{token}" for token in ids]
    legacy = {
        "tokens": named,
        "token_logprobs": scores,
        "top_logprobs": [{name: score} for name, score in zip(named, scores, strict=True)],
        "text_offset": [0] * tokens,
    }
    text = tokenizer.decode(ids)
    choice = {"index": 0, "finish_reason": "stop", "token_ids": ids}
    chat = {
        **choice,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": [{**entry, "top_logprobs": [entry]} for entry in entries]},
    }
    whole = {
        "id": "1",
        "created": 0,
        "model": "m",
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens},
    }
    return {
        "/v1/chat/completions": {
            **whole, "object": "chat.completion", "prompt_token_ids": [1] * 300, "choices": [chat]
        },
        "/v1/completions": {**whole, "choices": [{**choice, "text": text, "logprobs": legacy}]},
    }  # fmt: skip


async def serve(delay: float) -> None:
    """Answer on a free port, which is printed, and as a Tinker service at a URL that is printed behind it."""
    tokenizer: Any = load_tokenizer(BASE_MODEL)
    whole = {str(tokens): answers(tokens, tokenizer) for tokens in CALLS}
    chats = {name: json.dumps(it["/v1/chat/completions"]).encode() for name, it in whole.items()}
    cards = [{"id": name, "object": "model", "root": str(BASE_MODEL)} for name in whole]
    listed = json.dumps({"object": "list", "data": cards}).encode()

    def reply(path: str, body: dict[str, Any]) -> bytes:
        if path.endswith("/models"):
            return listed
        if path.endswith("/chat/completions"):
            return chats[body["model"]]
        answer = answers(1, tokenizer) if body["max_tokens"] == 1 else whole[body["model"]]
        return json.dumps(with_prompt(answer["/v1/completions"], body["prompt"])).encode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = await reader.readexactly(length_of(head))
                if delay and b'"messages"' in body:
                    await asyncio.sleep(random.uniform(0.5, 1.5) * delay)
                content = reply(head.split()[1], json.loads(body or b"{}"))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(content) + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def sampled(body: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[float], str]:
        choice = whole[str(body["sampling_params"]["max_tokens"] - 1)]["/v1/completions"]["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"], "stop"

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    with tinker_service(sampled, context=1 << 20) as service:
        service.models[0]["model_name"] = str(BASE_MODEL)
        print(server.sockets[0].getsockname()[1], service.base_url, flush=True)
        await server.serve_forever()


def with_prompt(answer: Mapping[str, Any], prompt: list[int]) -> dict[str, Any]:
    return {**answer, "choices": [{**answer["choices"][0], "prompt_token_ids": prompt}]}


def length_of(head: str) -> int:
    found = head.lower().partition("content-length:")[2]
    return int(found.split()[0]) if found else 0


def scored(answer: Mapping[str, Any]) -> int:
    """Read ids and log-probabilities as a program of a few lines does."""
    choice = answer["choices"][0]
    scores = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return min(len(scores), len(choice["token_ids"]))


async def systems(session: Any, port: int, tinker_url: str, tokens: int) -> dict[str, Call]:
    """The systems by name; the connections of all but aiohttp's `session` end with the process."""
    import openai
    import orjson

    url = f"http://127.0.0.1:{port}/v1"
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
    request = Request(MESSAGES, Sampling(max_tokens=tokens + 1), 3, CALL)
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ours(provider: str) -> Call:
        is_tinker = provider == "tinker"
        name, base_url = (str(BASE_MODEL), tinker_url) if is_tinker else (str(tokens), url)
        ref = ModelRef(provider=provider, name=name, base_url=base_url)
        served = ServedModel(ref, api_key="tml-none", tokenizer_dir=BASE_MODEL if is_tinker else None)
        model = LimitedModel(await open_served(served), IN_FLIGHT)

        async def call() -> int:
            completion, _, _ = await model.complete(request)
            return min(len(completion.response_ids), len(completion.logprobs))

        return call

    async def with_client() -> int:
        fields: Any = asked(tokens)
        extra = {name: fields.pop(name) for name in ("return_token_ids", "return_prompt_token_ids")}
        answer = await client.chat.completions.create(**fields, extra_body=extra)
        return len([entry.logprob for entry in answer.choices[0].logprobs.content])

    async def with_aiohttp() -> int:
        async with session.post(f"{url}/chat/completions", data=orjson.dumps(asked(tokens))) as response:
            return scored(orjson.loads(await response.read()))

    async def raw() -> int:
        reader, writer = opened.pop() if opened else await asyncio.open_connection("127.0.0.1", port)
        body = orjson.dumps(asked(tokens))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        answer = orjson.loads(await reader.readexactly(length_of(head)))
        opened.append((reader, writer))
        return scored(answer)

    return {
        "`openai:`": await ours("openai"),
        "`vllm:`": await ours("vllm"),
        "`tinker:`": await ours("tinker"),
        "openai's own client": with_client,
        LEAST: with_aiohttp,
        "raw asyncio and orjson": raw,
    }


async def cpu_ms(call: Call, count: int, tokens: int) -> float:
    """CPU time of a call in milliseconds."""
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            if await call() != tokens:
                raise ValueError("an answer lacks tokens")

    start = time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return (time.process_time() - start) / count * 1e3


async def compare(calls: dict[str, Call], count: int, tokens: int, rounds: int) -> dict[str, str]:
    """A table's cell for each system: milliseconds, and the ratio to aiohttp."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            took = await cpu_ms(calls[name], count, tokens)
            if turn:  # the first warms up
                times[name].append(took)
    cells: dict[str, str] = {}
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times[LEAST], strict=True)]
        cells[name] = f" {statistics.median(taken):.2f} ({statistics.median(ratios):.2f}) |"
    return cells


async def held(port: int) -> None:
    """Print the memory of answers of 1,000 tokens as they are kept until an update, and of their datums."""
    url = f"http://127.0.0.1:{port}/v1"
    model = LimitedModel(await open_model(ModelRef(provider="openai", name="1000", base_url=url)), IN_FLIGHT)
    request = Request(MESSAGES, Sampling(max_tokens=1001), 3, CALL)

    async def step() -> Step:
        answer, _, _ = await model.complete(request)
        return Step(answer.prompt_ids, answer.response_ids, answer.logprobs, metadata={})

    await step()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    steps = [await step() for _ in range(HELD)]
    gc.collect()
    between = tracemalloc.get_traced_memory()[0]
    data = [
        build_datum([StepAdvantages(step, (0.5,) * len(step.response_ids), "")], "importance_sampling", 1.0)
        for step in steps
    ]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    sizes = ((between - before) / HELD / 1e3, (after - between) / len(data) / 1e3)
    click.echo("{:.1f} kB a step, {:.1f} kB a datum beside it".format(*sizes))


async def measure(port: int, tinker_url: str, rounds: int) -> None:
    import aiohttp

    cells: dict[str, dict[str, str]] = {title: {} for title in COLLECTORS}
    async with aiohttp.ClientSession() as session:
        for tokens, count in CALLS.items():
            calls = await systems(session, port, tinker_url, tokens)
            for title, threshold in COLLECTORS.items():
                gc.set_threshold(threshold)
                for name, cell in (await compare(calls, count, tokens, rounds)).items():
                    cells[title][name] = cells[title].get(name, "") + cell
    for title, rows in cells.items():
        click.echo(f"\nCollector: {title}\n\n| | {' | '.join(f'{it:,} tokens' for it in CALLS)} |")
        click.echo("| --- |" + " ---: |" * len(CALLS))
        for name, row in rows.items():
            click.echo(f"| {name} |{row}")


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--held", "holds", is_flag=True, help="Measure the memory of answers in place of their time.")
@click.option("--serve", "serves", is_flag=True, hidden=True)
@click.option("--delay", default=0.0, help="Seconds of an answer of the stub, in the mean.", hidden=True)
def main(rounds: int, holds: bool, serves: bool, delay: float) -> None:
    if serves:
        asyncio.run(serve(delay))
        return
    logging.disable(logging.WARNING)  # the stub's answers are all equal
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE) as stub:
        try:
            assert stub.stdout is not None
            port, tinker_url = stub.stdout.readline().decode().split()
            asyncio.run(held(int(port)) if holds else measure(int(port), tinker_url, rounds))
        finally:
            stub.terminate()


if __name__ == "__main__":
    main()
