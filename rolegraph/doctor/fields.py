"""Probes of single fields of the Tinker SDK's requests, a row for each; expected effects follow the SDK's
docstrings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rolegraph.doctor.meter import (
    ANSWER_TOKENS,
    PROMPT,
    RANK,
    STATE_METADATA,
    STATE_SECONDS,
    Probe,
    ProbeFinding,
    ServiceMeter,
    agreement,
    is_refusal,
    value_of,
)
from rolegraph.engine.models.tinker_sdk import tinker

OPTIONAL = ("topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")
"""Names of rows whose fields a service may refuse."""
_LAST = 3
_TOP = 2


def _tokens(meter: ServiceMeter, **params: Any) -> list[int]:
    return [*meter.answered(meter.base, **params).sequences[0].tokens]


def _is_greedy(**params: Any) -> Callable[[ServiceMeter], ProbeFinding]:
    """Return a probe that checks if sampling with these parameters gives the likeliest tokens, whatever the
    seed."""

    def find(meter: ServiceMeter) -> ProbeFinding:
        greedy_tokens = _tokens(meter, temperature=0.0, seed=1)
        are_greedy = [_tokens(meter, **params, seed=seed) == greedy_tokens for seed in (7, 8)]
        return ProbeFinding("the likeliest tokens" if all(are_greedy) else "other tokens", all(are_greedy))

    return find


def _stop_text(meter: ServiceMeter) -> ProbeFinding:
    params: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 4 * ANSWER_TOKENS}
    is_equal = _tokens(meter, stop=["\x00\x01 never"], **params) == _tokens(meter, stop=None, **params)
    return ProbeFinding("the same answer" if is_equal else "another answer", is_equal)


def _no_stop(meter: ServiceMeter) -> ProbeFinding:
    answers = meter.answered(meter.base, count=8, max_tokens=4 * ANSWER_TOKENS).sequences
    ended_answers = sum(answer.stop_reason == "stop" for answer in answers)
    return ProbeFinding(f"{ended_answers} of 8 answers ended", ended_answers == 0)


def _stop_ids(meter: ServiceMeter) -> ProbeFinding:
    greedy_tokens = _tokens(meter, temperature=0.0)
    length = greedy_tokens.index(greedy_tokens[2]) + 1
    answer = meter.answered(meter.base, temperature=0.0, stop=[greedy_tokens[2]]).sequences[0]
    text = f"{len(answer.tokens)} of {length} tokens, ended by {answer.stop_reason}"
    return ProbeFinding(text, [*answer.tokens] == greedy_tokens[:length] and answer.stop_reason == "stop")


def _max_tokens(meter: ServiceMeter) -> ProbeFinding:
    answer = meter.answered(meter.base, max_tokens=5).sequences[0]
    description = f"{len(answer.tokens)} tokens, ended by {answer.stop_reason}"
    return ProbeFinding(description, len(answer.tokens) == 5 and answer.stop_reason == "length")


def _num_samples(meter: ServiceMeter) -> ProbeFinding:
    count = len(meter.answered(meter.base, count=3).sequences)
    return ProbeFinding(f"{count} of 3 answers", count == 3)


def _top_prompt(meter: ServiceMeter) -> ProbeFinding:
    request_options = {"include_prompt_logprobs": True, "topk_prompt_logprobs": _TOP}
    response = meter.answered(meter.base, wanted=request_options, max_tokens=1)
    rows = [row for row in response.topk_prompt_logprobs or () if row]
    scores = np.array((response.prompt_logprobs or ())[1 - len(PROMPT) :], float)
    description = f"{len(rows)} positions with likeliest tokens"
    if not len(rows) == len(scores) == len(PROMPT) - 1:
        return ProbeFinding(description, False)
    is_ordered = all(len(row) == _TOP and row[0][1] >= row[1][1] for row in rows)
    # No token of the prompt is likelier than the likeliest one, but for rounding.
    return ProbeFinding(
        description, is_ordered and bool((np.array([row[0][1] for row in rows]) > scores - 1e-2).all())
    )


def _top_sampled(meter: ServiceMeter) -> ProbeFinding:
    request_options = {"topk_sample_logprobs": _TOP}
    answer = meter.answered(meter.base, wanted=request_options, temperature=0.0).sequences[0]
    rows = [row for row in answer.topk_logprobs or () if row]
    if len(rows) != len(answer.tokens):
        return ProbeFinding(f"{len(rows)} rows for {len(answer.tokens)} tokens", False)
    return agreement(np.array([row[0][1] for row in rows]), np.array(answer.logprobs or ()))


def _last_n(meter: ServiceMeter) -> ProbeFinding:
    request_options = {"include_prompt_logprobs": True, "prompt_logprobs_last_n": _LAST}
    entries = meter.answered(meter.base, wanted=request_options, max_tokens=1).prompt_logprobs or []
    is_scored = [value is not None for value in entries]
    is_ok = sum(is_scored) == _LAST and all(is_scored[-_LAST:])
    return ProbeFinding(f"{sum(is_scored)} of {len(entries)} entries scored", is_ok)


def _targets(meter: ServiceMeter) -> ProbeFinding:
    ids = tinker.TensorData.from_numpy(np.array(PROMPT[1:], np.int64)[:, None])
    request_options = {"include_prompt_logprobs": True, "target_prompt_logprobs": ids}
    response = meter.answered(meter.base, wanted=request_options, max_tokens=1)
    if response.target_prompt_logprobs is None:
        return ProbeFinding("none", False)
    scores = np.array((response.prompt_logprobs or [])[1 - len(PROMPT) :], float)
    return agreement(np.array(response.target_prompt_logprobs.tolist()).flatten(), scores)


def _alternatives(meter: ServiceMeter) -> ProbeFinding:
    top_tokens = meter.answered(
        meter.base, wanted={"prompt_alt_tokens_k": _TOP}, max_tokens=1
    ).prompt_alt_tokens
    shape = [] if top_tokens is None else [*(top_tokens.tokens.shape or ())]
    return ProbeFinding(f"shape {shape}", shape == [len(PROMPT) - 1, _TOP])


SAMPLING = (
    Probe("temperature 0", "the likeliest tokens, whatever the seed", _is_greedy(temperature=0.0)),
    Probe("top_k 1", "the likeliest tokens", _is_greedy(top_k=1)),
    Probe("top_p near 0", "the likeliest tokens", _is_greedy(top_p=1e-6)),
    Probe("max_tokens", "ends an answer, with the reason length", _max_tokens),
    Probe("num_samples", "so many answers", _num_samples),
    Probe("stop texts", "the model's end token ends an answer, too", _stop_text),
    Probe("stop token ids", "a token ends an answer, which has it as its last", _stop_ids),
    Probe("stop []", "no token ends an answer", _no_stop),
    Probe("topk_prompt_logprobs", "the likeliest tokens for each position but the first", _top_prompt),
    Probe("prompt_logprobs_last_n", "None before the last n entries", _last_n),
    Probe("topk_sample_logprobs", "the likeliest tokens for each sampled one", _top_sampled),
    Probe("target_prompt_logprobs", "the log-probabilities of these tokens", _targets),
    Probe("prompt_alt_tokens_k", "draws for each position but the first", _alternatives),
)
"""Probes of the fields of a sampling request."""


def _ttl(meter: ServiceMeter) -> ProbeFinding:
    expires = meter.checkpoint[1].expires_at
    if expires is None:
        return ProbeFinding("never expires", False)
    seconds = (expires - datetime.now(UTC)).total_seconds()
    return ProbeFinding(f"expires in {seconds:.0f} s", abs(seconds - STATE_SECONDS) < 60)


def _metadata(meter: ServiceMeter) -> ProbeFinding:
    rows = meter.checkpoint[1].user_metadata
    return ProbeFinding("given back" if rows else "none", rows == STATE_METADATA)


def _overwrite(meter: ServiceMeter) -> ProbeFinding:
    _ = meter.checkpoint
    meter.save_state(overwrite=True)
    try:
        meter.save_state()
    except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
        if not is_refusal(error):
            raise
        meter.recover()
        return ProbeFinding("a second one of a name is refused")
    return ProbeFinding("a second one of a name replaces the first unasked", False)


def _weights_info(meter: ServiceMeter) -> ProbeFinding:
    info = value_of(meter.rest.get_weights_info_by_tinker_path(meter.checkpoint[0]))
    return ProbeFinding(f"rank {info.lora_rank} of {info.base_model}", info.lora_rank == RANK)


def _info(meter: ServiceMeter) -> ProbeFinding:
    rank = value_of(meter.trainer.get_info()).lora_rank
    return ProbeFinding(f"rank {rank}", rank == RANK)


def _deletion(meter: ServiceMeter) -> ProbeFinding:
    path, _ = meter.checkpoint
    value_of(meter.rest.delete_checkpoint_from_tinker_path(path))
    entries = value_of(meter.rest.list_checkpoints(path.split("/")[2])).checkpoints
    is_gone = all(entry.tinker_path != path for entry in entries)
    return ProbeFinding("gone" if is_gone else "still listed", is_gone)


CHECKPOINTS = (
    Probe("get_info", "the rank of the adapter", _info),
    Probe("ttl_seconds", "a checkpoint expires", _ttl),
    Probe("user_metadata", "a checkpoint has it", _metadata),
    Probe("overwrite", "a checkpoint of the same name is replaced on request alone", _overwrite),
    Probe("weights_info", "rank and base model of a checkpoint", _weights_info),
    Probe("delete_checkpoint", "a checkpoint is gone", _deletion),
)
"""Probes of the fields of checkpoints."""
