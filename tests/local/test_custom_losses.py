"""dpo and ipo against closed forms on a model of two tokens, through the SDK's custom forward-backward."""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from rolegraph.engine.records import Step  # noqa: E402
from rolegraph.engine.training.policies.batches import (  # noqa: E402
    ComparedMember,
    RoleBatch,
    StepAdvantages,
    build_datum,
)
from rolegraph.engine.training.policies.custom_losses import CustomPass  # noqa: E402
from rolegraph.engine.vocabulary import ItemCall, losses  # noqa: E402
from rolegraph.local.launcher import LocalService, running  # noqa: E402
from tests.local.client import trainer  # noqa: E402

pytestmark = pytest.mark.service
BETA = 0.3
PLAIN = types.AdamParams(learning_rate=1e-3, beta1=0.0, beta2=0.0, eps=1.0)
"""Step that is nearly in proportion to the gradient."""


@pytest.fixture(scope="module")
def two_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a random Llama whose vocabulary has two tokens."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("two")
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="b", pad_token="b")
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 1}
    config = LlamaConfig(
        vocab_size=2,
        max_position_embeddings=32,
        initializer_range=0.5,
        tie_word_embeddings=False,
        **sizes,
        **ids,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def service(two_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    with running(two_tokens, state_dir=tmp_path_factory.mktemp("state"), threads=1) as started:
        yield started


class Answer(NamedTuple):
    """Answer of a group of two or three, with its reward."""

    tokens: tuple[int, ...]
    reward: float
    group: int
    start: float
    """Log-probability of each token under the reference."""


ANSWERS = (
    Answer((0, 1), 1.0, 0, -0.9),
    Answer((1, 1, 0), 0.0, 0, -0.4),
    Answer((1,), 0.5, 0, -2.0),  # neither the best nor the worst
    Answer((1, 0), 2.0, 1, -0.2),
    Answer((0,), -1.0, 1, -1.3),
    Answer((0, 0), 1.0, 2, -0.5),  # equal rewards: no pair
    Answer((1, 1), 1.0, 2, -0.6),
)
PROMPT = (0, 1, 0)
PAIRS = ((0, 1), (3, 4))


def batch(loss: str, reference: str) -> RoleBatch:
    """Return a batch of ANSWERS; the last of them is shown as a turn after another's, as a tool's call is."""
    item = losses.build(ItemCall.parse({loss: {"beta": BETA, "reference": reference}}))
    made = RoleBatch("solver", item, share=1 / len(ANSWERS), trajectories=len(ANSWERS))
    for number, answer in enumerate(ANSWERS):
        step = Step([*PROMPT], [*answer.tokens], [answer.start] * len(answer.tokens))
        datum, spans = build_datum([StepAdvantages(step, [0.0] * len(answer.tokens), "", True)], loss, 1.0)
        made.data.append(datum)
        made.sampled.append(spans)
        made.comparisons.append(ComparedMember(answer.group, number, answer.reward))
    if reference == "base":
        made.starts = [[0.0] * 2 + [answer.start] * len(answer.tokens) for answer in ANSWERS]
    return made


def gap(logprobs: Sequence[Sequence[float]], best: int, worst: int) -> float:
    """Return h, by the numbers alone: log p less the reference's, of the best less of the worst."""
    one, other = (sum(logprobs[n][2:]) - ANSWERS[n].start * len(ANSWERS[n].tokens) for n in (best, worst))
    return one - other


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FORMS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "dpo": (lambda h: -math.log(sigmoid(BETA * h)), lambda h: -BETA * sigmoid(-BETA * h)),
    "ipo": (lambda h: (h - 1 / (2 * BETA)) ** 2, lambda h: 2 * (h - 1 / (2 * BETA))),
}
"""Loss and its derivative as functions of h."""


def scores(client: tinker.TrainingClient, data: Sequence[types.Datum]) -> list[list[float]]:
    """Return the log-probabilities of the datums' targets, [T] each."""
    weighted = [with_weights(datum, [0.0] * len(datum.model_input.to_ints())) for datum in data]
    outputs = client.forward(weighted, "cross_entropy").result().loss_fn_outputs
    return [output["logprobs"].tolist() for output in outputs]


def with_weights(datum: types.Datum, weights: list[float]) -> types.Datum:
    tensor = types.TensorData(data=weights, dtype="float32", shape=[len(weights)])
    inputs = {"target_tokens": datum.loss_fn_inputs["target_tokens"], "weights": tensor}
    return types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


@pytest.mark.parametrize("reference", ["base", "sampled"])
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_the_loss_and_its_gradient_are_the_closed_form(
    client: tinker.ServiceClient, service: LocalService, loss: str, reference: str
) -> None:
    ours, theirs = trainer(client, service), trainer(client, service)
    made = batch(loss, reference)
    before = scores(ours, made.data)
    function = CustomPass(made)
    ours.forward_backward_custom(function.data, function).result()
    assert function.error is None and function.result is not None
    value, slope = FORMS[loss]
    gaps = [gap(before, *pair) for pair in PAIRS]
    assert function.result.value == pytest.approx(sum(map(value, gaps)) / 2, abs=1e-5)
    assert function.result.metrics["pairs"] == 2
    assert function.result.metrics["gap"] == pytest.approx(sum(gaps) / 2, abs=1e-5)
    expected = [[0.0] * len(values) for values in before]
    for (best, worst), h in zip(PAIRS, gaps, strict=True):
        for number, sign in ((best, 1.0), (worst, -1.0)):
            expected[number][2:] = [sign * slope(h) / 2] * len(ANSWERS[number].tokens)
    assert [g.tolist() for g in function.result.gradients] == [
        pytest.approx(row, abs=1e-5) for row in expected
    ]
    # The weights of the model feel the same gradient as that of the closed form, sent as it is.
    weighted = [with_weights(d, [-g for g in row]) for d, row in zip(made.data, expected, strict=True)]
    theirs.forward_backward(weighted, "cross_entropy").result()
    norms = [it.optim_step(PLAIN).result().metrics["unclipped_grad_l2:mean"] for it in (ours, theirs)]
    assert norms[0] > 1e-3 and norms[0] == pytest.approx(norms[1], abs=1e-5)
    after = [scores(it, made.data) for it in (ours, theirs)]
    assert after[0] == [pytest.approx(row, abs=1e-5) for row in after[1]]
    assert after[0] != [pytest.approx(row, abs=1e-5) for row in before]


def test_at_the_reference_dpo_pulls_with_half_of_beta(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    training, made = trainer(client, service), batch("dpo", "base")
    made.starts = scores(training, made.data)
    function = CustomPass(made)
    training.forward_backward_custom(function.data, function).result()
    assert function.result is not None
    assert function.result.value == pytest.approx(math.log(2), abs=1e-5)
    assert function.result.gradients[0][2:].tolist() == pytest.approx([-BETA / 4] * 2, abs=1e-5)
