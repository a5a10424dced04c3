"""Tests of the YAML reader: source places, merge keys, and limits against malicious input."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

import rolegraph as rg
from rolegraph.engine.compile import check_file
from rolegraph.engine.spec.loader import load_spec
from rolegraph.engine.spec.schema import json_schema
from rolegraph.engine.spec.yaml_source import parse_yaml
from tests.edge import write_spec


def data_of(text: str) -> object:
    source = parse_yaml(text, "x.yaml")
    assert source.faults == []
    return source.data


def fault_of(text: str) -> tuple[str, int, int]:
    (fault,) = parse_yaml(text, "x.yaml").faults
    return fault.message, fault.place.line, fault.place.column


def test_a_merge_key_brings_what_the_mapping_does_not_say_itself() -> None:
    text = "a: &a {count: 2, timeout: 5}\nb: {<<: *a, timeout: 9}\nc: {timeout: 9, <<: *a}"
    data = data_of(text)
    assert data == {
        "a": {"count": 2, "timeout": 5},
        "b": {"count": 2, "timeout": 9},
        "c": {"timeout": 9, "count": 2},
    }


def test_of_several_merged_mappings_the_first_counts_and_they_may_merge_others() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2, z: 2}\nc: {<<: [*b, {z: 3, w: 3}]}"
    assert data_of(text)["c"] == {"x": 1, "y": 2, "z": 2, "w": 3}


def test_keys_stay_in_the_order_of_writing_so_that_an_item_s_first_key_is_still_its_name() -> None:
    text = "a: &a {tag: answer, keep_tag: true}\nb: {<<: *a, tag: verdict}\nc: {choice: solver, <<: *a}"
    data = data_of(text)
    assert list(data["b"]) == ["tag", "keep_tag"]
    assert list(data["c"]) == ["choice", "tag", "keep_tag"]


def test_roles_may_share_what_they_have_in_common(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: shared
roles:
  solver: &common {prompt: Hi, timeout: 5}
  judge: {<<: *common, needs: solver, timeout: 9}
"""
    loaded = load_spec(write_spec(tmp_path, text))
    assert loaded.diagnostics == []
    assert [role.timeout for role in loaded.spec.roles.values()] == [5, 9]


def test_a_fault_in_what_is_merged_is_shown_where_it_is_written(tmp_path: Path) -> None:
    text = """rolegraph: 2
name: shared
roles:
  solver: {<<: {cuont: 2}, prompt: Hi}
"""
    (fault,) = load_spec(write_spec(tmp_path, text)).diagnostics
    assert (fault.message, fault.place.line, fault.place.column) == ("unknown key 'cuont'", 4, 17)


@pytest.mark.parametrize("merged", ["5", "text", "[1]", "null", "[[]]"])
def test_only_mappings_can_be_merged(merged: str) -> None:
    assert fault_of(f"a: {{<<: {merged}}}")[0] == "`<<` merges mappings"


def test_a_second_merge_key_is_a_key_twice() -> None:
    assert fault_of("a: &a {x: 1}\nb: {<<: *a, <<: *a}") == ("duplicate key '<<'", 2, 13)


BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 20)}]}}\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
DEEP = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: *a{n}}}\n" for n in range(500))


@pytest.mark.parametrize("text", [BOMB, DEEP])
def test_merge_keys_that_make_work_without_end_are_refused(text: str) -> None:
    assert fault_of(text)[0] == "nested too deeply, or aliases that grow too large"


@pytest.mark.parametrize(
    ("text", "column"), [("a: &a {<<: *a}", 8), ("a: &a {x: {<<: *a}}", 12), ("a: &a {x: *a}", 8)]
)
def test_an_alias_inside_of_what_it_repeats_is_shown_where_it_is(text: str, column: int) -> None:
    message, *place = fault_of(text)
    assert message.startswith("an alias of the mapping that the alias stands in")
    assert place == [1, column]


