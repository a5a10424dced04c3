"""The Tinker SDK's own client, unmodified, against the local service."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from engine.local import Running  # noqa: E402

pytestmark = pytest.mark.service

PROMPT = [5, 80, 90, 100, 110]
ADAM = types.AdamParams(learning_rate=1e-2)


def prompt(tokens: list[int] = PROMPT) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def sampler(client: tinker.ServiceClient, service: Running) -> tinker.SamplingClient:
    return client.create_sampling_client(base_model=service.model_name).result()


def trainer(
    client: tinker.ServiceClient, service: Running, rank: int = 8, seed: int = 1
) -> tinker.TrainingClient:
    return client.create_lora_training_client(base_model=service.model_name, rank=rank, seed=seed).result()


def plain_logprobs(model_dir: Path, tokens: list[int], temperature: float = 1.0) -> list[float]:
    """log p(tokens[t] | tokens[:t]) for t > 0, by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        logprobs = (model(torch.tensor([tokens])).logits[0] / temperature).log_softmax(-1)
    return [logprobs[t - 1, token].item() for t, token in enumerate(tokens) if t]


def test_the_service_says_what_it_serves(client: tinker.ServiceClient, service: Running) -> None:
    (model,) = client.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == (service.model_name, 256)


def test_sampled_logprobs_are_those_of_a_plain_forward_pass_at_the_temperature(
    client: tinker.ServiceClient, service: Running, model_dir: Path
) -> None:
    params = types.SamplingParams(max_tokens=12, temperature=0.7, seed=3, stop=[])
    (sequence,) = sampler(client, service).sample(prompt(), 1, params).result().sequences
    assert len(sequence.tokens) == 12
    assert sequence.stop_reason == "length"
    expected = plain_logprobs(model_dir, [*PROMPT, *sequence.tokens], 0.7)[len(PROMPT) - 1 :]
    assert sequence.logprobs == pytest.approx(expected, abs=1e-4)


def test_compute_logprobs_is_a_plain_forward_pass(
    client: tinker.ServiceClient, service: Running, model_dir: Path
) -> None:
    found = sampler(client, service).compute_logprobs(prompt()).result()
    assert found[0] is None
    assert found[1:] == pytest.approx(plain_logprobs(model_dir, PROMPT), abs=1e-4)


def test_the_same_seed_says_the_same_alone_and_in_a_batch_with_others(
    client: tinker.ServiceClient, service: Running
) -> None:
    one = sampler(client, service)
    params = types.SamplingParams(max_tokens=20, seed=11, stop=[])
    alone = one.sample(prompt(), 1, params).result().sequences[0].tokens

    async def crowd() -> list[list[int]]:
        others = [
            one.sample_async(prompt(PROMPT * (1 + n % 7)), 1, types.SamplingParams(max_tokens=5 + n, seed=n))
            for n in range(40)
        ]
        found = await asyncio.gather(one.sample_async(prompt(), 1, params), *others)
        return [response.sequences[0].tokens for response in found]

    assert asyncio.run(crowd())[0] == alone


def test_samples_of_one_request_differ_and_repeat_with_the_seed(
    client: tinker.ServiceClient, service: Running
) -> None:
    params = types.SamplingParams(max_tokens=8, seed=5, stop=[])
    one = sampler(client, service)
    first, second = (one.sample(prompt(), 4, params).result().sequences for _ in range(2))
    assert len({tuple(s.tokens) for s in first}) == 4
    assert [s.tokens for s in first] == [s.tokens for s in second]


def test_temperature_zero_takes_the_likeliest_token(
    client: tinker.ServiceClient, service: Running, model_dir: Path
) -> None:
    from transformers import AutoModelForCausalLM

    params = types.SamplingParams(max_tokens=6, temperature=0, stop=[])
    found = sampler(client, service).sample(prompt(), 1, params).result().sequences[0].tokens
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(6):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert found == tokens[len(PROMPT) :]


def test_top_k_and_top_p_draw_from_the_likeliest_only(client: tinker.ServiceClient, service: Running) -> None:
    one = sampler(client, service)
    greedy = one.sample(prompt(), 1, types.SamplingParams(max_tokens=6, temperature=0, stop=[])).result()
    for narrow in (
        types.SamplingParams(max_tokens=6, top_k=1, stop=[]),
        types.SamplingParams(max_tokens=6, top_p=1e-6, stop=[]),
    ):
        assert one.sample(prompt(), 1, narrow).result().sequences[0].tokens == greedy.sequences[0].tokens


