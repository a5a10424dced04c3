"""The base model of the package: loading offline, chat format, and form of the answers."""

from __future__ import annotations

import asyncio

import pytest
from measure import measure

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.local.launcher import BASE_MODEL as MODEL

pytestmark = pytest.mark.service
pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield patch


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MODEL)


def test_the_base_model_is_small_enough_to_ship():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 10_000_000


def test_the_base_model_loads_by_the_usual_names(monkeypatch_module):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert model.config.max_position_embeddings >= 1024
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_chat_template_renders_turns_and_opens_the_next(tokenizer):
    user, assistant = {"role": "user", "content": "Use 3, 4"}, {"role": "assistant", "content": "3+4=7"}
    asked = tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([user, assistant], tokenize=False)
    assert whole == f"{asked}3+4=7{tokenizer.eos_token}\n"
    system = tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}, user], tokenize=False)
    assert system.index("Be brief.") < system.index("Use 3, 4")


@pytest.mark.parametrize("text", ["<answer>(12+5)*3</answer>", "1728 / 144 = 12\n", "naïve – 数"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_numbers_and_tags_are_single_tokens(tokenizer):
    for text in ("7", "42", "144", "<answer>", "</answer>", "<verdict>", "</verdict>", tokenizer.eos_token):
        assert len(tokenizer(text)["input_ids"]) == 1


def test_sampled_answers_are_well_formed_and_some_are_right():
    specs = ["solver_judge", "solver_judge_validator"]
    figures, marks = asyncio.run(measure(MODEL, specs, tasks=16, rollouts=2))
    assert [each.name.partition(" ")[2] for each in figures] == [
        "",
        "roles.solver.count=4",
        "roles.solver.count=8",
        "",
    ]
    for each in figures:
        assert each.malformed <= 0.1
        assert each.cut <= 0.02
        assert 0.25 < each.figures["solver_acc"] < 0.7
    assert {*marks} == {"solve", "judge", "verify"}
    assert all(0.25 < sum(each) / len(each) < 0.95 for each in marks.values())
