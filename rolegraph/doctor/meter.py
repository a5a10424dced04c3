"""Measurements of a Tinker service, from which `rolegraph.doctor.probes` makes its checks.

A service returns no gradients, so they are measured by their effect. With beta1 = beta2 = 0 and an eps far
above every gradient, a step of Adam is eta · gradient, for a learning rate of eta · eps. To first order it
changes the log-probabilities of a text by eta · K · g: g are the gradients by the log-probabilities [T], K
depends on the weights alone. So from the same weights, gradients that are equal give equal changes, and twice
the gradient gives twice the change. An on-policy importance_sampling with the advantages A serves as the
reference: its gradient by a log-probability is -A. Each measurement ends with a step that reverses its
change, because services load no state into a client that has trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from rolegraph.engine.models.tinker import NO_RETRIES, TinkerSession
from rolegraph.engine.models.tinker_sdk import rest_client, tinker
from rolegraph.engine.vocabulary import Floats

RANK, LOWER_RANK = 8, 4
TIMEOUT_SECONDS = 120.0
TOLERANCE = 0.1
"""Largest error of a change, relative to the expected one."""
PROMPT = (17, 42, 99, 23, 64, 151, 33, 78, 120, 54, 12, 87)
"""Token ids that every vocabulary has."""
ANSWER_TOKENS = 28
_EPS = 1e4
_STEP = 0.03
"""Target for the largest change of a log-probability by a step, in nats: above rounding errors, and small
enough to be linear."""
_NATS = 0.02
"""Largest accepted mean difference between the log-probabilities of sampler and trainer, in nats."""
ALIKE = tinker.AdamParams(learning_rate=1e-4, beta1=0.0, beta2=0.0)
"""Adam settings under which the first step moves every weight by the learning rate, against its gradient's
sign."""


STATE_SECONDS = 3600
STATE_METADATA = {"by": "doctor"}


class Pass(NamedTuple):
    """Arguments of one `forward_backward` call: loss, datums and settings."""

    loss: str
    data: Sequence[tinker.Datum]
    settings: Mapping[str, float] | None = None


class ProbeFinding(NamedTuple):
    """Observed behaviour of a service, and whether it is the expected behaviour."""

    seen: str
    ok: bool = True


class Probe(NamedTuple):
    """One probe: a behaviour of hosted Tinker, and the function that measures it."""

    name: str
    expected: str
    """Behaviour of hosted Tinker."""
    find: Callable[[Any], ProbeFinding]
    """Function of a ServiceMeter, or of a ServiceProbe."""
    differing: Mapping[str, Any] = {}
    """Traits of a service that differs."""


def compared(change: Floats, expected: Floats) -> ProbeFinding:
    """Compare a measured change of log-probabilities [T] with the expected change; ok if the two nearly
    agree."""
    size = float(expected @ expected) or 1.0
    ratio = float(change @ expected) / size
    relative_error = float(np.linalg.norm(change - ratio * expected)) / size**0.5
    description = f"{ratio:.2f} × the expected change"
    if relative_error > TOLERANCE:
        description += f", and {relative_error:.2f} × in other directions"
    return ProbeFinding(description, abs(ratio - 1) <= TOLERANCE and relative_error <= TOLERANCE)


def agreement(logprobs: Floats, expected: Floats) -> ProbeFinding:
    """Compare two lists of log-probabilities of the same tokens; ok if their mean difference is small."""
    if len(logprobs) != len(expected):
        return ProbeFinding(f"{len(logprobs)} in place of {len(expected)} log-probabilities", False)
    mean_difference = float(np.abs(logprobs - expected).mean())
    return ProbeFinding(f"{mean_difference:.1e} nats apart in the mean", mean_difference <= _NATS)


def value_of(result: Any) -> Any:
    """Wait for a future of the SDK and return its result; other values are returned unchanged.

    Waits at most `TIMEOUT_SECONDS`.
    """
    return result.result(timeout=TIMEOUT_SECONDS) if hasattr(result, "result") else result


def is_refusal(error: BaseException | None) -> bool:
    """Return True for an error by which a service or an older SDK reports that it does not support a
    request."""
    if isinstance(error, TypeError):  # an argument that the SDK does not have
        return True
    if isinstance(error, tinker.RequestFailedError):
        return error.category is tinker.types.RequestErrorCategory.User
    if isinstance(error, tinker.APIStatusError):
        return 400 <= error.status_code < 500
    return isinstance(error, ValueError) and is_refusal(error.__cause__)  # by older SDKs


def make_datum(tokens: Sequence[int], **inputs: Floats) -> tinker.Datum:
    """Return a datum that predicts each of the tokens after the first, with loss inputs [T]."""
    tensors = {
        name: tinker.TensorData.from_numpy(values.astype(np.float32)) for name, values in inputs.items()
    }
    tensors["target_tokens"] = tinker.TensorData.from_numpy(np.array(tokens[1:], np.int64))
    return tinker.Datum(model_input=tinker.ModelInput.from_ints([*tokens[:-1]]), loss_fn_inputs=tensors)


class ServiceMeter:
    """Measurements of a training service with one model: log-probabilities, effects of losses, and updates.
    The methods block."""

    def __init__(self, session: TinkerSession, model: str) -> None:
        self.session, self.model = session, model
        self.eta = 1e-8
        """Size of a step, relative to the gradient."""

    # clients

    def created(self, rank: int) -> tinker.TrainingClient:
        """Create a training client with a new adapter of this rank, wait until it is ready, and return it."""
        return value_of(self.session.service.create_lora_training_client(self.model, rank, 1))

    @cached_property
    def trainer(self) -> tinker.TrainingClient:
        """Training client whose adapter the measurements change."""
        return self.created(RANK)

    @cached_property
    def other(self) -> tinker.TrainingClient:
        """Training client with a second adapter, of lower rank."""
        return self.created(LOWER_RANK)

    @cached_property
    def base(self) -> tinker.SamplingClient:
        """Sampling client of the model without an adapter."""
        service = self.session.service
        return value_of(service.create_sampling_client(base_model=self.model, retry_config=NO_RETRIES))

    @cached_property
    def rest(self) -> tinker.RestClient:
        """REST client for lists and checkpoints."""
        return rest_client(self.session.service, self.session.url, self.session.key)

    def sampler(self) -> tinker.SamplingClient:
        """Return a sampling client of the trainer's current weights."""
        return value_of(self.trainer.save_weights_and_get_sampling_client(retry_config=NO_RETRIES))

    def recover(self) -> None:
        """Drop the cached training client if it no longer answers, as happens at some services after a
        refused call."""
        try:
            if "trainer" in vars(self):
                self.scores()
        except Exception:  # the SDK raises ValueError, RuntimeError and its own family alike
            for name in ("trainer", "now"):
                vars(self).pop(name, None)

    def resumed(self, path: str) -> tinker.TrainingClient:
        """Return a new training client with a saved state loaded into it."""
        client: Any = self.created(RANK)
        with warnings.catch_warnings():
            # Its replacement makes the client, too, which some services cannot.
            warnings.simplefilter("ignore", FutureWarning)
            value_of(client.load_state_with_optimizer(path))
        return client

    # checkpoints

    def save_state(self, **options: Any) -> str:
        """Save the trainer's state under a fixed name, for an hour and with metadata, and return its path."""
        saved_state = self.trainer.save_state(
            "rolegraph-doctor-fields", ttl_seconds=STATE_SECONDS, user_metadata=STATE_METADATA, **options
        )
        return value_of(saved_state).path

    @cached_property
    def checkpoint(self) -> tuple[str, Any]:
        """(path of a saved state, its entry in the list of checkpoints)."""
        path = self.save_state()
        entries = value_of(self.rest.list_checkpoints(path.split("/")[2])).checkpoints
        return path, next(entry for entry in entries if entry.tinker_path == path)

    # log-probabilities

    def sampled(
        self, client: tinker.SamplingClient, *, count: int = 1, seed: int = 1, length: int = ANSWER_TOKENS
    ) -> list[tinker.SampledSequence]:
        """Return `count` answers to the fixed prompt, sampled at temperature 1 with up to `length` tokens."""
        return [*self.answered(client, count=count, seed=seed, max_tokens=length).sequences]

    def answered(
        self,
        client: tinker.SamplingClient,
        *,
        count: int = 1,
        wanted: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> tinker.SampleResponse:
        """Return a response with answers to the fixed prompt.

        Args:
            client: The sampling client.
            count: Number of answers.
            wanted: Arguments of `SamplingClient.sample` that ask for further log-probabilities.
            params: Fields of SamplingParams that differ from the default: temperature 1 and no stops.
        """
        settings: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 1.0, "stop": [], **params}
        prompt = tinker.ModelInput.from_ints([*PROMPT])
        return value_of(client.sample(prompt, count, tinker.SamplingParams(**settings), **(wanted or {})))

    @cached_property
    def answer(self) -> tinker.SampledSequence:
        """Answer of the base model to the fixed prompt."""
        return self.sampled(self.base)[0]

    @cached_property
    def text(self) -> list[int]:
        """Token ids [T + 1] that all measurements use: the fixed prompt and the base model's answer."""
        return [*PROMPT, *self.answer.tokens]

    @cached_property
    def ones(self) -> Floats:
        """Array [T] of ones: an advantage of 1 for each token of the text after the first."""
        return np.ones(len(self.text) - 1)

    def entries(self, client: tinker.SamplingClient) -> list[float | None]:
        """Return the sampler's `compute_logprobs` of the text: one log-probability per token, None for the
        first."""
        return [*value_of(client.compute_logprobs(tinker.ModelInput.from_ints(self.text)))]

    def sampler_scores(self, client: tinker.SamplingClient) -> Floats:
        """Return log-probabilities [T] of the text's tokens after the first, from a sampling client."""
        logprobs = [value for value in self.entries(client) if value is not None]
        return np.array(logprobs[1 - len(self.text) :])

    def scores(self, client: tinker.TrainingClient | None = None) -> Floats:
        """Return log-probabilities [T] of the text's tokens after the first, from a training client."""
        datum = make_datum(self.text, weights=self.ones)
        output = value_of((client or self.trainer).forward([datum], "cross_entropy"))
        return np.array(output.loss_fn_outputs[0]["logprobs"].tolist())

    @cached_property
    def now(self) -> Floats:
        """Log-probabilities [T] of the text under the trainer's current weights; cached until the next
        step."""
        return self.scores()

    # steps

    def rated(self, advantages: Floats, ratios: Floats | float = 1.0, **inputs: Floats) -> tinker.Datum:
        """Build a datum for an RL loss from the first tokens of `text`, one token for each advantage.

        Args:
            advantages: Advantage of each token.
            ratios: Policy probability / sampling probability of each token; 1 is on-policy.
            inputs: Further inputs of the loss [T].
        """
        count = len(advantages)
        sampled_logprobs = self.now[:count] - np.log(np.ones(count) * ratios)
        return make_datum(self.text[: count + 1], logprobs=sampled_logprobs, advantages=advantages, **inputs)

    def on_policy(self, *advantages: Floats) -> Pass:
        """Return an on-policy pass of importance_sampling with a datum for each array of advantages."""
        return Pass("importance_sampling", [self.rated(advantages_T) for advantages_T in advantages])

    def step(
        self,
        *passes: Pass,
        client: tinker.TrainingClient | None = None,
        adam: tinker.AdamParams | None = None,
    ) -> None:
        """Send passes to the trainer, then take an optimizer step, and wait; by default plain gradient
        descent."""
        if client is None:
            client = self.trainer
            vars(self).pop("now", None)
        futures: list[Any] = [
            client.forward_backward([*data], cast("Any", loss), {**settings} if settings else None)
            for loss, data, settings in passes
        ]
        for future in (*futures, client.optim_step(adam or self.plain_adam())):
            value_of(future)

    def plain_adam(self, clip: float = 0.0) -> tinker.AdamParams:
        """Return Adam settings under which a step is `eta` times the gradient, for small gradients."""
        return tinker.AdamParams(
            learning_rate=self.eta * _EPS, beta1=0.0, beta2=0.0, eps=_EPS, grad_clip_norm=clip
        )

    def change(self, *passes: Pass, adam: tinker.AdamParams | None = None) -> Floats:
        """Take one optimizer step on the passes; return the change [T] of the text's log-probabilities."""
        old_logprobs = self.now
        self.step(*passes, adam=adam)
        return self.now - old_logprobs

    def effect(self, advantages: Floats, *passes: Pass) -> Floats:
        """Return the change [T] that passes cause, then reverse it by a step back.

        Args:
            advantages: Advantages whose on-policy gradient the passes should have.
            *passes: The passes.
        """
        change = self.change(*passes)
        self.step(self.on_policy(-advantages))
        return change

    def measured(self, advantages: Floats) -> Floats:
        """Return the change [T] by a step with these advantages on the text's first tokens, then reverse the
        step."""
        return self.effect(advantages, self.on_policy(advantages))

    def choose_step(self) -> None:
        """Choose `eta` so that the largest change by a step is about `_STEP`."""
        for _ in range(8):
            largest_change = float(np.abs(self.measured(self.ones)).max())
            if _STEP / 2 <= largest_change <= _STEP * 2:
                return
            factor = _STEP / max(largest_change, 1e-9) if np.isfinite(largest_change) else 0.0
            self.eta *= min(max(factor, 1e-3), 1e3)