def test_a_stop_token_and_a_stop_text_end_an_answer_and_are_kept_in_it(
    client: tinker.ServiceClient, service: Running, model_dir: Path
) -> None:
    from transformers import AutoTokenizer

    one = sampler(client, service)
    free = (
        one.sample(prompt(), 1, types.SamplingParams(max_tokens=10, seed=2, stop=[]))
        .result()
        .sequences[0]
        .tokens
    )
    at_token = types.SamplingParams(max_tokens=10, seed=2, stop=[free[4]])
    found = one.sample(prompt(), 1, at_token).result().sequences[0]
    assert found.tokens == free[: free.index(free[4]) + 1]
    assert found.stop_reason == "stop"

    readable = [t for t in free if t >= 4]
    text = AutoTokenizer.from_pretrained(model_dir).decode([readable[0]])
    stopped = (
        one.sample(prompt(), 1, types.SamplingParams(max_tokens=10, seed=2, stop=[text]))
        .result()
        .sequences[0]
    )
    if "\ufffd" not in text:
        assert stopped.stop_reason == "stop"
        assert len(stopped.tokens) <= len(free)


def datum(loss: str, tokens: list[int], weight: float = 1.0) -> types.Datum:
    inputs, targets = tokens[:-1], tokens[1:]
    length = len(inputs)
    extra = (
        {"weights": [weight] * length}
        if loss == "cross_entropy"
        else {"logprobs": [-2.0] * length, "advantages": [weight] * length}
    )
    tensors = {
        key: types.TensorData(data=value, dtype="float32", shape=[length]) for key, value in extra.items()
    }
    tensors["target_tokens"] = types.TensorData(data=targets, dtype="int64", shape=[length])
    return types.Datum(model_input=prompt(inputs), loss_fn_inputs=tensors)


def test_the_three_losses_are_the_formulas_of_the_api(
    client: tinker.ServiceClient, service: Running, model_dir: Path
) -> None:
    training = trainer(client, service)
    logprobs = plain_logprobs(model_dir, PROMPT)
    ratios = [math.exp(logprob + 2.0) for logprob in logprobs]
    clipped = [min(r, 1.2) for r in ratios]
    expected = {
        "cross_entropy": -sum(logprobs),
        "importance_sampling": -sum(ratios),
        "ppo": -sum(min(r, c) for r, c in zip(ratios, clipped, strict=True)),
    }
    for loss, value in expected.items():
        out = training.forward_backward([datum(loss, PROMPT)], loss).result()
        assert out.metrics["loss:sum"] == pytest.approx(value, rel=1e-4)
        assert out.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_a_positive_advantage_makes_its_tokens_likelier_and_a_negative_one_less_likely(
    client: tinker.ServiceClient, service: Running, loss: str
) -> None:
    for advantage in (1.0, -1.0):
        training = trainer(client, service)
        before = (
            training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics["loss:sum"]
        )
        on_policy = datum(loss, PROMPT, advantage)
        logprobs = training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        on_policy.loss_fn_inputs["logprobs"] = logprobs.loss_fn_outputs[0]["logprobs"]
        training.forward_backward([on_policy], loss).result()
        training.optim_step(ADAM).result()
        after = (
            training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics["loss:sum"]
        )
        assert (after < before) == (advantage > 0)


def test_a_cross_entropy_fit_on_one_example_drives_its_loss_towards_zero(
    client: tinker.ServiceClient, service: Running
) -> None:
    training = trainer(client, service, rank=16)
    losses: list[float] = []
    for _ in range(60):
        step = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(step.result().metrics["loss:sum"])
    assert losses[-1] < 0.05 < 1.0 < losses[0]


