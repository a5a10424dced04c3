"""Tests of the allowed places of a model's files: beside the spec, or anywhere for the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolegraph.engine.compile import check_source
from rolegraph.engine.compile.compiler import CompileResult
from rolegraph.engine.records import Source

SPEC = """rolegraph: 2
name: x
{top}
roles:
  a: {{prompt: hi, {role}}}
"""


def checked(
    folder: Path, *overrides: str, top: str = "", role: str = "parser: text", model: str | None = None
) -> CompileResult:
    path = folder / "x.yaml"
    path.write_text(SPEC.format(top=top, role=role))
    return check_source(Source.of(path, *overrides, model=model))


def names(compiled: CompileResult) -> list[str | None]:
    return [endpoint.model.name for endpoint in compiled.valid().endpoints]


@pytest.mark.parametrize("name", ["/dev/zero", "../other", "a/../../other", "link"])
@pytest.mark.parametrize("provider", ["replay", "local"])
@pytest.mark.parametrize(
    ("top", "role"),
    [
        ("model: {ref}", "parser: text"),
        ("model: {{provider: {provider}, name: {name}}}", "parser: text"),
        ("", "model: '{ref}'"),
        ("policies: {{main: {{}}, p: {{model: '{ref}'}}}}", "policy: p"),
    ],
)
def test_a_spec_names_no_file_outside_its_folder(
    tmp_path: Path, name: str, provider: str, top: str, role: str
) -> None:
    (tmp_path / "link").symlink_to("/dev")
    words = {"ref": f"{provider}:{name}", "provider": provider, "name": name}
    compiled = checked(tmp_path, top=top.format(**words), role=role.format(**words))
    fault = next(d for d in compiled.diagnostics if d.severity == "error")
    assert fault.message == f"{name} lies outside the spec's folder"
    assert fault.place.line in (3, 5)
    assert "--model" in fault.hint


def test_a_teacher_lies_there_too(tmp_path: Path) -> None:
    signal = "signal: {{reverse_kl: {{teacher: 'local:{0}'}}}}"
    compiled = checked(tmp_path, role=signal.format("/etc"))
    assert any(d.message == "/etc lies outside the spec's folder" for d in compiled.diagnostics)
    given = checked(tmp_path, "roles.a.signal={reverse_kl: {teacher: 'local:/etc'}}")
    assert not any("outside" in d.message for d in given.diagnostics)


def test_what_a_spec_names_is_found_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    beside = os.path.join(tmp_path.name, "runs/mine")  # noqa: PTH118  # as it is shown
    assert names(checked(tmp_path, top="model: replay:runs/mine")) == [beside]
    monkeypatch.chdir(tmp_path)
    assert names(checked(tmp_path, top="model: replay:runs/mine")) == ["runs/mine"]


def test_the_checkpoint_of_a_teacher_is_found_beside_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs" / "runs" / "mine").mkdir(parents=True)
    role = "signal: {reverse_kl: {teacher: {provider: local, checkpoint: 'runs/mine#solver'}}}"
    signal = checked(tmp_path / "specs", role=role).valid().signals["a"]
    (plan,) = signal.all_teachers
    assert plan.model is not None and plan.model.checkpoint == "specs/runs/mine#solver"


def test_the_shipped_models_and_what_is_served_elsewhere_are_no_files(tmp_path: Path) -> None:
    assert names(checked(tmp_path, top="model: local:rolegraph-teacher")) == ["rolegraph-teacher"]
    served = "model: {provider: local, name: /any, base_url: 'http://127.0.0.1:1'}"
    assert names(checked(tmp_path, top=served)) == ["/any"]


def test_the_command_line_may_name_any(tmp_path: Path) -> None:
    outside = "model: replay:/dev/zero"
    assert names(checked(tmp_path, top=outside, model="replay:/a")) == ["/a"]
    assert names(checked(tmp_path, "model=replay:/b", top=outside)) == ["/b"]
    assert names(checked(tmp_path, "model.name=/c", top=outside)) == ["/c"]
    still = checked(tmp_path, "model.concurrency=3", top=outside)
    assert "outside" in still.diagnostics[0].message