def test_a_character_that_yaml_has_not_is_named_and_pointed_at() -> None:
    assert fault_of("a: 1\nbc: \x07") == ("not valid YAML: character U+0007 is not allowed", 2, 5)
    assert fault_of("\x00")[1:] == (1, 1)
    assert fault_of("a: 1\n\n\x07")[1:] == (3, 1)


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    assert fault_of("a: 'b\u2028 c'\nx: 1\nx: 2")[1:] == (3, 1)
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfrolegraph: 3\nname: x\nroles: {a: {prompt: Hi}}")
    (fault,) = load_spec(path).faults
    assert (fault.place.line, fault.place.column, fault.place.text) == (1, 12, "rolegraph: 3")


def test_what_is_wrong_at_the_end_is_in_the_last_line() -> None:
    assert fault_of("a: [") == fault_of("a: [\n")
    assert fault_of("a: [")[1:] == (1, 5)


def test_a_file_of_other_bytes_than_text_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\x00rolegraph")
    (fault,) = load_spec(path).faults
    assert fault.message == "not valid YAML: not UTF-8 text"


@pytest.mark.parametrize("written", [r'"\ud83d\ude00"', r'"\uD83D\uDE00"', r'"\U0001f600"', "😀"])
def test_an_emoji_as_json_escapes_it_is_one_character_in_values_and_keys(written: str) -> None:
    assert data_of(f"{{a: {written}, {written}: [{written}]}}") == {"a": "😀", "😀": ["😀"]}


@pytest.mark.parametrize("written", [r'"\ud83d"', r'"\ude00\ud83d"', r'"\ud83d \ude00"'])
def test_an_unpaired_surrogate_is_still_refused(written: str) -> None:
    assert fault_of(f"a: {written}") == ("this value cannot be read", 1, 4)


SAY = '{{rolegraph: 2, name: t, roles: {{a: {{prompt: "{}"}}}}}}'


def test_an_emoji_is_read_in_overrides_prompts_and_template_literals(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SAY.format(r"\ud83d\ude00{{ '\\ud83d\\ude00' }}"))
    loaded = rg.load(spec, r'description="\ud83d\ude00"')
    assert loaded.plan.spec.description == "😀"
    template = loaded.plan.roles[0].prompt
    assert template is not None
    assert template.render({"task": {}}) == "😀😀"


def test_a_fault_behind_an_emoji_is_pointed_at(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SAY.format(r"\ud83d\ude00 {{ tsk.say }}"))
    (fault,) = check_file(spec).diagnostics
    assert fault.place.text[fault.place.column - 1 :].startswith("tsk")


ANCHORED = """rolegraph: 2
name: t
x-common: &common {reward: "1"}
roles: {a: {<<: *common, prompt: Hi}}
"""


def test_top_level_keys_that_begin_with_x_hold_anchors(tmp_path: Path) -> None:
    base = write_spec(tmp_path, ANCHORED)
    assert load_spec(base).faults == []
    assert "x-common" not in load_spec(base).data
    assert load_spec(base).spec.roles["a"].reward is not None
    assert not [*Draft7Validator(json_schema()).iter_errors(yaml.safe_load(ANCHORED))]  # pyright: ignore[reportUnknownMemberType]
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: {base.name}\nname: c\nx-more: [1]\n", "utf-8")
    assert load_spec(child).faults == []
    assert not [key for key in load_spec(child).data if key.startswith("x-")]
    assert not [*Draft7Validator(json_schema()).iter_errors(yaml.safe_load(child.read_text("utf-8")))]  # pyright: ignore[reportUnknownMemberType]


def test_what_anchors_hold_is_data_and_an_override_of_one_is_refused(tmp_path: Path) -> None:
    assert fault_of("x-a: !tag 1") == ("the tag '!tag' is not allowed", 1, 6)
    (fault,) = load_spec(write_spec(tmp_path, ANCHORED), ["x-common.reward=null"]).faults
    assert "x-common" in fault.message