def test_gradients_gather_until_the_step_and_a_batch_is_the_sum_of_its_parts(
    client: tinker.ServiceClient, service: Running
) -> None:
    first, second = datum("cross_entropy", PROMPT), datum("cross_entropy", [7, 8, 9, 10, 11, 12, 13])
    norms: list[float] = []
    for batches in ([[first, second]], [[first], [second]]):
        training = trainer(client, service)
        for batch in batches:
            training.forward_backward(batch, "cross_entropy").result()
        norms.append(training.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_two_training_clients_side_by_side_do_not_disturb_each_other(
    client: tinker.ServiceClient, service: Running
) -> None:
    def fit(training: tinker.TrainingClient, tokens: list[int]) -> float:
        step = training.forward_backward([datum("cross_entropy", tokens)], "cross_entropy")
        training.optim_step(ADAM).result()
        return step.result().metrics["loss:sum"]

    alone = trainer(client, service)
    expected = [fit(alone, PROMPT) for _ in range(4)]
    one, other = trainer(client, service), trainer(client, service, rank=4, seed=9)
    found: list[float] = []
    for _ in range(4):
        found.append(fit(one, PROMPT))
        fit(other, [20, 21, 22, 23])
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_saved_state_brings_back_weights_and_optimizer(
    client: tinker.ServiceClient, service: Running
) -> None:
    def step(training: tinker.TrainingClient) -> float:
        out = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(ADAM).result()
        return out.result().metrics["loss:sum"]

    training = trainer(client, service)
    for _ in range(3):
        step(training)
    path = training.save_state("third").result().path
    straight_on = [step(training) for _ in range(3)]

    again = trainer(client, service, seed=77)
    again.load_state_with_optimizer(path).result()
    assert [step(again) for _ in range(3)] == pytest.approx(straight_on, rel=1e-4)

    created = client.create_training_client_from_state_with_optimizer(path).result()
    assert step(created) == pytest.approx(straight_on[0], rel=1e-4)


def test_fresh_sampling_weights_are_those_of_the_training_run_at_that_moment(
    client: tinker.ServiceClient, service: Running
) -> None:
    training = trainer(client, service, rank=16)
    for _ in range(30):
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-2)).result()
    fitted = training.save_weights_and_get_sampling_client().result()
    named = training.save_weights_for_sampler("fitted").result().path
    forward = training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    expected = forward.loss_fn_outputs[0]["logprobs"].tolist()

    for _ in range(10):
        training.forward_backward([datum("cross_entropy", PROMPT, -1.0)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-2)).result()
    assert fitted.compute_logprobs(prompt()).result()[1:] == pytest.approx(expected, abs=1e-4)
    from_disk = client.create_sampling_client(model_path=named).result()
    assert from_disk.compute_logprobs(prompt()).result()[1:] == pytest.approx(expected, abs=1e-4)
    base = sampler(client, service).compute_logprobs(prompt()).result()[1:]
    assert base != pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.forward_backward([datum("cross_entropy", PROMPT)], "cispo"), "cispo"),
        (lambda t: t.forward_backward([datum("cross_entropy", PROMPT)], "ppo"), "has no 'logprobs'"),
        (lambda t: t.forward_backward([datum("cross_entropy", [1, 9999])], "cross_entropy"), "does not know"),
        (lambda t: t.forward_backward([datum("ppo", PROMPT)], "ppo", {"clip": 0.1}), "no setting 'clip'"),
        (lambda t: t.load_state("tinker://nobody/weights/nothing"), "there is no checkpoint"),
        (lambda t: t.load_state("tinker://../weights/x"), "is not a checkpoint's path"),
        (lambda t: t.save_state("../../escape"), "is not a checkpoint's path"),
        (lambda t: t.save_weights_external("x"), "not served by this local service"),
    ],
)
def test_what_cannot_be_done_is_said(
    client: tinker.ServiceClient, service: Running, ask, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        ask(trainer(client, service)).result()


def test_a_model_that_is_not_served_is_refused_by_name(client: tinker.ServiceClient) -> None:
    with pytest.raises(tinker.APIStatusError, match="no model 'gpt-9'"):
        client.create_sampling_client(base_model="gpt-9").result()


def test_a_prompt_that_does_not_fit_is_refused(client: tinker.ServiceClient, service: Running) -> None:
    with pytest.raises(Exception, match="the prompt has 300 tokens"):
        sampler(client, service).sample(prompt([5] * 300), 1, types.SamplingParams(max_tokens=4)).result()


def test_a_wrong_key_is_refused(service: Running) -> None:
    with pytest.raises(tinker.AuthenticationError):
        stranger = tinker.ServiceClient(base_url=service.base_url, api_key="tml-wrong")
        stranger.create_sampling_client(base_model=service.model_name).result()


def test_a_retried_request_is_carried_out_once(client: tinker.ServiceClient, service: Running) -> None:
    import httpx

    training = trainer(client, service)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    body = {"model_id": training.model_id, "seq_id": 900, "adam_params": {"learning_rate": 0.01}}
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}) as http:
        ids = [http.post("/api/v1/optim_step", json=body).json()["request_id"] for _ in range(3)]
        assert len(set(ids)) == 1
        assert http.get("/api/v1/no_such_call").status_code == 404


