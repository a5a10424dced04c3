"""Tests of the messages for mistakes in YAML: the place of each, its name, and the text to write."""

from __future__ import annotations

import pytest

from rolegraph.engine.spec.loader import load_spec
from rolegraph.engine.spec.yaml_source import YamlSource, parse_yaml

GOOD = """\
rolegraph: 2
name: demo
data: {train: countdown, validation: countdown}

roles:
  solver:
    count: 2
    prompt: solver.j2
    parser: {tag: answer}
    reward: countdown
    estimator: grpo
  judge:
    needs: [solver]
    prompt: {inline: "Pick one: {{ solver[0].action }}"}
    parser: {choice: solver}
    reward: solver.reward
    when: 'self.index == 0'
    estimator: grpo

episode:
  correct: judge.right
"""
MISTAKES = [
    (
        "    prompt: solver.j2",
        "   prompt: solver.j2",
        (8, 1, 3),
        "wrong indentation: `prompt` belongs to `solver`",
        "4 spaces, as `count` in line 7",
    ),
    (
        "    prompt: solver.j2",
        "     prompt: solver.j2",
        (8, 1, 5),
        "wrong indentation: `prompt` belongs to `solver`",
        "4 spaces, as `count` in line 7",
    ),
    (
        "  judge:",
        " judge:",
        (12, 1, 1),
        "wrong indentation: `judge` belongs to `roles`",
        "2 spaces, as `solver` in line 6",
    ),
    (
        "episode:",
        " episode:",
        (20, 1, 1),
        "wrong indentation: `episode` belongs to the top of the spec",
        "no space, as `roles` in line 5",
    ),
    (
        "    parser: {tag: answer}",
        "    parser: tag\n      keep_tag: true",
        (10, 1, 6),
        "wrong indentation: `keep_tag` belongs to `solver`",
        "4 spaces, as `parser` in line 9",
    ),
    (
        "  solver:\n",
        "    solver:\n",
        (6, 1, 4),
        "wrong indentation: `solver` belongs to `roles`",
        "2 spaces, as `judge` in line 12",
    ),
    (
        "    needs: [solver]",
        "      needs: [solver]",
        (13, 1, 6),
        "wrong indentation: `needs` belongs to `judge`",
        "4 spaces, as `prompt` in line 14",
    ),
    (
        "    reward: countdown",
        "  reward: countdown",
        (10, 1, 2),
        "wrong indentation: `reward` belongs to `solver`",
        "4 spaces, as `parser` in line 9",
    ),
    (
        "    prompt: solver.j2",
        "\tprompt: solver.j2",
        (8, 1, 1),
        "YAML takes no tab here",
        "set your editor to write spaces in YAML",
    ),
    (
        "    prompt: solver.j2",
        "  \tprompt: solver.j2",
        (8, 3, 1),
        "YAML takes no tab here",
        "set your editor to write spaces in YAML",
    ),
    (
        "  correct: judge.right",
        "\tcorrect: judge.right",
        (21, 1, 1),
        "YAML takes no tab here",
        "set your editor to write spaces in YAML",
    ),
    (
        "    count: 2",
        "    count:\t2",
        (7, 11, 1),
        "YAML takes no tab here",
        "set your editor to write spaces in YAML",
    ),
    ("    count: 2", "    count 2", (7, 5, 5), "a colon is missing after `count`", "write count: 2"),
    ("  judge:", "  judge", (12, 3, 5), "a colon is missing after `judge`", "write judge:"),
    ("episode:", "episode", (20, 1, 7), "a colon is missing after `episode`", "write episode:"),
    (
        "    count: 2",
        "    count:2",
        (7, 10, 1),
        "a space is missing after the colon of `count`",
        "write count: 2",
    ),
    (
        "    parser: {tag: answer}",
        "    parser: {tag:answer}",
        (9, 14, 10),
        "a space is missing after the colon of `tag`",
        "write tag: answer",
    ),
    (
        "data: {train: countdown, validation: countdown}",
        "data: {train:countdown, validation:countdown}",
        (3, 8, 15),
        "a space is missing after the colon of `train`",
        "write train: countdown",
    ),
    ("    count: 2", "    count = 2", (7, 11, 1), "`count` has `=` in place of a colon", "write count: 2"),
    (
        "name: demo",
        "name: demo\ndescription: Two steps: solve, then judge",
        (3, 23, 1),
        "a text with a colon and a space needs quotes",
        "write description: 'Two steps: solve, then judge'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: self.index == {a: 1}",
        (17, 27, 1),
        "a text with a colon and a space needs quotes",
        "write when: 'self.index == {a: 1}'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: Pick one: {{ solver[0].action }}}",
        (14, 30, 1),
        "a text with a colon and a space needs quotes",
        "write prompt: {inline: 'Pick one: {{ solver[0].action }}'}",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: {{ task.target }} is the target}",
        (14, 22, 2),
        "a text that begins with {{ needs quotes",
        "write prompt: {inline: '{{ task.target }} is the target'}",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: {{ task.target }}}",
        (14, 22, 17),
        "a text that begins with {{ needs quotes",
        "write inline: '{{ task.target }}'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt:\n      inline: {{ task.target }} is the target",
        (15, 15, 2),
        "a text that begins with {{ needs quotes",
        "write inline: '{{ task.target }} is the target'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt:\n      inline: {% if task.target %}x{% endif %}",
        (15, 15, 2),
        "a text that begins with {% needs quotes",
        "write inline: '{% if task.target %}x{% endif %}'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: Pick {{ solver[0].action }}}",
        (14, 27, 2),
        "a text with `{{` needs quotes here",
        "write prompt: {inline: 'Pick {{ solver[0].action }}'}",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: Pick one, please}",
        (14, 22, 16),
        "the comma ends the text `Pick one`: a text with a comma needs quotes here",
        "write inline: 'Pick one, please'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: % of right answers",
        (3, 14, 1),
        "a text that begins with % needs quotes",
        "write description: '% of right answers'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: @solver and judge",
        (3, 14, 1),
        "a text that begins with @ needs quotes",
        "write description: '@solver and judge'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: `solver` and judge",
        (3, 14, 1),
        "a text that begins with ` needs quotes",
        "write description: '`solver` and judge'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: *solver* and judge",
        (3, 14, 1),
        "a text that begins with * needs quotes",
        "write description: '*solver* and judge'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: & so on",
        (3, 14, 1),
        "a text that begins with & needs quotes",
        "write description: '& so on'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: !self.index",
        (17, 11, 11),
        "the tag '!self.index' is not allowed",
        "write `not` for `!`",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: > 3",
        (17, 11, 1),
        "a text that begins with > needs quotes",
        "write when: '> 3'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: {{ self.index == 0 }}",
        (17, 11, 21),
        "a text that begins with {{ needs quotes",
        "write when: 'self.index == 0'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: 'self.index == 0",
        (17, 11, 1),
        "the quote ' that opens here is not closed",
        "write when: 'self.index == 0'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        '    prompt: {inline: "Pick one: {{ solver[0].action }}}',
        (14, 22, 1),
        'the quote " that opens here is not closed',
        "write prompt: {inline: 'Pick one: {{ solver[0].action }}'}",
    ),
    (
        "name: demo",
        "name: 'demo",
        (2, 7, 1),
        "the quote ' that opens here is not closed",
        "write name: 'demo'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: 'self.index == 0''",
        (17, 27, 1),
        "the text ends at this quote ', and more follows",
        "write when: 'self.index == 0'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: 'solver[0].action == 'yes''",
        (17, 32, 1),
        "the text ends at this quote ', and more follows",
        "write when: \"solver[0].action == 'yes'\"",
    ),
    (
        "    when: 'self.index == 0'",
        '    when: "solver[0].action == "yes""',
        (17, 32, 1),
        'the text ends at this quote ", and more follows',
        "write when: 'solver[0].action == \"yes\"'",
    ),
    (
        "    when: 'self.index == 0'",
        '    when: "yes" == solver[0].action',
        (17, 15, 1),
        'the text ends at this quote ", and more follows',
        "write when: '\"yes\" == solver[0].action'",
    ),
    (
        "name: demo",
        "name: demo\ndescription: 'it's a demo'",
        (3, 17, 1),
        "the text ends at this quote ', and more follows",
        'write description: "it\'s a demo"',
    ),
    (
        "    when: 'self.index == 0'",
        "    when: \"solver[0].action is match('\\d+')\"",
        (17, 39, 2),
        "`\\d` is no escape of YAML in double quotes",
        "write when: \"solver[0].action is match('\\\\d+')\"",
    ),
    (
        "    needs: [solver]",
        "    needs: [solver",
        (13, 12, 1),
        "the bracket `[` that opens here is not closed",
        "write needs: [solver]",
    ),
    (
        "    parser: {tag: answer}",
        "    parser: {tag: answer",
        (9, 13, 1),
        "the bracket `{` that opens here is not closed",
        "write parser: {tag: answer}",
    ),
    (
        "    needs: [solver]",
        "    needs: [solver]]",
        (13, 20, 1),
        "the bracket `]` closes nothing",
        "write needs: [solver]",
    ),
    (
        "    parser: {tag: answer}",
        "    parser: {tag: answer}}",
        (9, 26, 1),
        "the bracket `}` closes nothing",
        "write parser: {tag: answer}",
    ),
    (
        "    needs: [solver]",
        "    needs: [solver}",
        (13, 19, 1),
        "`}` closes what `[` opened",
        "write needs: [solver]",
    ),
    (
        "data: {train: countdown, validation: countdown}",
        "data: {train: countdown validation: countdown}",
        (3, 24, 1),
        "a comma is missing here",
        "write data: {train: countdown, validation: countdown}",
    ),
    (
        "data: {train: countdown, validation: countdown}",
        "data: {\n  train: countdown\n  validation: countdown\n}",
        (4, 18, 1),
        "a comma is missing at the end of this line",
        "write train: countdown,",
    ),
    (
        "name: demo",
        "name: demo\ndescription: Answer no #2 first",
        (3, 24, 8),
        "a space and `#` begin a comment: the text ends before them",
        "write description: 'Answer no #2 first'",
    ),
    (
        "    when: 'self.index == 0'",
        "    when: solver[0].action == '#1' and x == ' #2'",
        (17, 47, 3),
        "a space and `#` begin a comment: the text ends before them",
        "write when: \"solver[0].action == '#1' and x == ' #2'\"",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: Solve this. # Rules",
        (14, 25, 7),
        "a space and `#` begin a comment: the text ends before them",
        "write prompt: 'Solve this. # Rules'",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt: {inline: Solve this #1}",
        (14, 33, 1),
        "a space and `#` begin a comment: a text with them needs quotes",
        "write prompt: {inline: 'Solve this #1'}",
    ),
    (
        "    reward: solver.reward",
        "    reward: {sum: {a: {reward: countdown, weight: max(0, 0.1 - step)}}}",
        (16, 51, 18),
        "the comma ends the value `max(0`: an expression with a comma needs quotes here",
        "write weight: 'max(0, 0.1 - step)'",
    ),
    (
        "    needs: [solver]",
        "    needs: [max(solver, judge)]",
        (13, 13, 18),
        "the comma ends the value `max(solver`: an expression with a comma needs quotes here",
        "write 'max(solver, judge)'",
    ),
    (
        "  correct: judge.right",
        "  correct: judge.right\n  metrics: {a: mean(solver.reward, where=solver.ok)}",
        (22, 16, 36),
        "the comma ends the value `mean(solver.reward`: an expression with a comma needs quotes here",
        "write a: 'mean(solver.reward, where=solver.ok)'",
    ),
    (
        "    needs: [solver]",
        "    needs:\n      - solver\n      judge",
        (15, 7, 1),
        "a list item without its dash",
        "write - judge",
    ),
    (
        "    needs: [solver]",
        "    needs:\n      solver\n      - judge",
        (14, 7, 6),
        "a list item without its dash: without one before each, the lines are a single text",
        "write - solver",
    ),
    (
        "    reward: countdown",
        "    reward: countdown\n    tools:\n      - name: a\n      python",
        (13, 7, 1),
        "a list item without its dash",
        "write - python",
    ),
    (
        "    reward: countdown",
        "    reward: countdown\n    tools:\n      - python\n      call: x",
        (13, 7, 1),
        "a list item without its dash",
        "write - call: x",
    ),
    (
        "    needs: [solver]",
        "    needs:\n      -solver\n      -judge",
        (14, 7, 7),
        "a space is missing after the dash of a list item",
        "write - solver",
    ),
    (
        "    count: 2",
        "    - count: 2",
        (7, 5, 1),
        "a list item among keys, which have no dash",
        "write count: 2",
    ),
    (
        "  correct: judge.right",
        "  - correct: judge.right\n  metrics: {}",
        (21, 3, 1),
        "a list item among keys, which have no dash",
        "write correct: judge.right",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt:\n      inline: |\n        Line one\n      Line two",
        (17, 1, 6),
        "wrong indentation: `Line two` belongs to `inline`",
        "8 spaces, as `Line one` in line 16",
    ),
    (
        '    prompt: {inline: "Pick one: {{ solver[0].action }}"}',
        "    prompt:\n      inline: | Line one\n        Line two",
        (15, 17, 8),
        "the text after `|` begins in the next line",
        "write `|` alone, and the text below it",
    ),
    (
        "episode:",
        "---\nepisode:",
        (20, 1, 1),
        "`---` begins another document",
        "one spec in a file, without `---` inside",
    ),
    (
        "    count: 2",
        "    count: 2 prompt: x",
        (7, 20, 1),
        "a text with a colon and a space needs quotes",
        "write `count: 2` and `prompt: x` in two lines, or the text in quotes",
    ),
    (
        "    parser: {tag: answer}",
        '    parser: {"tag" "answer"}',
        (9, 18, 1),
        "a colon is missing here",
        'write parser: {"tag": "answer"}',
    ),
    (
        "    count: 2",
        "\xa0   count: 2",
        (7, 1, 1),
        "the line begins with a space of another kind",
        "write common spaces",
    ),
]
"""For each mistake the right lines, the wrong ones, (line, column, width) of the carets, message and hint."""


