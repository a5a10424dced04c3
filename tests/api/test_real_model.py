"""SmolLM2 from its fetch to its export, in plain transformers; runs where ROLEGRAPH_DOWNLOAD_TESTS is set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg  # noqa: E402
from rolegraph.local.fetch import fetch  # noqa: E402

pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not os.environ.get("ROLEGRAPH_DOWNLOAD_TESTS"), reason="downloads 93 MB"),
]
CERTIFICATES = os.environ.get("SSL_CERT_FILE")
"""The user's certificates; the tests' own session has fewer."""
SPEC = """\
rolegraph: 2
name: letters
model: local:smollm2-135m
data: {train: rows.jsonl, validation: rows.jsonl}
roles:
  solver:
    prompt: "Which letter comes after {{ task.question }}? Answer with one letter."
    parser: text
    reward: {length: {over: 40}}
    estimator: grpo
    sampling: {max_tokens: 12}
train: {steps: 2, batch_size: 4, rollouts: 4, learning_rate: 0.002, lora: {rank: 8}}
"""


def greedy(model: Any, tokenizer: Any, questions: list[str]) -> list[str]:
    answers: list[str] = []
    for question in questions:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            out = model.generate(**ids, max_new_tokens=24, do_sample=False)
        answers.append(tokenizer.decode(out[0][ids["input_ids"].shape[1] :]))
    return answers


def test_adapter_and_merged_model_answer_alike_in_plain_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.delenv("SSL_CERT_FILE")
    if CERTIFICATES:
        monkeypatch.setenv("SSL_CERT_FILE", CERTIFICATES)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    base = fetch("smollm2-135m", place="registry").folder
    Path("rows.jsonl").write_text("".join(f'{{"question": "{letter}"}}\n' for letter in "abcdefgh"))
    Path("letters.yaml").write_text(SPEC)
    rg.train(rg.load("letters.yaml"), out="trained")
    adapter, merged = rg.export("trained"), rg.export("trained", merged=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(merged)
    plain: Any = AutoModelForCausalLM.from_pretrained(base)
    questions = [f"Tell me about the letter {letter}." for letter in "abcdefgh"]
    before = greedy(plain, tokenizer, questions)
    with_adapter = greedy(PeftModel.from_pretrained(plain, str(adapter)), tokenizer, questions)
    assert greedy(AutoModelForCausalLM.from_pretrained(merged), tokenizer, questions) == with_adapter
    assert with_adapter != before  # the weights that are compared have learned something
