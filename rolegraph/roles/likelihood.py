"""Reward from the likelihood of a text after the turn's own answer."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import Likelihood, Reward, RewardFacts, RewardInputs, Score
from rolegraph.roles.bounds import UNIT

_OF_THE_TURN = {"task", "self", "action", "tokens", "calls"}
"""Names in a text that are never roles."""


def likelihood(
    *,
    of: str,
    after: str = "",
    model: str | dict[str, Any] = "policy",
    per: Literal["token", "text"] = "token",
    exp: bool = False,
    turn: bool = True,
) -> Reward:
    """Pay the log-probability of a text after the turn's own answer; it says nothing of right or wrong.

    The likelihood of the reference answer is a reward without a verifier (VeriFree, 2505.21493); that of
    another role's answer is what the turn tells of it (peer prediction, information gain).

    of: the template of the text, over task, self, action and the roles; the fields that it reads are hidden
        from prompts
    after: a text between the turn's answer and the text, in the same turn of the chat
    model: policy, the weights that answered; base, the model that they began with; or a local or tinker model
    per: token for the mean over the text's tokens, text for their sum
    exp: true for the probability in place of its logarithm
    turn: false leaves the turn's own answer out: the text follows the turn's prompt
    """
    model_name = json.dumps(model, sort_keys=True)
    fields, roles = _read(of)
    scored_text = Likelihood(of, after, model_name, turn, roles)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        if scored_text not in inputs.likelihoods:  # a turn that the text reads failed, or did not run
            return Score(None, None)
        total = math.fsum(logprobs := inputs.likelihoods[scored_text])
        value = total if per == "text" else total / len(logprobs)
        return Score(math.exp(value) if exp else value, None)

    facts = RewardFacts(fields=fields, labels=fields, judges=False, bounds=UNIT if exp else (-math.inf, 0.0))
    return Reward(score, facts, views=roles, likelihoods=(scored_text,))


def _read(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (task fields, roles) that a template reads; both empty for a text with a syntax fault."""
    from jinja2 import (  # slow to import, and read by this reward alone
        Environment,
        TemplateSyntaxError,
        nodes,
    )
    from jinja2.meta import find_undeclared_variables

    from rolegraph.roles.formulas import keys_of

    try:
        tree = Environment().parse(text)
    except (TemplateSyntaxError, RecursionError, ValueError, MemoryError):
        return (), ()
    fields = dict.fromkeys(keys_of([*tree.find_all(nodes.Node)], "task"))
    return tuple(fields), tuple(sorted(find_undeclared_variables(tree) - _OF_THE_TURN - {"range"}))
