"""Tests of the conversion from chats to tokens and from tokens to answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts.chat import ChatFormat, cut_at_stop, split_reasoning
from tests.models.edges import TEMPLATE, write_tokenizer

ASK = [{"role": "user", "content": "1 + 1?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(folder), "tiny")


def encode(folder: Path, text: str) -> list[int]:
    return load_tokenizer(folder).encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<answer>2</answer>", False, ("", "<answer>2</answer>")),
        ("  plain, spaces kept\n", False, ("", "  plain, spaces kept\n")),
        ("<think>\nhm\n</think>\n\n<answer>2</answer>", False, ("hm", "<answer>2</answer>")),
        ("hm</think>2", True, ("hm", "2")),
        ("<think>hm</think>2", True, ("hm", "2")),
        ("<think>never ends", False, ("never ends", "")),
        ("never ends", True, ("never ends", "")),
        ("<think></think>2", False, ("", "2")),
        ("2, as in <think>two</think>", False, ("", "2, as in <think>two</think>")),
        ("<think>a</think>b</think>c", False, ("a", "b</think>c")),
    ],
)
def test_reasoning_at_the_start_is_thought_and_the_rest_is_the_answer(
    text: str, opened: bool, expected: tuple[str, str]
) -> None:
    assert split_reasoning(text, opened=opened) == expected


def test_an_answer_ends_at_the_first_stop_text() -> None:
    assert cut_at_stop("one STOP two END", ["END", "STOP"]) == "one "
    assert cut_at_stop("one", ["END", ""]) == "one"


def test_messages_are_rendered_by_the_models_own_template(chat: ChatFormat, folder: Path) -> None:
    prompt = chat.prompt([{"role": "system", "content": "Be brief."}, *ASK])
    expected = "<|start|>system\nBe brief.<|end|>\n<|start|>user\n1 + 1?<|end|>\n<|start|>assistant\n"
    assert list(prompt.ids) == encode(folder, expected)
    assert not prompt.thinking


def test_a_turn_ends_with_the_templates_token_as_well_as_with_end_of_text(chat: ChatFormat) -> None:
    assert chat.end_texts == ("<|end|>", "<|text|>")


def test_the_token_that_ends_the_turn_is_no_part_of_the_answer(chat: ChatFormat, folder: Path) -> None:
    ids = encode(folder, "<think>add</think>two, naïvely<|end|>")
    assert chat.answer(ids, stop=[], thinking=False) == ("add", "two, naïvely")
    assert chat.answer(ids[:-1], stop=[], thinking=False) == ("add", "two, naïvely")


def test_a_stop_text_is_no_part_of_the_answer(chat: ChatFormat, folder: Path) -> None:
    assert chat.answer(encode(folder, "two</a>"), stop=["</a>"], thinking=False) == ("", "two")


def test_a_template_that_opens_the_reasoning_makes_the_response_start_with_thought(tmp_path: Path) -> None:
    template = TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
    folder = write_tokenizer(tmp_path, template)
    chat = ChatFormat(load_tokenizer(folder), "thinker")
    assert chat.prompt(ASK).thinking
    assert chat.answer(encode(folder, "add\n</think>\n2"), stop=[], thinking=True) == ("add", "2")


def test_a_chat_that_the_template_cannot_write_is_a_model_error_that_says_why(tmp_path: Path) -> None:
    refuses = "{{ raise_exception('no system turns') if messages[0].role == 'system' }}" + TEMPLATE
    chat = ChatFormat(load_tokenizer(write_tokenizer(tmp_path, refuses)), "strict")
    with pytest.raises(ModelError, match=r"template of strict refuses .* no system turns") as caught:
        chat.prompt([{"role": "system", "content": "x"}, *ASK])
    assert not caught.value.transient


def test_a_folder_without_a_chat_template_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no chat template.*chat_template\.jinja"):
        load_tokenizer(write_tokenizer(tmp_path, template=None))


def test_a_folder_without_a_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot load the tokenizer of"):
        load_tokenizer(tmp_path)


def test_a_name_that_is_no_folder_where_no_hub_is_reachable_says_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WorldError, match=r"'some-org/some-model': it is no folder here, and the model hub"):
        load_tokenizer("some-org/some-model")