def read(right: str, wrong: str) -> YamlSource:
    assert right in GOOD
    return parse_yaml(GOOD.replace(right, wrong, 1), "x.yaml")


def test_the_spec_without_a_mistake_has_no_fault() -> None:
    assert parse_yaml(GOOD, "x.yaml").faults == []


@pytest.mark.parametrize(("right", "wrong", "place", "message", "hint"), MISTAKES)
def test_a_mistake_is_shown_where_it_is_with_its_name_and_what_to_write(
    right: str, wrong: str, place: tuple[int, int, int], message: str, hint: str
) -> None:
    fault = read(right, wrong).faults[0]
    assert (fault.place.line, fault.place.column, fault.place.width) == place
    assert fault.message.removeprefix("not valid YAML: ") == message
    assert hint in (fault.hint, fault.expected)


@pytest.mark.parametrize(("right", "wrong"), [it[:2] for it in MISTAKES])
def test_the_line_that_a_hint_says_to_write_is_valid_yaml(right: str, wrong: str) -> None:
    fault = read(right, wrong).faults[0]
    if (
        not fault.message.startswith("not valid YAML")
        or not fault.hint.startswith("write ")
        or "spaces" in fault.hint
    ):
        return
    written = fault.hint.removeprefix("write ")
    if "`" in written and "write " not in fault.place.text:
        return
    lines = GOOD.replace(right, wrong, 1).split("\n")
    line = lines[fault.place.line - 1]
    lines[fault.place.line - 1] = line[: len(line) - len(line.lstrip())] + written
    assert parse_yaml("\n".join(lines), "x.yaml").errors == []


