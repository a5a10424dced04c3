"""From a prompt as a spec names it to a checked template, or to findings in the template's own lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.limits.specs import SPEC_BYTES
from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.templates import Template, compile_template
from rolegraph.engine.records.files import is_file, is_no_file, is_same
from rolegraph.engine.shipped import PROMPTS
from rolegraph.engine.spec import Finding, Path, PromptSource
from rolegraph.engine.spec.diagnostics import point_at
from rolegraph.engine.spec.files import names_in, shown_path
from rolegraph.engine.spec.files import read_text as read_text_of


def read_template(
    path: Path, source: PromptSource, folders: Sequence[FilePath], around: TemplateScope
) -> tuple[Template | None, list[Finding]]:
    """Read and compile a template that a spec names or holds: a template, or None and findings.

    Args:
        path: Key of the spec where the template is named.
        source: The template's file name, or its text.
        folders: The spec's folder first, then the folders of the specs that it extends.
        around: Names that the template may use.
    """
    if (source.file is None) == (source.inline is None):
        return None, [Finding(path, "a prompt is one template", "a file's name, or {inline: text}")]
    if source.inline is not None:
        return read_text((*path, "inline"), source.inline, around)
    file, findings = _find(path, source.file or "", folders)
    if file is None:
        return None, findings
    name = shown_path(file)
    if any(is_same(file, labelled) for labelled in around.label_files):
        message = f"{name} would leak the label: it holds the tasks, with hidden fields"
        return None, [Finding(path, message, "a file with a template's text")]
    try:
        text = read_text_of(file, SPEC_BYTES)
    except OSError as error:
        return None, [Finding(path, f"cannot read {name}: {error.strerror}")]
    except UnicodeDecodeError:
        return None, [Finding(path, f"cannot read {name}: it is not UTF-8 text")]
    template, faults = compile_template(text, around)
    return template and replace(template, file=name), [
        Finding(path, fault.message, hint=fault.hint, place=point_at(name, text, fault.at, fault.word))
        for fault in faults
    ]


def read_text(path: Path, source: str, around: TemplateScope) -> tuple[Template | None, list[Finding]]:
    """Compile the template or condition at `path` of a spec: a template, or None and findings."""
    template, faults = compile_template(source, around)
    return template, [Finding(path, f.message, hint=f.hint, word=f.word, offset=f.at) for f in faults]


def _find(path: Path, name: str, folders: Sequence[FilePath]) -> tuple[FilePath | None, list[Finding]]:
    """Look a template up beside the spec, in `prompts/` there or one folder up, then among the shipped."""
    beside = [
        place for folder in folders for place in (folder, folder / "prompts", folder.parent / "prompts")
    ]
    places = [*dict.fromkeys((*beside, PROMPTS))]
    if FilePath(name).is_absolute() or ".." in FilePath(name).parts:
        expected = "a file name, looked up beside the spec and in prompts/"
        return None, [Finding(path, f"the template {name!r} lies outside the spec's folders", expected)]
    for place in places:
        file = place / name
        if is_file(file) and file.resolve().is_relative_to(place.resolve()):
            return file, []
    if any(is_no_file(place / name) for place in places):
        return None, [Finding(path, f"the template {name!r} is not a file", "a file with a template's text")]
    hint = did_you_mean(name, names_in(places, "*.j2"))
    if not hint and re.search(r"\s|{[{%]", name):
        hint = "for the text itself, write `{inline: …}`"
    return None, [Finding(path, f"no template {name!r}", "a file beside the spec or in prompts/", hint)]