def test_an_abandoned_request_ends_with_a_word(service: Running, client: tinker.ServiceClient) -> None:
    import httpx

    session = sampler(client, service)._sampling_session_id
    body = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": 240, "stop": []},
        "sampling_session_id": session,
        "seq_id": 12345,
        "num_samples": 200,
    }
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}, timeout=30) as http:
        request_id = http.post("/api/v1/asample", json=body).json()["request_id"]
        http.post("/api/v1/cancel_future", json={"request_id": request_id})
        answer = http.post("/api/v1/retrieve_future", json={"request_id": request_id})
    assert (answer.status_code, answer.json()["error"]) == (200, "the request was cancelled")


def test_a_loss_of_the_client_s_own_trains(client: tinker.ServiceClient, service: Running) -> None:
    training = trainer(client, service)

    def halved(
        data: list[types.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return -0.5 * sum((row.sum() for row in logprobs), torch.tensor(0.0)), {}

    losses: list[float] = []
    for _ in range(5):
        out = training.forward_backward_custom([datum("cross_entropy", PROMPT)], halved).result()
        training.optim_step(ADAM).result()
        losses.append(out.metrics["loss:sum"])
    assert losses == sorted(losses, reverse=True)


def test_more_rank_than_the_layers_have_is_cut_to_theirs(
    client: tinker.ServiceClient, service: Running
) -> None:
    training = trainer(client, service, rank=512)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    training.optim_step(ADAM).result()
    path = training.save_weights_for_sampler("wide").result().path
    assert client.create_sampling_client(model_path=path).result().compute_logprobs(prompt()).result()


def test_an_adapter_trains_only_the_layers_asked_for(client: tinker.ServiceClient, service: Running) -> None:
    nothing = {"train_mlp": False, "train_attn": False, "train_unembed": False}
    for part in nothing:
        asked = {**nothing, part: True}
        training = client.create_lora_training_client(base_model=service.model_name, rank=4, **asked).result()
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        assert training.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] > 0


def test_a_name_written_again_is_what_new_samples_are_drawn_from(
    client: tinker.ServiceClient, service: Running
) -> None:
    training = trainer(client, service)
    found: list[list[float | None]] = []
    for _ in range(2):
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        training.optim_step(ADAM).result()
        path = training.save_weights_for_sampler("latest").result().path
        one = client.create_sampling_client(model_path=path).result()
        found.append(one.compute_logprobs(prompt()).result())
    assert found[0] != found[1]


def test_a_finished_session_frees_what_it_held_and_disturbs_no_other(
    client: tinker.ServiceClient, service: Running
) -> None:
    other = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
    ended, kept = trainer(other, service), trainer(client, service)
    for training in (ended, kept):
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    other.close("success").result()
    assert kept.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] > 0
    import httpx

    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}) as http:
        gone = http.post("/api/v1/get_info", json={"model_id": ended.model_id})
        assert gone.status_code == 404
        assert http.post("/api/v1/get_info", json={"model_id": kept.model_id}).status_code == 200


def test_the_tokenizer_of_the_model_is_found_by_the_client(
    client: tinker.ServiceClient, service: Running
) -> None:
    tokenizer = trainer(client, service).get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("1 + 2")) == "1 + 2"


def test_calls_can_be_awaited(client: tinker.ServiceClient, service: Running) -> None:
    async def both() -> int:
        training = await client.create_lora_training_client(base_model=service.model_name, rank=4)
        step = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        await training.optim_step(ADAM)
        await step
        one = await training.save_weights_and_get_sampling_client()
        response = await one.sample(prompt(), 2, types.SamplingParams(max_tokens=3, stop=[]))
        return sum(len(sequence.tokens) for sequence in response.sequences)

    assert asyncio.run(both()) == 6