@pytest.mark.parametrize(
    "line",
    [
        "    count: 2  # two of them",
        "    system: solver.j2 # the shipped one",
        "    when: self.index == 0 # only the first",
        "    timeout: 5 #",
        "    sampling: {top_p: 0.5} # a tag",
        "    weight: 1 #old",
    ],
)
def test_a_common_comment_is_no_text_that_was_cut(line: str) -> None:
    assert read("    count: 2", line).faults == []


@pytest.mark.parametrize(
    "value",
    [
        "judge.reward\n      - 0.1 * tokens",
        "-rival.reward",
        "[max(a), b]",
        "{value: f(x), right: true}",
        "[(, x)]",
    ],
)
def test_expressions_in_one_piece_are_no_slips(value: str) -> None:
    assert read("countdown\n    estimator", f"{value}\n    estimator").faults == []


def test_a_text_that_a_comment_cuts_is_a_warning_and_is_read_as_yaml_says() -> None:
    source = read("name: demo", "name: demo\ndescription: Answer no #2 first")
    assert [fault.severity for fault in source.faults] == ["warning"]
    assert source.data["description"] == "Answer no"
    assert source.errors == []


def test_an_override_that_a_comment_cuts_is_a_fault() -> None:
    (fault,) = load_spec("solver_judge", ["description=Answer no #2 first"]).faults
    assert (fault.severity, fault.hint) == ("error", "quote the value")


def test_a_key_without_its_colon_at_the_end_of_a_block_is_named() -> None:
    source = load_spec("solver_judge", ["episode=correct judge"])
    assert [fault.hint for fault in source.faults] == [
        "a colon or its space is missing: write correct: judge"
    ]


def test_two_mistakes_are_told_one_after_the_other() -> None:
    text = GOOD.replace("count: 2", "count 2").replace("needs: [solver]", "needs: [solver")
    assert parse_yaml(text, "x.yaml").faults[0].place.line == 7


@pytest.mark.parametrize("rest", [": y}", ", so, on}", " then: y}"])
def test_a_password_in_a_line_with_a_mistake_is_not_shown(rest: str) -> None:
    text = f"model: {{name: x, base_url: it is https://me:hunter22@host/v1{rest}"
    (fault,) = parse_yaml(text, "x.yaml").faults
    assert "hunter22" not in str(fault)
    assert "me" in str(fault)
