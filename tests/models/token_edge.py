"""Servers in the protocols of vLLM and SGLang, with real tokens and log-probabilities of the shipped model.

Fields, ranges and refusals are those of `real_limits`; adapters follow vLLM's
`entrypoints/serve/lora/protocol.py` and SGLang's `srt/managers/io_struct.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.local.launcher import BASE_MODEL
from tests.models.edges import served
from tests.models.real_limits import SGLangGenerate, VLLMCompletion, check_context, refusal_of

NAME = "base"
CONTEXT = 2048


class Drawn(NamedTuple):
    """Tokens with the log-probabilities that the model gives them."""

    ids: list[int]
    logprobs: list[float]
    best: list[float]
    """Log-probability of the likeliest token at each place."""
    finish: str


class TokenEdge:
    """Server in both protocols; its faults are set by attributes."""

    def __init__(self) -> None:
        self.tokenizer: Any = load_tokenizer(BASE_MODEL)
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the calls, without those of the probe."""
        self.loads: list[dict[str, Any]] = []
        self.base_url = ""
        self.forced: Iterator[Sequence[int]] = iter(())
        """Answers that are given, while there are any, in place of sampled ones."""
        self.processed = True
        """Whether log-probabilities are computed after temperature."""
        self.retokenized = ""
        """Part that is tokenized again: `prompt`, `answer` or `text`."""
        self.allows_loading = True
        self.adapters: dict[str, Any] = {}
        """Loaded adapters: models of peft, by name."""

    @cached_property
    def base(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32).eval()

    def app(self) -> Starlette:
        routes: dict[str, Callable[[dict[str, Any]], Response]] = {
            "/v1/completions": self.completion,
            "/v1/load_lora_adapter": self.load_in_place,
            "/generate": self.generate,
            "/load_lora_adapter": self.load,
            "/unload_lora_adapter": self.unload,
        }

        def handler(answer: Callable[[dict[str, Any]], Response]) -> Any:
            async def handle(request: Request) -> Response:
                return answer(await request.json())

            return handle

        posts = [Route(path, handler(answer), methods=["POST"]) for path, answer in routes.items()]
        return Starlette(routes=[Route("/v1/models", self.models), *posts])

    async def models(self, _: Request) -> Response:
        card = {"id": NAME, "object": "model", "root": str(BASE_MODEL), "max_model_len": CONTEXT}
        lora = [{"id": name, "root": "/adapters", "parent": NAME} for name in self.adapters]
        return JSONResponse({"object": "list", "data": [{**card, "parent": None}, *lora]})

    # vLLM

    def completion(self, body: dict[str, Any]) -> Response:
        if body["model"] not in (NAME, *self.adapters):
            return fault(404, f"The model `{body['model']}` does not exist.")
        if (refusal := refusal_of(VLLMCompletion, body)) is not None:
            return refusal
        if full := check_context(len(body["prompt"]), body["max_tokens"], CONTEXT):
            return fault(400, full)
        self._note(body, body["max_tokens"])
        prompt = self._again(body["prompt"], "prompt")
        model = self.adapters.get(body["model"], self.base)
        drawn = self._draw(model, prompt, body, body["max_tokens"], body.get("seed"))
        ids = self._again(drawn.ids, "answer")
        tops = [{"token_id:0": best} for best in drawn.best]
        choice = {
            "index": 0,
            "text": self._text(drawn, body),
            "finish_reason": drawn.finish,
            "logprobs": {
                "tokens": [f"token_id:{token}" for token in drawn.ids],
                "token_logprobs": drawn.logprobs,
                "top_logprobs": tops if body["logprobs"] else [],
                "text_offset": [],
            },
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        }
        return JSONResponse({"id": "1", "object": "text_completion", "model": NAME, "choices": [choice]})

    def load_in_place(self, body: dict[str, Any]) -> Response:
        if not self.allows_loading:
            return fault(404, "Not Found")
        if body["lora_name"] in self.adapters and not body.get("load_inplace"):
            return fault(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
        self._load(body)
        return PlainTextResponse("Success")

    # SGLang

    def generate(self, body: dict[str, Any]) -> Response:
        if (refusal := refusal_of(SGLangGenerate, body)) is not None:
            return refusal
        params = body["sampling_params"]
        self._note(body, params["max_new_tokens"])
        prompt = self._again(body["input_ids"], "prompt")
        if (lora := body.get("lora_path")) and lora not in self.adapters:
            return fault(400, f"The following requested LoRA adapters are not loaded: {lora}")
        model = self.adapters[lora] if lora else self.base
        drawn = self._draw(model, prompt, params, params["max_new_tokens"], params.get("sampling_seed"))
        scores = [[logprob, token, None] for logprob, token in zip(drawn.logprobs, drawn.ids, strict=True)]
        meta = {
            "finish_reason": {"type": drawn.finish},
            "prompt_tokens": len(prompt),
            "output_token_logprobs": scores,
            "output_top_logprobs": [[[best, 0, None]] for best in drawn.best],
        }
        whole = {"text": self._text(drawn, params), "output_ids": self._again(drawn.ids, "answer")}
        return JSONResponse({**whole, "meta_info": meta})

    def load(self, body: dict[str, Any]) -> Response:
        if body["lora_name"] in self.adapters:
            return fault(400, f"{body['lora_name']} is already loaded")
        self._load(body)
        return JSONResponse({"success": True})

    def unload(self, body: dict[str, Any]) -> Response:
        found = self.adapters.pop(body["lora_name"], None)
        return JSONResponse({"success": True}) if found else fault(400, "no such adapter")

    # the model

    def _note(self, body: dict[str, Any], limit: int) -> None:
        if limit > 1:  # the probe asks for one token
            self.bodies.append(body)

    def _load(self, body: dict[str, Any]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32)
        self.adapters[body["lora_name"]] = PeftModel.from_pretrained(base, body["lora_path"]).eval()
        config = json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text("utf-8"))
        self.loads.append({**body, "rank": config["r"]})

    @torch.inference_mode()
    def _draw(
        self, model: Any, prompt: Sequence[int], params: dict[str, Any], limit: int, seed: int | None
    ) -> Drawn:
        """Sample tokens one by one, or take the forced ones; all log-probabilities are the model's."""
        forced = next(self.forced, None) if limit > 1 else None
        generator = torch.Generator().manual_seed((seed or 0) % 2**63)
        temperature, ends = params["temperature"], set(params.get("stop_token_ids", ()))
        ids, logprobs, best = list[int](), list[float](), list[float]()
        inputs, cache = torch.tensor([prompt]), None
        for place in range(limit if forced is None else len(forced)):
            out = model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0, -1]
            scaled = (logits / temperature if temperature else logits).log_softmax(-1)
            if forced is not None:
                token = forced[place]
            elif temperature:
                token = int(torch.multinomial(scaled.exp(), 1, generator=generator))
            else:
                token = int(scaled.argmax())
            scores = scaled if self.processed else logits.log_softmax(-1)
            ids.append(token)
            logprobs.append(scores[token].item())
            best.append(scores.max().item())
            if token in ends:
                return Drawn(ids, logprobs, best, "stop")
            inputs = torch.tensor([[token]])
        return Drawn(ids, logprobs, best, "length")

    def _again(self, ids: list[int], part: str) -> list[int]:
        """Return tokens as they are, or those of their text where the server tokenizes this part again."""
        if self.retokenized != part:
            return ids
        return self.tokenizer.encode(self.decode(ids), add_special_tokens=False)

    def _text(self, drawn: Drawn, params: dict[str, Any]) -> str:
        if self.retokenized == "text":
            return "another text"
        stopped = drawn.finish == "stop"
        return self.decode(drawn.ids[:-1] if stopped else drawn.ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def fault(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "x", "code": status}}, status_code=status)


@contextmanager
def token_server() -> Iterator[TokenEdge]:
    """Serve both protocols for the time of the block."""
    edge = TokenEdge()
    with served(edge.app()) as edge.base_url:
        yield edge
