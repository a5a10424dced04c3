"""Likelihoods of texts, which rewards read: the log-probabilities of a text after a turn's own answer.

In: a turn that has ended, and the models of the plan's endpoints. Out: a number for each token of the text.
The tokens of the prompt and of the answer stay those that were sampled; the texts that follow are encoded as
plain text, so that none of them can end the turn or begin another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.role_plan import LikelihoodPlan
from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.types import TextScorer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.run.context import EpisodeContext
from rolegraph.engine.run.turn import ModelCall, NodeResult
from rolegraph.engine.vocabulary import Likelihood, RewardInputs, Views

Likelihoods = Mapping[Likelihood, Sequence[float]]
"""Log-probabilities of the tokens of each text."""


async def likelihoods_of(
    result: NodeResult, node: int, context: EpisodeContext, inputs: RewardInputs
) -> Likelihoods:
    """Return the log-probabilities of the texts that the reward of a turn reads.

    The result has no entry for a text that reads a role whose turn did not run or failed.

    Args:
        result: The turn, which has ended without a failure.
        node: The turn's position in the plan.
        context: The episode.
        inputs: Inputs of the reward, with the turns of other roles.

    Raises:
        PromptError: A text cannot be rendered.
        ValueError: A text has no tokens.
        ModelError: The model does not answer, or the text does not fit its context.
    """
    texts = [plan.text for plan in result.role.likelihoods.values()]
    views = {name: Views(role_views) for name, role_views in inputs.views.items()}
    variables = {**context.of_turn_end(node, result.view, texts), **views}
    logprobs: dict[Likelihood, Sequence[float]] = {}
    for likelihood, plan in result.role.likelihoods.items():
        read_views = [inputs.views[name] for name in likelihood.roles]
        if all(views and not any(view.failed for view in views) for views in read_views):
            logprobs[likelihood] = await _logprobs(result, likelihood, plan, variables, context.models)
    return logprobs


async def _logprobs(
    result: NodeResult,
    likelihood: Likelihood,
    plan: LikelihoodPlan,
    variables: Mapping[str, Any],
    models: Sequence[LimitedModel],
) -> Sequence[float]:
    index = result.view.index - 1
    model, answering_model = models[plan.endpoints[index]], models[result.role.endpoints[index]].model
    scorer = _scorer(model, f"the reward of {result.role.name}")
    same_tokens = isinstance(answering_model, TextScorer) and _same_tokens(answering_model.chat, scorer.chat)
    prompt_ids = _before(result.calls, likelihood, scorer.chat, same_tokens=same_tokens)
    text_ids = scorer.chat.text_ids(plan.text.render(variables))
    if not text_ids:
        raise ValueError("the text of the likelihood is empty")
    return await model.logprobs((*prompt_ids, *scorer.chat.text_ids(likelihood.after)), text_ids)


def _before(
    calls: Sequence[ModelCall], likelihood: Likelihood, chat: ChatFormat, *, same_tokens: bool
) -> Sequence[int]:
    """Return the tokens that precede a scored text: the turn's prompt, and if the text follows the answer,
    also the answer without its end token."""
    call = calls[-1] if likelihood.turn else calls[0]
    answer = call.completion
    if not (same_tokens and answer.response_ids):
        prompt = chat.prompt(call.messages).ids
        return (*prompt, *chat.text_ids(answer.text)) if likelihood.turn else prompt
    ids = answer.response_ids
    ids_without_end = ids[:-1] if ids[-1] in chat.end_ids else ids
    return (*answer.prompt_ids, *ids_without_end) if likelihood.turn else answer.prompt_ids


@lru_cache(maxsize=64)
def _same_tokens(one: ChatFormat, other: ChatFormat) -> bool:
    return one is other or one.same_tokens(other)


async def check_scorers(plan: Plan, models: Sequence[LimitedModel]) -> None:
    """Check that each model that scores a text for a reward returns log-probabilities.

    Args:
        plan: The plan.
        models: The models of the plan's endpoints.

    Raises:
        UsageError: A model returns no log-probability.
        WorldError: A model does not answer.
    """
    for role in plan.roles:
        for likelihood in role.likelihoods.values():
            for endpoint in dict.fromkeys(likelihood.endpoints):
                user = f"the reward of {role.name}"
                chat = _scorer(models[endpoint], user).chat
                await check_scorer(models[endpoint], chat.turn("?"), user)


def _scorer(model: LimitedModel, use: str) -> TextScorer:
    if not isinstance(model.model, TextScorer):
        raise UsageError(_gives_none(use, "its model has no such request"))
    return model.model


async def check_scorer(model: LimitedModel, ids: Sequence[int], use: str) -> None:
    """Check that a model returns log-probabilities, by asking for that of the last of some tokens.

    Args:
        model: The model.
        ids: At least two tokens.
        use: User of the log-probabilities, for messages, such as `the reward of solver`.

    Raises:
        UsageError: The model returns no log-probability.
        WorldError: The model does not answer.
    """
    try:
        await model.logprobs(ids[:-1], ids[-1:])
    except UsageError as error:
        raise UsageError(_gives_none(use, str(error))) from error
    except ModelError as error:
        if error.transient:
            raise WorldError(f"the model that scores for {use} does not answer: {error}") from error
        raise UsageError(_gives_none(use, str(error))) from error


def _gives_none(use: str, reason: str) -> str:
    return (
        f"{use} needs the log-probabilities of given tokens, and its model gives none ({reason}); name a "
        "local or a tinker model"
    )
