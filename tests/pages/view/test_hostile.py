"""Tests that text from models, tasks, tools and run names is escaped on the page and in the file."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolegraph.engine.records import Episode, Failure, FailureName, RunFolder, Step, Trajectory, read_episodes
from rolegraph.engine.records.episodes import write_episodes
from rolegraph.engine.shipped import BASE_NAME, MODELS
from rolegraph.pages.report.html import CHARTS
from rolegraph.pages.view.finding import EpisodeFilter
from rolegraph.pages.view.pages import HERE, write_static
from rolegraph.pages.view.runs import open_run
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import write_run

ATTACKS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onfocus="alert(1)" autofocus x="',
    "' onload='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- --><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "</pre></details></main><base href=//evil>",
    "]]>\x00\x1b[31m\u202e\ud800",
    "</title><textarea>",
)
HOSTILE = st.sampled_from(ATTACKS) | st.text(st.characters(codec="utf-8"), max_size=30)


def episode(texts: list[str]) -> Episode:
    """Return an episode with hostile text in every text field."""
    say = iter(texts)
    call = {"id": next(say), "type": "function", "function": {"name": next(say), "arguments": next(say)}}
    chat = [
        {"role": next(say), "content": next(say), "name": next(say)},
        {"role": "user", "content": next(say), "reasoning": next(say)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    step = Step(
        prompt_ids=[1],
        response_ids=[2, 3],
        logprobs=[-1.0, -2.0],
        chat_completions=chat,
        thought=next(say),
        action={next(say): next(say)},
        model_response=next(say),
        advantage=[0.5, -0.5],
        metadata={
            "finish_reason": next(say),
            "calls": [{"name": next(say), "error": next(say)}],
            "demonstration": {"text": next(say), "ids": []},
            "seconds": 0.5,
        },
    )
    failure = Failure(FailureName.MODEL_ERROR, next(say))
    solver = Trajectory(next(say), 1, [step], reward=1.0, terms={next(say): 0.5}, failure=failure)
    tool = Trajectory("picks", 1, [Step(model_response=next(say), metadata={"tool": next(say)})])
    task: dict[str, Any] = {"id": "t", "question": next(say), next(say): next(say)}
    failed = {"role": "solver", "index": 2, "name": next(say), "message": next(say)}
    return Episode(
        next(say),
        0,
        task,
        [solver, tool],
        metrics={next(say): 1.0},
        metadata={next(say): next(say), "failures": [failed]},
    )


def hostile_run(folder: Path, texts: list[str], name: str) -> Path:
    if not folder.exists():
        write_run(folder, tasks=1)
    run = RunFolder(folder)
    info = json.loads(run.info_file.read_text())
    info |= {"name": name, "hash": name, "model": name, "hidden": [], "roles": {name: {}}}
    run.info_file.write_bytes(json.dumps(info, ensure_ascii=False).encode("utf-8", "replace"))
    write_episodes(run.episodes, [episode(texts)])
    return folder


FIELDS = 40
TAGS = {
    *"html head meta title style body header main section nav form label input select option button".split(),
    *"h1 h2 h4 p a b span code kbd pre ol ul li dl dt dd div article details summary dialog script".split(),
    *"table thead tbody tr th td svg path rect text noscript time i wbr datalist".split(),
}


OWN = (HERE / "view.js").read_text()
LIVE = OWN + (HERE / "live.js").read_text() + CHARTS.read_text()


COPYING = OWN + (HERE / "json.js").read_text()


def harmless(text: str, own_script: str = OWN) -> Parsed:
    page = Parsed(text)
    assert set(page.tags) <= TAGS
    assert page.scripts == [own_script]
    assert not {name for name in page.attributes if name.startswith("on")}
    assert all(link.startswith(("/", "#")) for link in page.links)
    return page


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(HOSTILE, min_size=FIELDS, max_size=FIELDS), HOSTILE)
def test_hostile_text_in_every_field_stays_text(tmp_path: Path, texts: list[str], name: str) -> None:
    folder = hostile_run(tmp_path / "run", texts, name or "x")
    other = hostile_run(tmp_path / "other", texts, name or "x")
    harmless(get(f"/{KEY}/", folder, other).text, LIVE)
    harmless(get(f"/{KEY}/0", folder).text, LIVE)
    harmless(get(f"/{KEY}/0/episodes/0", folder).text, COPYING)
    harmless(get(f"/{KEY}/0/episodes/0/elsewhere", folder, other).text)
    harmless(get(f"/{KEY}/0/episodes/0/beside/1/episodes/0", folder, other).text)
    write_static([open_run(folder)], tmp_path / "one.html", hidden=True, where=EpisodeFilter())
    harmless((tmp_path / "one.html").read_text("utf-8"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_shown_as_it_was_written(tmp_path: Path, attack: str) -> None:
    folder = hostile_run(tmp_path / "run", [attack] * FIELDS, "solver_judge")
    text = get(f"/{KEY}/0/episodes/0", folder).text
    shown = harmless(text, COPYING).text
    seen = attack.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    assert shown.replace("\x00", "\ufffd").count(seen) > 5


@pytest.mark.parametrize("name", ["model", "./model", "run/../model", "FOLDER/model"])
def test_a_tokenizer_that_only_the_run_s_spec_names_is_not_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, model = write_run(tmp_path / "run", tasks=1), tmp_path / "model"
    model.mkdir()
    state = json.loads((MODELS[BASE_NAME] / "tokenizer.json").read_text())
    state["decoder"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": "forged"}
    (model / "tokenizer.json").write_text(json.dumps(state))
    run = RunFolder(folder)
    spec = yaml.safe_load(run.spec())
    spec["model"] = {"provider": "local", "name": name.replace("FOLDER", str(tmp_path))}
    run.spec_file.write_text(yaml.safe_dump(spec))
    write_static([open_run(folder)], tmp_path / "one.html", hidden=True, where=EpisodeFilter())
    step = next(read_episodes(run.episodes))["solver"][0].steps[0]
    for text in (get(f"/{KEY}/0/episodes/0", folder).text, (tmp_path / "one.html").read_text("utf-8")):
        assert "forged" not in text
        assert html.escape(step.model_response) in text
        assert "".join(f"{id} " for id in step.response_ids) in re.sub("<[^>]*>", "", text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_address_is_no_way_in_either(tmp_path: Path, attack: str) -> None:
    from urllib.parse import quote

    folder, other = (write_run(tmp_path / name, tasks=1) for name in ("run", "other"))
    written = quote(attack.encode("utf-8", "replace"))
    for query in (f"?{name}={written}" for name in ("text", "where", "role", "low", "task")):
        text = get(f"/{KEY}/0{query}", folder).text
        harmless(text, OWN if "Not shown" in text else LIVE)
    harmless(get(f"/{KEY}/?search={written}", folder, other).text, LIVE)
    for query in (f"?sort={written}", f"?pick={written}"):
        harmless(get(f"/{KEY}/{query}", folder, other).text)


def test_no_template_or_script_makes_markup_of_text() -> None:
    for file in HERE.glob("*.j2"):
        text = file.read_text()
        assert not re.search(r"\|\s*(safe|svg|tojson)|autoescape\s+false", text), file.name
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|XMLHttp", LIVE)
    assert "fetch" not in OWN
