"""Fixtures: a running service with a tiny random model, and the SDK's own client of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from rolegraph.local.launcher import LocalService, running  # noqa: E402
from tests.conftest import anew  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_model(folder: Path, seed: int = 0, merges: Sequence[tuple[str, str]] = ()) -> Path:
    """Write a random Llama of 30,000 parameters, a byte-level tokenizer and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*WORDS, *alphabet, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [*merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": WORDS[1:]})
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the service's checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def service(model_dir: Path, state_dir: Path) -> Iterator[LocalService]:
    with ExitStack() as stack:
        with anew():
            started = stack.enter_context(running(model_dir, state_dir=state_dir, threads=1))
        yield started


@pytest.fixture
def client(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> tinker.ServiceClient:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
