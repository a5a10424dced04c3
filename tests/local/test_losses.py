"""Each loss against its formula in plain numpy, and refused inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from rolegraph.engine.vocabulary import ItemCall, losses  # noqa: E402
from rolegraph.local.launcher import LocalService  # noqa: E402
from rolegraph.local.service.losses import LOSSES, TokenScores  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, logprobs_of, plain_logprobs, prompt, trainer  # noqa: E402

Array = np.ndarray[Any, np.dtype[np.float64]]
SETTINGS = {
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3},
    "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5},
    "dro": {"beta": 0.3},
    "gspo": {"clip_low_threshold": 0.95, "clip_high_threshold": 1.1},
}


def formula(
    loss: str, logp: Array, q: Array, advantages: Array, mask: Array, **config: float
) -> tuple[float, Array]:
    """Return a loss of one sequence and its gradient by log p: the papers' objectives, negated."""
    ratio = np.exp(logp - q)
    low, high = config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", np.inf)
    match loss:
        case "importance_sampling":
            return -(ratio * advantages).sum(), -ratio * advantages
        case "cispo":
            weights = np.clip(ratio, low, high) * advantages
            return -(weights * logp).sum(), -weights
        case "dro":
            beta = config["beta"]
            objective = logp * advantages - beta / 2 * np.log(ratio) ** 2
            return -objective.sum(), -(advantages - beta * np.log(ratio))
        case _:
            if loss == "gspo":
                whole = np.prod(ratio[mask != 0]) ** (1 / (mask != 0).sum())
                ratio = np.full_like(ratio, whole)
            taken = np.minimum(ratio * advantages, np.clip(ratio, low, high) * advantages)
            moving = (ratio * advantages <= np.clip(ratio, low, high) * advantages) * ratio * advantages
            return -taken.sum(), -moving


def written(dtype: str, values: list[Any]) -> types.TensorData:
    array = np.array(values, np.int64 if dtype == "int64" else np.float32)
    return types.TensorData.from_numpy(array)


@given(st.data())
def test_a_loss_and_its_gradient_are_the_formula_s(data: st.DataObject) -> None:
    loss = data.draw(st.sampled_from(sorted(SETTINGS)))
    numbers = st.floats(-2, 2, width=16).filter(lambda x: abs(x) > 1e-2)
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    columns = [
        [data.draw(st.lists(numbers, min_size=n, max_size=n)) for n in lengths] for _ in ("logp", "q", "A")
    ]
    masks = [
        [1.0, *data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))][:n] for n in lengths
    ]
    logp, q, advantages, mask = (
        torch.tensor([x for row in column for x in row], dtype=torch.float64) for column in (*columns, masks)
    )
    logp.requires_grad_()
    inputs = {"logprobs": q, "advantages": advantages, "sequence_ratio_mask": mask}
    value = LOSSES[loss].compute(TokenScores(logp, inputs, lengths), SETTINGS[loss])
    value.backward()
    found = [
        formula(loss, *(np.array(column[i]) for column in columns), np.array(masks[i]), **SETTINGS[loss])
        for i in range(len(lengths))
    ]
    assert value.item() == pytest.approx(sum(one for one, _ in found), rel=1e-5, abs=1e-6)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(np.concatenate([two for _, two in found]).tolist(), rel=1e-5)


@pytest.mark.service
def test_the_service_computes_each_of_them_over_a_batch(
    client: tinker.ServiceClient, service: LocalService, model_dir: Any
) -> None:
    sequences = [PROMPT, [7, 8, 9, 10, 11, 12, 13], [5, 80, 91]]
    chance = np.random.default_rng(0)
    expected = dict.fromkeys(SETTINGS, 0.0)
    data: dict[str, list[types.Datum]] = {loss: [] for loss in SETTINGS}
    for tokens in sequences:
        logp = np.array(plain_logprobs(model_dir, tokens))
        q, advantages = logp + chance.normal(0, 0.3, len(logp)), chance.normal(0, 1, len(logp))
        mask = np.array([0.0] + [1.0] * (len(logp) - 1))
        for loss, settings in SETTINGS.items():
            one = datum(loss, tokens)
            one.loss_fn_inputs["logprobs"] = written("float32", q.tolist())
            one.loss_fn_inputs["advantages"] = written("float32", advantages.tolist())
            if loss == "gspo":
                one.loss_fn_inputs["sequence_ratio_mask"] = written("float32", mask.tolist())
            data[loss].append(one)
            expected[loss] += formula(loss, logp, q, advantages, mask, **settings)[0]
    training = trainer(client, service)
    for loss, settings in SETTINGS.items():
        out = training.forward_backward(data[loss], loss, settings).result()
        assert out.metrics["loss:sum"] == pytest.approx(expected[loss], rel=1e-3, abs=1e-3), loss
        assert training.forward(data[loss], loss, settings).result().metrics == out.metrics


