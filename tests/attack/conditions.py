"""Cases of hostile conditions."""

from __future__ import annotations

from tests.attack.cases import Case

CASES = [
    Case('a bomb', '"a"*999999999 == 1', 'error', 'limit: prompt_text'),
    Case('lists of lists', '([("a"*1000000)]*4000)|map("upper")|list|length', 'error', 'limit: prompt_work'),
    Case('too long', '1 + ' * 20000 + '1', 'fault', 'limit: prompt_source'),
    Case('too deep', '(' * 300 + '1' + ')' * 300, 'fault', 'limit: prompt_depth'),
    Case('too many parts', '1 or ' * 3000 + '1', 'fault', 'limit: prompt_depth'),
    Case('a number of many digits', '9' * 5000, 'fault', 'limit: prompt_digits'),
    Case('more than one', '1 }} {{ 1', 'fault', 'not a valid condition: the bracket `}` closes nothing'),
    Case('a statement', '{% for a in b %}', 'fault', 'not a valid condition: an expression stands without braces'),
    Case('globals', '[solver]|map(attribute="__class__")|list|length', 'text', 'True'),
    Case('a secret', 'solver[0].reward == 1', 'fault', "'reward' would leak the label: prompts never see rewards"),
    Case('title', '("a b"*300000)|title|title|title|title|title|title|title|title', 'error', 'limit: prompt_work'),
    Case('a tag', '1 %} {% set x = 1', 'fault', 'not a valid condition: the bracket `}` closes nothing'),
    Case('nothing', '', 'fault', 'not a valid condition: a value is missing'),
    Case('half a text', '"a', 'fault', 'not a valid condition: the quote " that opens here is not closed'),
    Case('a loop of tests', 'range(99999)|select("in",range(99999)|list)|list|length > 1', 'error', 'limit: prompt_work'),
    Case('division', '1//0', 'error', 'integer division or modulo by zero'),
    Case('a mapping of bombs', '{1: "a"*999999}|string|length > 3', 'error', 'limit: prompt_text'),
    Case('half a character', '"\ud800" == 1', 'text', 'False'),
    Case('NUL', '"\x00" == 1', 'text', 'False'),
    Case('not not not', 'not ' * 500 + '1', 'fault', 'limit: prompt_depth'),
]
