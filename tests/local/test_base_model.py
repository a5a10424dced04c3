"""The base model of the package: loading offline, chat format, and form of the answers."""

from __future__ import annotations

import pytest
from turns import Turn, ask_judge, ask_solver, ask_validator, steps, turns

from rolegraph.engine.local.launcher import BASE_MODEL as MODEL
from rolegraph.roles.countdown import generate, is_solution, last_answer

pytestmark = pytest.mark.service
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from measure import load, respond  # noqa: E402  (needs the two above)

TASKS = generate(32, seed=11, split="validation")


@pytest.fixture(scope="module")
def base(monkeypatch_module):
    torch.manual_seed(0)
    return load(MODEL)


@pytest.fixture(scope="module")
def solved(base):
    """Return four answers to each task."""
    return [last_answer(text) for text in respond(*base, [ask_solver(task) for task in TASKS * 4])]


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield patch


def test_it_is_small_enough_to_ship():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 10_000_000


def test_it_loads_by_the_usual_names(monkeypatch_module):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert model.config.max_position_embeddings >= 1024
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_chat_template_renders_turns_and_opens_the_next(base):
    _, tokenizer = base
    user, assistant = {"role": "user", "content": "Use 3, 4"}, {"role": "assistant", "content": "3+4=7"}
    asked = tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([user, assistant], tokenize=False)
    assert whole == f"{asked}3+4=7{tokenizer.eos_token}\n"
    system = tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}, user], tokenize=False)
    assert system.index("Be brief.") < system.index("Use 3, 4")


@pytest.mark.parametrize("text", ["<answer>(12+5)*3</answer>", "1728 / 144 = 12\n", "naïve – 数"])
def test_any_text_survives_the_tokenizer(base, text):
    _, tokenizer = base
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_numbers_and_tags_are_single_tokens(base):
    _, tokenizer = base
    for text in ("7", "42", "144", "<answer>", "</answer>", "<verdict>", "</verdict>", tokenizer.eos_token):
        assert len(tokenizer(text)["input_ids"]) == 1


def test_sampled_answers_are_well_formed(base, solved):
    assert sum(answer is not None for answer in solved) >= 0.9 * len(solved)
    answers = solved[: len(TASKS)]
    actions = ["No solution found" if answer is None else f"<answer>{answer}</answer>" for answer in answers]
    pairs = [
        (action, f"<answer>{task['solution']}</answer>") for action, task in zip(actions, TASKS, strict=True)
    ]
    judged = [last_answer(text) for text in respond(*base, list(map(ask_judge, TASKS, pairs)))]
    assert sum(answer in ("1", "2") for answer in judged) >= 0.9 * len(TASKS)
    checked = respond(*base, list(map(ask_validator, TASKS, actions)))
    verdicts = ("<verdict>correct</verdict>", "<verdict>incorrect</verdict>")
    assert sum(text.endswith(verdicts) for text in checked) >= 0.9 * len(TASKS)


def test_some_tasks_are_solved_and_some_are_not(solved):
    right = [
        answer is not None and is_solution(answer, task["nums"], task["target"])
        for answer, task in zip(solved, TASKS * 4, strict=True)
    ]
    assert 0.25 < sum(right) / len(right) < 0.7


def test_a_judge_of_eight_candidates_fits_and_answers(base):
    prompts = [ask_judge(task, [f"<answer>{task['solution']}</answer>"] * 8) for task in TASKS]
    chosen = [last_answer(text) for text in respond(*base, prompts)]
    assert sum(answer in set("12345678") for answer in chosen) >= 0.9 * len(TASKS)


def test_the_turns_it_is_taught_repeat_with_their_seed_and_show_no_validation_task():
    stream = turns(5)
    first = [next(stream) for _ in range(400)]
    again = turns(5)
    assert first == [next(again) for _ in range(400)]
    assert {turn.role for turn in first} == {"solver", "judge", "validator"}
    assert all(isinstance(turn, Turn) and turn.response for turn in first)


@pytest.mark.parametrize(
    ("expression", "worked"),
    [
        ("3*4+5", "3*4=12, 12+5=17"),
        ("12-(3-5)*2", "3-5=-2, -2*2=-4, 12--4=16"),
        ("5/3+1", "5/3"),
        ("4/(2-2)", "2-2=0, 4/0"),
        ("7-2=5", ""),
        ("7", ""),
    ],
)
def test_steps_are_worked_out_until_they_break(expression, worked):
    assert steps(expression) == worked
