"""What a unit of `prompt_work` is in time and memory: a template's operations, each until the budget ends.

`python benchmarks/metering.py` prints a line for each as it goes, the worst at last, and beside them the
largest honest rendering. Times are of this process alone: the least of three.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from time import process_time
from typing import Any, NamedTuple

from rolegraph.engine.limits.prompts import PROMPT_WORK
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.scope import RenderScope
from rolegraph.engine.prompts.templates import Template, compile_template
from rolegraph.engine.vocabulary import View, Views

NINES = "9" * 299
HONEST = "{% for one in solver %}\n{{ one.index }}: {{ one.action }}\n{% endfor %}Which is right?"
"""A judge of as many solvers as a role may have."""
LOOP = "{% for i in range(99999) %}BODY{% endfor %}"
TEXT, WORDS = "'a' * 1000000", "'a b' * 300000"
NUMBERS = "range(99999) | list"
ROWS = "{% set rows = [{'k': 1, 't': 'b'}, {'k': 2, 't': 'a'}] * 49999 %}"
OPERATIONS: Mapping[str, str] = {
    "an honest loop of ten operations": LOOP.replace(
        "BODY", "{{ i + 1 }}{{ i * 2 }}{% if i > 3 and i < 9 %}x{% endif %}"
    ),
    "an empty loop": LOOP.replace("BODY", "") * 20,
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loops that assign": LOOP.replace("BODY", "{% set x = i %}") * 20,
    "loops of conditions": LOOP.replace("BODY", "{% if i %}{% elif not i %}{% endif %}") * 20,
    "loops that look fields up": LOOP.replace("BODY", "{% set x = task.nested.answer %}") * 20,
    "loops of filters": LOOP.replace("BODY", "{% set x = i | abs | int | string | length %}") * 20,
    "loops of tests": LOOP.replace("BODY", "{% set x = i is even and i is number %}") * 20,
    "loops of lists": LOOP.replace("BODY", "{% set x = [i, i, i] %}") * 20,
    "loops of mappings": LOOP.replace("BODY", "{% set x = {'a': i, 'b': i} %}") * 20,
    "loops that write": LOOP.replace("BODY", "{{ i }}") * 20,
    "loops that join texts": LOOP.replace("BODY", "{% set x = 'a' ~ i ~ 'b' %}") * 20,
    "loops that count": LOOP.replace("BODY", "{{ loop.index }}") * 20,
    "loops in loops that count": LOOP.replace("BODY", "{% for j in [1] %}{{ loop.index }}{% endfor %}") * 20,
    "loops that write floats": LOOP.replace("BODY", "{{ i / 3 }}") * 20,
    "loops that write mappings": LOOP.replace("BODY", "{{ task.nested }}") * 20,
    "loops of JSON": LOOP.replace("BODY", "{% set x = task.nested | tojson %}") * 20,
    "loops of formats": LOOP.replace("BODY", "{% set x = '%.2f' | format(i) %}") * 20,
    "loops of groups": LOOP.replace("BODY", "{% set x = [{'id': 1}] | groupby('id') %}") * 20,
    "loops of selections": LOOP.replace("BODY", "{% set x = [{'id': 1}] | selectattr('id', 'eq', 1) %}") * 20,
    "loops of sums of texts": LOOP.replace("BODY", "{% set x = 'a' + 'b' %}") * 20,
    "loops of chained comparisons": LOOP.replace("BODY", "{% set x = 1 < i < 3 < 4 %}") * 20,
    "lists": "{% set x = NUMBERS %}".replace("NUMBERS", NUMBERS) * 60,
    "lists kept": "".join(f"{{% set x{n} = {NUMBERS} %}}" for n in range(60)),
    "lists of lists kept": "".join(f"{{% set x{n} = [[]] * 99999 %}}" for n in range(60)),
    "lists mapped": f"{{% set x = {NUMBERS} %}}" + "{% set y = x | map('string') | list %}" * 60,
    "lists mapped and kept": f"{{% set x = {NUMBERS} %}}"
    + "".join(f"{{% set y{n} = x | map('string') | list %}}" for n in range(60)),
    "lists sorted": f"{{% set x = {NUMBERS} | reverse | list %}}" + "{% set y = x | sort %}" * 60,
    "lists sorted by a field": ROWS + "{% set y = rows | sort(attribute='t') %}" * 60,
    "lists grouped": ROWS + "{% set y = rows | groupby('t') %}" * 60,
    "lists selected": ROWS + "{% set y = rows | selectattr('k', 'eq', 1) | list %}" * 60,
    "lists made unique": f"{{% set x = {NUMBERS} %}}" + "{% set y = x | unique | list %}" * 60,
    "lists summed": f"{{% set x = {NUMBERS} %}}" + "{% set y = x | sum %}" * 60,
    "lists written": f"{{% set x = {NUMBERS} %}}" + "{% set y = x | string %}" * 60,
    "lists as JSON": ROWS + "{% set y = rows[:9999] | tojson %}" * 60,
    "lists compared": f"{{% set x = {NUMBERS} %}}{{% set z = {NUMBERS} %}}" + "{% set y = x == z %}" * 100,
    "searches in a list": f"{{% set x = {NUMBERS} %}}" + "{% set y = 'a' in x %}" * 100,
    "texts kept": "".join(f"{{% set x{n} = {TEXT} %}}" for n in range(60)),
    "wide texts kept": "".join(f"{{% set x{n} = '𝄞' * 1000000 %}}" for n in range(60)),
    "texts written": f"{{% set x = {TEXT} %}}" + "{{ x }}" * 60,
    "wide texts written": "{% set x = '𝄞' * 1000000 %}" + "{{ x }}" * 60,
    "texts of a loop's own": LOOP.replace("BODY", "a word " * 9000),
    "short texts of a loop's own": LOOP.replace("BODY", "a{{ i }}") * 20,
    "texts in capitals": f"{{% set x = {TEXT} %}}" + "{% set y = x | upper %}" * 60,
    "titles": f"{{% set x = {WORDS} %}}" + "{% set y = x | title %}" * 60,
    "replacements": "{% set x = 'a' * 99999 %}" + "{% set y = x | replace('a', 'b') %}" * 100,
    "escapes": "{% set x = '<' * 100000 %}" + "{% set y = x | e %}" * 60,
    "word counts": f"{{% set x = {WORDS} %}}" + "{% set y = x | wordcount %}" * 60,
    "texts trimmed": f"{{% set x = {TEXT} %}}" + "{% set y = x | trim %}" * 60,
    "texts as lists": "{% set x = 'a' * 99999 %}" + "{% set y = x | list %}" * 60,
    "texts compared": f"{{% set x = {TEXT} %}}{{% set z = {TEXT} %}}" + "{% set y = x == z %}" * 100,
    "searches in a text": f"{{% set x = {TEXT} %}}" + "{% set y = 'ab' in x %}" * 100,
    "texts formatted": "{% set x = 'a' * 99999 %}" + "{% set y = '%s' | format(x) %}" * 100,
    "products": "{% set a = NINES %}" + LOOP.replace("BODY", "{% set x = a * a %}") * 20,
    "texts as whole numbers": "{% set x = '1' * 4000 ~ '.5' %}"
    + LOOP.replace("BODY", "{% set y = x | int %}") * 20,
    "quotients": "{% set b = NINES %}{% set a = b * b %}" + LOOP.replace("BODY", "{% set x = a // b %}") * 20,
    "large numbers written": "{% set a = NINES %}{% set a = a * a * a * a %}"
    + LOOP.replace("BODY", "{% set x = a | string %}") * 20,
}  # fmt: skip


ANSWER = "Let me see. 3 * (4 + 5) = 27, so the answer is <answer>3 * (4 + 5)</answer>. " * 3
VARIABLES = {
    "task": {"id": "1", "nested": {"answer": 3}},
    "solver": Views([View(n, ANSWER) for n in range(1, 4097)]),
}


class Cost(NamedTuple):
    """What one rendering took."""

    seconds: float
    units: int
    bytes: int

    @property
    def ns(self) -> float:
        """Nanoseconds for a unit."""
        return 1e9 * self.seconds / max(self.units, 1)

    @property
    def held(self) -> float:
        """Bytes for a unit, at the most."""
        return self.bytes / max(self.units, 1)


def main() -> None:
    """Measure all, and say which was the worst."""
    honest = cost_of(HONEST)
    show("an honest prompt of 4,096 answers", honest)
    costs: dict[str, Cost] = {}
    for name, source in OPERATIONS.items():
        costs[name] = cost_of(source.replace("NINES", NINES))
        show(name, costs[name])
    slowest = max(costs, key=lambda name: costs[name].seconds)
    largest = max(costs, key=lambda name: costs[name].bytes)
    print(f"slowest: {slowest}, {costs[slowest].seconds:.2f} s; the honest prompt {honest.seconds:.3f} s")
    print(f"largest: {largest}, {costs[largest].bytes / 2**20:,.0f} MB; the budget is {PROMPT_WORK}")


def cost_of(source: str) -> Cost:
    """What a template costs until it is rendered, or stopped."""
    template, faults = compile_template(source, TemplateScope({"solver": 4096}))
    assert template is not None, faults
    times, units = zip(*(rendered(template) for _ in range(3)), strict=True)
    tracemalloc.start()
    rendered(template)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Cost(min(times), units[0], most)


def rendered(template: Template) -> tuple[float, int]:
    """Seconds of this process, and units."""
    scopes: list[Any] = []
    init = RenderScope.__init__

    def noted(self: RenderScope, variables: Mapping[str, Any]) -> None:
        init(self, variables)
        scopes.append(self)

    RenderScope.__init__ = noted
    began = process_time()
    try:
        template.render(VARIABLES)
    except PromptError as error:
        assert "limit: prompt_" in str(error), error
    finally:
        seconds = process_time() - began
        RenderScope.__init__ = init
    return seconds, scopes[0].spent


def show(name: str, cost: Cost) -> None:
    """A line of the table."""
    what = f"{cost.seconds:6.3f} s  {cost.units:>11,} units  {cost.ns:6.1f} ns/unit"
    print(f"{name:36} {what}  {cost.bytes / 2**20:7.1f} MB  {cost.held:5.1f} bytes/unit", flush=True)


if __name__ == "__main__":
    main()
