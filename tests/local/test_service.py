"""The service through the Tinker SDK's own client: refusals, retries and cancelled requests."""

from __future__ import annotations

import asyncio

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from rolegraph.local.launcher import LocalService  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, prompt, sampler, trainer  # noqa: E402

pytestmark = pytest.mark.service


def test_the_service_says_what_it_serves(client: tinker.ServiceClient, service: LocalService) -> None:
    (model,) = client.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == (service.model_name, 256)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.forward_backward([datum("cross_entropy", PROMPT)], "custom"), "custom"),
        (lambda t: t.forward_backward([datum("cross_entropy", PROMPT)], "ppo"), "has no 'logprobs'"),
        (
            lambda t: t.forward_backward([datum("cross_entropy", [1, 9999])], "cross_entropy"),
            "outside the vocabulary",
        ),
        (lambda t: t.forward_backward([datum("ppo", PROMPT)], "ppo", {"clip": 0.1}), "no setting 'clip'"),
        (lambda t: t.load_state("tinker://nobody/weights/nothing"), "there is no checkpoint"),
        (lambda t: t.load_state("tinker://../weights/x"), "is not a checkpoint's path"),
        (lambda t: t.save_state("../../escape"), "is not a checkpoint's path"),
        (lambda t: t.save_state("short", ttl_seconds=0), "ttl_seconds is 0; expected 1 to"),
    ],
)
def test_what_cannot_be_done_is_said(
    client: tinker.ServiceClient, service: LocalService, ask, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        ask(trainer(client, service)).result()


def test_a_model_that_is_not_served_is_refused_by_name(client: tinker.ServiceClient) -> None:
    with pytest.raises(tinker.APIStatusError, match="no model 'gpt-9'"):
        client.create_sampling_client(base_model="gpt-9").result()


def test_a_prompt_that_does_not_fit_is_refused(client: tinker.ServiceClient, service: LocalService) -> None:
    with pytest.raises(Exception, match="the prompt has 300 tokens"):
        sampler(client, service).sample(prompt([5] * 300), 1, types.SamplingParams(max_tokens=4)).result()


def test_a_wrong_key_is_refused(service: LocalService) -> None:
    with pytest.raises(tinker.AuthenticationError):
        stranger = tinker.ServiceClient(base_url=service.base_url, api_key="tml-wrong")
        stranger.create_sampling_client(base_model=service.model_name).result()


def test_a_retried_request_is_carried_out_once(client: tinker.ServiceClient, service: LocalService) -> None:
    import httpx

    training = trainer(client, service)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    body = {"model_id": training.model_id, "seq_id": 900, "adam_params": {"learning_rate": 0.01}}
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}) as http:
        ids = [http.post("/api/v1/optim_step", json=body).json()["request_id"] for _ in range(3)]
        assert len(set(ids)) == 1
        assert http.get("/api/v1/no_such_call").status_code == 404


@pytest.mark.parametrize(
    "step", [{}, {"adam_params": None}, {"optimizer_params": {"type": "dimuon", "learning_rate": 0.01}}]
)
def test_a_step_without_adam_s_settings_is_one_of_another_optimizer_and_is_refused(
    client: tinker.ServiceClient, service: LocalService, step: dict[str, object]
) -> None:
    import httpx

    body = {"model_id": trainer(client, service).model_id, "seq_id": 1, **step}
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}) as http:
        answer = http.post("/api/v1/optim_step", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("adam_params: ")


def test_an_abandoned_request_ends_with_a_word(service: LocalService, client: tinker.ServiceClient) -> None:
    import httpx

    session = sampler(client, service)._sampling_session_id
    body = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": 240, "stop": []},
        "sampling_session_id": session,
        "seq_id": 12345,
        "num_samples": 200,
    }
    with httpx.Client(
        base_url=service.base_url, headers={"X-API-Key": service.api_key}, timeout=None
    ) as http:
        request_id = http.post("/api/v1/asample", json=body).json()["request_id"]
        http.post("/api/v1/cancel_future", json={"request_id": request_id})
        answer = http.post("/api/v1/retrieve_future", json={"request_id": request_id})
    assert (answer.status_code, answer.json()["error"]) == (200, "the request was cancelled")


def test_a_loss_of_the_client_s_own_trains(client: tinker.ServiceClient, service: LocalService) -> None:
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
    client: tinker.ServiceClient, service: LocalService
) -> None:
    training = trainer(client, service, rank=512)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    training.optim_step(ADAM).result()
    path = training.save_weights_for_sampler("wide").result().path
    assert client.create_sampling_client(model_path=path).result().compute_logprobs(prompt()).result()


def test_an_adapter_trains_only_the_layers_asked_for(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    nothing = {"train_mlp": False, "train_attn": False, "train_unembed": False}
    norms: set[float] = set()
    for part in nothing:
        asked = {**nothing, part: True}
        training = client.create_lora_training_client(base_model=service.model_name, rank=4, **asked).result()
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        norms.add(training.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"])
    assert len(norms) == 3 and min(norms) > 0, "each part has a gradient of its own"


def test_a_name_written_again_is_what_new_samples_are_drawn_from(
    client: tinker.ServiceClient, service: LocalService
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
    client: tinker.ServiceClient, service: LocalService
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
    client: tinker.ServiceClient, service: LocalService
) -> None:
    tokenizer = trainer(client, service).get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("1 + 2")) == "1 + 2"


def test_calls_can_be_awaited(client: tinker.ServiceClient, service: LocalService) -> None:
    async def both() -> int:
        training = await client.create_lora_training_client(base_model=service.model_name, rank=4)
        step = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        await training.optim_step(ADAM)
        await step
        one = await training.save_weights_and_get_sampling_client()
        response = await one.sample(prompt(), 2, types.SamplingParams(max_tokens=3, stop=[]))
        return sum(len(sequence.tokens) for sequence in response.sequences)

    assert asyncio.run(both()) == 6
