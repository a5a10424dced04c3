"""Tests that the largest plausible templates render within the limits."""

from __future__ import annotations

import pytest

from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.templates import compile_template
from rolegraph.engine.vocabulary import View, Views

ROWS = [
    {"id": f"sku-{n}", "name": f"Bolt M{n % 40}", "price": n * 0.37, "stock": n % 7} for n in range(7_000)
]
VARIABLES = {
    "task": {"rows": ROWS},
    "solver": Views([View(n, f"{n % 9} of them, because of {'this ' * 40}") for n in range(1, 4097)]),
    "debater": Views([View(n, " So it holds. " * 780) for n in range(1, 91)]),
}


@pytest.mark.parametrize(
    "source",
    [
        "{% for one in solver %}{{ one.index }}: {{ one.action }}\n{% endfor %}",
        "{% for one in solver | groupby('action') %}{{ one.list | length }} {{ one.grouper }}{% endfor %}",
        "{% for one in debater %}## {{ one.index }}\n{{ one.action | trim }}\n{% endfor %}",
        "{% for row in task.rows %}{{ loop.index }} | {{ row.id }} | {{ row.name }} | "
        "{{ row.price | round(2) }} | {% if row.stock > 0 %}{{ row.stock }}{% else %}none{% endif %}\n"
        "{% endfor %}",
        "{{ task.rows | tojson }}",
        "{{ solver | map(attribute='action') | unique | list | length }}",
    ],
)
def test_a_large_honest_prompt_is_rendered(source: str) -> None:
    template, faults = compile_template(source, TemplateScope({"solver": 4096, "debater": 90}))
    assert template is not None, faults
    assert template.render(VARIABLES)