@pytest.mark.service
def test_a_token_may_have_thresholds_of_its_own(client: tinker.ServiceClient, service: LocalService) -> None:
    training = trainer(client, service)
    one, other = datum("ppo", PROMPT), datum("ppo", [7, 8, 9])
    uniform = [
        training.forward([d], "ppo", {"clip_high_threshold": high}).result().metrics["loss:sum"]
        for d, high in ((one, 1.5), (other, 1.1))
    ]
    other.loss_fn_inputs["clip_high_threshold"] = written("float32", [1.1, 1.1])
    out = training.forward([one, other], "ppo", {"clip_high_threshold": 1.5}).result()
    assert out.metrics["loss:sum"] == pytest.approx(sum(uniform), rel=1e-5)


@pytest.mark.service
@pytest.mark.parametrize("sparse", [False, True])
def test_many_targets_at_a_token_are_a_distribution_to_match(
    client: tinker.ServiceClient, service: LocalService, model_dir: Any, sparse: bool
) -> None:
    from transformers import AutoModelForCausalLM

    targets = np.array([[80, 3, 7, 0], [90, 0, 0, 0], [0, 0, 0, 0], [110, 0, 0, 0]])
    weights = np.array([[0.5, 0.3, 0.2, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0.7, 0, 0, 0]], np.float32)
    convert = types.TensorData.from_torch_sparse if sparse else types.TensorData.from_torch
    inputs = {
        name: convert(torch.tensor(x)) for name, x in (("target_tokens", targets), ("weights", weights))
    }
    assert (inputs["weights"].sparse_crow_indices is not None) == sparse
    many = types.Datum(model_input=prompt(PROMPT[:-1]), loss_fn_inputs=inputs)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    with torch.inference_mode():
        table = model(torch.tensor([PROMPT[:-1]])).logits[0].log_softmax(-1).numpy()
    logp = np.take_along_axis(table, targets, 1)
    plain = datum("cross_entropy", [7, 8, 9])
    alone = -sum(logprobs_of(model, [7, 8, 9]))
    training = trainer(client, service)
    out = training.forward_backward([plain, many, plain], "cross_entropy").result()
    assert out.metrics["loss:sum"] == pytest.approx(-(weights * logp).sum() + 2 * alone, rel=1e-4)
    found = [output["logprobs"].to_numpy() for output in out.loss_fn_outputs]
    assert [one.shape for one in found] == [(2,), (4, 4), (2,)]
    assert found[1] == pytest.approx(logp, abs=1e-4)


@pytest.mark.service
def test_a_loss_of_the_client_s_own_sees_every_target_and_trains(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    targets = written("int64", [[80, 3], [90, 4], [100, 5], [110, 6]])
    one = types.Datum(model_input=prompt(PROMPT[:-1]), loss_fn_inputs={"target_tokens": targets})

    def margin(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        lead = logprobs[0][:, 0] - logprobs[0][:, 1]
        return -torch.nn.functional.logsigmoid(lead).sum(), {"lead": lead.mean().item()}

    training = trainer(client, service)
    leads: list[float] = []
    for _ in range(8):
        leads.append(training.forward_backward_custom([one], margin).result().metrics["lead"])
        training.optim_step(ADAM).result()
    assert leads[-1] > leads[0] + 1


@pytest.mark.service
@pytest.mark.parametrize(
    ("loss", "extra", "settings", "said"),
    [
        ("stable_reinforce", {}, {}, "'stable_reinforce' is not served here; there is cross_entropy,.* gspo"),
        ("custom", {}, {}, "'custom' is not served here"),
        ("gspo", {}, {}, "datum 0 has no 'sequence_ratio_mask', which gspo reads"),
        ("gspo", {"sequence_ratio_mask": [0.0] * 4}, {}, "sequence_ratio_mask marks no token"),
        ("dro", {}, {"clip_high_threshold": 2}, "dro has no setting 'clip_high_threshold'; it takes beta"),
        ("dro", {"weights": [1.0] * 4}, {}, "datum 0 has 'weights', which dro does not read"),
        ("ppo", {"clip_low_threshold": [0.8] * 3}, {}, r"clip_low_threshold has shape \[3\], expected \[4\]"),
        ("ppo", {"target_tokens": [[1, 2]] * 4}, {}, r"target_tokens has shape \[4, 2\], expected \[4\]"),
    ],
)
def test_what_does_not_fit_a_loss_is_refused_by_name(
    client: tinker.ServiceClient,
    service: LocalService,
    loss: Any,
    extra: dict[str, list[Any]],
    settings: dict[str, float],
    said: str,
) -> None:
    one = datum(loss, PROMPT)
    for name, values in extra.items():
        one.loss_fn_inputs[name] = written("int64" if name == "target_tokens" else "float32", values)
    with pytest.raises(tinker.TinkerError, match=said):
        trainer(client, service).forward_backward([one], loss, settings).result()


def test_a_spec_may_set_of_a_loss_what_the_service_takes() -> None:
    taken = {name: set(loss.settings) for name, loss in LOSSES.items() if name != "dro"}
    items = [losses.build(ItemCall(name)) for name in losses.names()]
    assert taken == {item.name: set(item.settings) for item in items if item.compute is None}
