"""Tests of the spec loader: source places, `extends` and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.spec.loader import load_spec
from tests.edge import write_spec


def test_the_shipped_specs_are_found_by_name() -> None:
    loaded = load_spec("solver_judge")
    assert list(loaded.spec.roles) == ["solver", "judge"]
    assert loaded.diagnostics == []


def test_a_misspelt_spec_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean solver_judge"):
        load_spec("solver_jugde")


def test_extends_merges_mappings_and_keeps_the_order_of_roles(tmp_path: Path) -> None:
    path = write_spec(
        tmp_path, "extends: solver_judge.yaml\nroles: {solver: {count: 5}, third: {prompt: solver.j2}}"
    )
    spec = load_spec(path).spec
    assert list(spec.roles) == ["solver", "judge", "third"]
    assert spec.roles["solver"].count == 5
    assert spec.roles["solver"].parser.name == "tag"


def test_null_removes_a_key_of_the_extended_spec(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "extends: solver_judge.yaml\nroles: {judge: null}\nepisode: null")
    spec = load_spec(path).spec
    assert list(spec.roles) == ["solver"]
    assert spec.episode.correct == []


def test_null_leaves_nothing_where_the_extended_spec_has_nothing_either(tmp_path: Path) -> None:
    roles = "roles: {a: {prompt: Hi}}"
    write_spec(tmp_path, f"rolegraph: 2\nname: base\n{roles}", "base.yaml")
    text = "extends: base.yaml\ndata: {hidden: null}\nroles: {a: {sampling: {seed: null, top_p: null}}}"
    loaded = load_spec(write_spec(tmp_path, text))
    assert loaded.diagnostics == []
    assert loaded.data["data"] == {}
    assert loaded.data["roles"]["a"]["sampling"] == {}


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000, "a\\0b", "b/" * 3000])
def test_a_name_that_no_file_can_have_is_no_spec_to_extend(tmp_path: Path, name: str) -> None:
    (fault,) = load_spec(write_spec(tmp_path, f'extends: "{name}"')).faults
    assert fault.place.line == 1
    assert "extend" in fault.message


def test_a_link_that_leads_to_itself_is_no_spec_to_extend(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (fault,) = load_spec(write_spec(tmp_path, "extends: loop.yaml")).faults
    assert fault.message == "there is no spec 'loop.yaml' to extend"


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a" * 300 + "/b.yaml"])
def test_a_name_that_no_file_can_have_is_no_spec_to_load(name: str) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        load_spec(name)


def test_needs_are_one_value_and_loops_merge_by_key(tmp_path: Path) -> None:
    base = "rolegraph: 2\nname: b\nroles:\n  a: {prompt: a}\n  b: {prompt: b}\n"
    base += "  c: {prompt: c, needs: {a: each, b: branch}}\nloops: {l: {roles: [a], times: 2}}\n"
    write_spec(tmp_path, base, "base.yaml")
    text = "extends: base.yaml\nroles: {c: {needs: {b: previous}}}\n"
    text += "loops: {l: {times: 5}, m: {roles: b, times: 2}}"
    spec = load_spec(write_spec(tmp_path, text)).spec
    assert [*spec.roles["c"].needs] == ["b"]
    assert (spec.loops["l"].roles, spec.loops["l"].times, spec.loops["m"].roles) == (["a"], 5, ["b"])


def test_a_parser_is_replaced_whole_and_never_mixed_with_the_one_it_replaces(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "extends: solver_judge.yaml\nroles: {solver: {parser: {regex: 'x(.*)'}}}")
    parser = load_spec(path).spec.roles["solver"].parser
    assert (parser.name, parser.options) == ("regex", {})


def test_a_fault_in_an_extended_spec_is_placed_in_its_own_file(tmp_path: Path) -> None:
    write_spec(tmp_path, "rolegraph: 2\nname: base\nroles: {a: {prompt: x, cuont: 2}}", "base.yaml")
    child = write_spec(tmp_path, "extends: base.yaml\nroles: {a: {count: 0}}", "child.yaml")
    places = [(Path(d.place.file).name, d.place.line, d.message) for d in load_spec(child).faults]
    assert places == [("base.yaml", 3, "unknown key 'cuont'"), ("child.yaml", 2, "count cannot be 0")]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("roles.solver.count=4", 4),
        ("roles.solver.sampling.temperature=0.5", 0.5),
        ("roles.judge.parser.default=none of them", "none of them"),
        ("roles.judge.needs=[solver]", ["solver"]),
        ("description=yes", "yes"),
        ("roles.solver.timeout=1e-1", 0.1),
    ],
)
def test_an_override_sets_one_value(override: str, value: object) -> None:
    loaded = load_spec("solver_judge", [override])
    assert loaded.diagnostics == []
    at: object = loaded.data
    for key in override.partition("=")[0].split("."):
        at = at[key]
    assert at == value


def test_an_override_can_give_an_option_to_an_item_written_as_a_bare_name() -> None:
    loaded = load_spec("solver_judge", ["roles.solver.estimator.std=false"])
    assert loaded.spec.roles["solver"].estimator is not None
    assert loaded.spec.roles["solver"].estimator.options == {"std": False}


@pytest.mark.parametrize(
    ("overrides", "path", "value"),
    [
        (
            ["model=openai:m", "model.base_url=http://x/v1"],
            "model",
            {"provider": "openai", "name": "m", "base_url": "http://x/v1"},
        ),
        (
            ["roles.judge.model=openai:m", "roles.judge.model.base_url=http://x/v1"],
            "roles.judge.model",
            {"provider": "openai", "name": "m", "base_url": "http://x/v1"},
        ),
        (["roles.solver.prompt=judge.j2"], "roles.solver.prompt", "judge.j2"),
        (["roles.solver.system=a.j2", "roles.solver.system=b.j2"], "roles.solver.system", "b.j2"),
        (
            ["train.schedule=cosine", "train.schedule.warmup=5"],
            "train.schedule",
            {"kind": "cosine", "warmup": 5},
        ),
    ],
)
def test_an_override_of_a_part_keeps_the_rest_of_a_value_written_in_short(
    overrides: list[str], path: str, value: object
) -> None:
    loaded = load_spec("solver_judge", overrides)
    assert loaded.diagnostics == []
    at: object = loaded.data
    for key in path.split("."):
        at = at[key]
    assert at == value


def test_an_override_of_a_role_that_is_not_there_makes_none(tmp_path: Path) -> None:
    roles = "roles: {writer: {prompt: Hi}}"
    path = write_spec(tmp_path, f"rolegraph: 2\nname: x\n{roles}")
    loaded = load_spec(path, ["roles.writr.count=2"])
    (fault,) = loaded.faults
    assert (fault.message, fault.expected, fault.hint) == (
        "no role 'writr'",
        "one of writer",
        "did you mean 'writer'?",
    )
    assert (fault.place.column, fault.place.width) == (7, 5)
    assert list(loaded.spec.roles) == ["writer"]
    added = load_spec(path, ["roles.judge={prompt: Hi}", "roles.judge.count=2"])
    assert added.diagnostics == []
    assert added.spec.roles["judge"].count == 2


@pytest.mark.parametrize("roles", ["5", "{}"])
def test_where_there_are_no_roles_none_is_named(tmp_path: Path, roles: str) -> None:
    loaded = load_spec(
        write_spec(tmp_path, f"rolegraph: 2\nname: x\nroles: {roles}"), ["roles.writer.count=2"]
    )
    (expected,) = [fault.expected for fault in loaded.faults if fault.message == "no role 'writer'"]
    assert expected == "a role of the spec, which has none"


def test_a_bad_override_hides_no_other_fault(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "rolegraph: 2\nname: x\nroles: {a: {prompt: Hi, cuont: 2}}")
    messages = [fault.message for fault in load_spec(path, ["roles.b.count=2", "train.steps=0"]).faults]
    assert sorted(messages) == ["no role 'b'", "steps cannot be 0", "unknown key 'cuont'"]


def test_an_empty_override_removes_the_key() -> None:
    assert load_spec("solver_judge", ["roles.solver.estimator="]).spec.roles["solver"].estimator is None


def test_a_wrong_override_is_placed_on_the_command_line() -> None:
    (fault,) = load_spec("solver_judge", ["roles.solver.cuont=4"]).faults
    assert (fault.place.file, fault.hint) == ("command line", "did you mean 'count'?")
    assert fault.place.text == "roles.solver.cuont=4"


def test_numbers_and_booleans_follow_yaml_1_2(tmp_path: Path) -> None:
    text = "rolegraph: 2\nname: plain\ndescription: no\nroles: {a: {prompt: on, timeout: 1e3}}"
    spec = load_spec(write_spec(tmp_path, text)).spec
    assert (spec.description, spec.roles["a"].prompt, spec.roles["a"].timeout) == ("no", "on", 1000.0)


def test_of_a_file_that_cannot_be_read_nothing_more_is_said_whatever_is_overridden(tmp_path: Path) -> None:
    loaded = load_spec(write_spec(tmp_path, "a: ["), ["train.steps=0"])
    assert [fault.message for fault in loaded.faults] == [
        "not valid YAML: a value is missing, or a bracket is not closed"
    ]


def test_where_the_extended_spec_cannot_be_read_the_rest_still_is(tmp_path: Path) -> None:
    write_spec(tmp_path, "a: [", "base.yaml")
    child = write_spec(tmp_path, "extends: base.yaml\nroles: {a: {cuont: 2}}", "child.yaml")
    places = [(Path(fault.place.file).name, fault.place.line) for fault in load_spec(child).faults]
    assert places == [("base.yaml", 1), ("child.yaml", 2)]


ELSEWHERE = "http://10.0.0.1:8000/v1"
SERVED = "model: {provider: openai, name: a, base_url: 'http://10.0.0.1:8000/v1', concurrency: 8}\n"


def served(tmp_path: Path, roles: str = "{}") -> Path:
    return write_spec(tmp_path, f"extends: solver_judge.yaml\n{SERVED}roles: {roles}\n")


def test_another_model_of_the_provider_keeps_the_specs_endpoint(tmp_path: Path) -> None:
    model = load_spec(served(tmp_path), model="openai:x").spec.model
    assert (model.name, model.base_url, model.concurrency) == ("x", ELSEWHERE, 8)


def test_a_model_of_another_provider_keeps_how_it_is_asked_and_not_where(tmp_path: Path) -> None:
    model = load_spec(served(tmp_path), ["model.replay_any=true"], model="replay:x.jsonl").spec.model
    assert (model.base_url, model.concurrency, model.replay_any) == (None, 8, True)


@pytest.mark.parametrize("word", ["model={provider: tinker, checkpoint: runs/x}", "model.checkpoint=runs/x"])
def test_another_model_keeps_the_checkpoint_that_is_given(word: str, tmp_path: Path) -> None:
    model = load_spec(served(tmp_path), [word], model="tinker:b").spec.model
    assert (model.name, model.checkpoint) == ("b", "runs/x")


def test_what_another_model_keeps_is_at_fault_where_it_was_written(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "extends: solver_judge.yaml\nmodel: {name: a, concurrency: 0}\n")
    (fault,) = load_spec(path, model="local:b").faults
    place = (Path(fault.place.file).name, fault.place.line, fault.place.column)
    assert (fault.message, place) == ("concurrency cannot be 0", ("spec.yaml", 2, 31))


@pytest.mark.parametrize("name", ["a #b", "a: b", "{a"])
def test_the_name_of_a_model_is_taken_as_it_is(name: str) -> None:
    assert load_spec("solver_judge", model=f"openai:{name}").spec.model.name == name


def test_a_wrong_flag_is_placed_at_what_was_given_for_it(tmp_path: Path) -> None:
    for spec in ("solver_judge", served(tmp_path)):
        place = load_spec(spec, model="bedrock:x").faults[0].place
        shown = place.text[place.column - 1 :][: place.width]
        assert (place.file, place.text, shown) == ("command line", "--model bedrock:x", "bedrock:x")


def test_a_model_that_keeps_nothing_is_written_in_short(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "extends: solver_judge.yaml\nmodel: {provider: tinker, name: a}\n")
    assert load_spec(path, model="openai:x").data["model"] == "openai:x"
    assert load_spec(path, model="openai:x").data == load_spec(path, ["model=openai:x"]).data


def test_an_endpoint_reaches_the_roles_own_models_of_its_provider_that_have_none(tmp_path: Path) -> None:
    own = "{solver: {model: openai:b}, judge: {model: {provider: openai, base_url: 'http://10.0.0.2'}}}"
    spec = load_spec(served(tmp_path, own), base_url="http://10.0.0.3").spec
    urls = [spec.model, *(role.model for role in spec.roles.values())]
    assert [ref and ref.base_url for ref in urls] == ["http://10.0.0.3", "http://10.0.0.3", "http://10.0.0.2"]
    other = load_spec(served(tmp_path, "{judge: {model: tinker:b}}"), base_url="http://10.0.0.3").spec
    assert other.roles["judge"].model == ModelRef(provider="tinker", name="b")


def test_an_endpoint_of_the_default_model_reaches_models_of_tinker(tmp_path: Path) -> None:
    path = write_spec(tmp_path, "extends: solver_judge.yaml\nroles: {judge: {model: tinker:b}}\n")
    spec = load_spec(path, base_url="http://10.0.0.3").spec
    assert spec.roles["judge"].model == ModelRef(provider="tinker", name="b", base_url="http://10.0.0.3")
