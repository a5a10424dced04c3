"""Small chat templates in the style of model families, with tools and with earlier turns."""

from __future__ import annotations

_OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOLD = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<tool_call>name and arguments</tool_call><|im_end|>\n{% endif %}"
)
_CALLS = (
    "{% for call in m.tool_calls %}\n<tool_call>\n"
    '{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}'
    "\n</tool_call>{% endfor %}"
)

HERMES = (
    _TOLD
    + "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    + _CALLS
    + "<|im_end|>\n{% endif %}{% endfor %}"
    + _OPENING
)
"""Template that keeps every turn unchanged."""

STRIPS_BEHIND_A_QUESTION = (
    _TOLD + "{% set at = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set at.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% elif m.role == 'assistant' and '</think>' in m.content "
    "and loop.index0 < at.last %}<|im_start|>assistant\n{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    + _CALLS
    + "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    + _CALLS
    + "<|im_end|>\n{% endif %}{% endfor %}"
    + _OPENING
)
"""Template that drops an answer's reasoning once another question follows."""

STRIPS_ALWAYS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    + _OPENING
)
"""Template that drops an answer's reasoning at once."""

TRIMS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
"""Template without tools that strips the white space around a turn."""

REWRITES = (
    "{% for m in messages %}{{ loop.length }}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}" + _OPENING
)
"""Template that renders earlier turns differently once more turns follow."""


def _with_calls(call: str, *, between: str = "", before: str = "", after: str = "") -> str:
    """Return a template that lists tools before the question and renders an answer's calls in one form."""
    return (
        "{% for m in messages %}{% if m.role == 'user' %}{% for tool in tools or () %}{{ tool | tojson }}"
        "{% endfor %}ASKED {{ m.content }}|{% elif m.role == 'tool' %}RESULT {{ m.content | tojson }}|"
        f"{{% elif m.tool_calls %}}SAID|{{{{ m.content }}}}{before}"
        "{% for call in m.tool_calls %}{% set f = call.function %}"
        f"{call}{{% if not loop.last %}}{between}{{% endif %}}{{% endfor %}}{after}ENDED"
        "{% else %}SAID|{{ m.content }}ENDED{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}SAID|{% endif %}"
    )


_NINE = "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
CALLS_BY_FORM = {
    "Hermes": _with_calls(
        '<tool_call>\n{{ {"name": f.name, "arguments": f.arguments} | tojson }}\n</tool_call>', between="\n"
    ),
    "Qwen Coder": _with_calls(
        "<tool_call>\n<function={{ f.name }}>\n{% for name, value in f.arguments | items %}"
        "<parameter={{ name }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
        between="\n",
    ),
    "Llama": _with_calls('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
    "Mistral": _with_calls(
        _NINE + '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}',
        between=", ",
        before="[TOOL_CALLS][",
        after="]",
    ),
    "Mistral, later": _with_calls("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "DeepSeek": _with_calls(
        "{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments + '<｜tool▁call▁end｜>' }}",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
    ),
}
"""Rendering of a call in each family's template, without turn markers."""
