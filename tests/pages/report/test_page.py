"""Tests that the report is one file that loads nothing and escapes all text of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.pages.report import write_report
from rolegraph.pages.report.charts import MOST_BARS
from tests.pages.report.runs import rollout, write_episodes, write_lines, write_run

HOSTILE = '</pre></details><script>alert(1)</script><img src=x onerror="alert(1)">{{ 7 * 7 }} \x00 ‮'
LOADS = ("src", "href", "srcset", "data", "action", "poster", "xlink:href", "background")
EMPTY = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Parser of a page's tags, of the resources that the page would load, and of unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name in LOADS and not (value or "").startswith("#"):
                self.loads.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_startendtag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def section(text: str, anchor: str) -> str:
    found = re.search(rf'<section id="{anchor}">.*?</section>', text, re.DOTALL)
    return found[0] if found else ""


def figure(text: str, title: str) -> str:
    """Return the chart with a title, including its caption, or an empty string if the page has none."""
    charts = re.findall(r"<figure[^>]*>.*?</figure>", text, re.DOTALL)
    return next((chart for chart in charts if f"<b>{title}</b>" in chart), "")


def drawings(text: str) -> list[str]:
    """Return each `<svg>` element of a page with the plot inside of it."""
    return re.findall(r"<svg(?:(?!</?svg).|<svg[^>]*>(?:(?!</?svg).)*</svg>)*</svg>", text, re.DOTALL)


def role(text: str, name: str) -> str:
    """Return the words of a role's card."""
    cards = re.findall(r'<article class="role">(.*?)</article>', text, re.DOTALL)
    plain = [" ".join(unescape(re.sub("<[^>]+>", " ", card)).split()) for card in cards]
    return next(card for card in plain if card.startswith(f"{name} "))


def legend(text: str, title: str) -> list[str]:
    return re.findall(r"</i>(.*?)</li>", figure(text, title))


def hover(text: str, title: str) -> list[str]:
    """Return a chart's tooltip for each step."""
    (places,) = re.findall(r'data-hover="(.*?)"', figure(text, title))
    return [said for _, said in json.loads(unescape(places))]


def test_the_page_shows_the_run_from_its_header_to_its_spec(tmp_path: Path) -> None:
    text = page(write_run(tmp_path / "run", seed=3))
    for words in (
        "solver_judge",
        "seed 3",
        "rolegraph-base",
        "1f0c9a7e2b",
        "4 of 4",
        "Best validation: step 4, the last",
    ):
        assert words in text
    for anchor in ("learning", "rewards", "groups", "optimization", "failures", "barren", "episodes", "rest"):
        assert section(text, anchor), anchor
        assert f'href="#{anchor}"' in text
    assert "Signal reverse_kl: judge" in section(text, "optimization")
    both = "Standard deviation of both parts of the advantage: solver"
    assert both in section(text, "optimization") and "Signal advantage/std" not in text
    assert "malformed output" in section(text, "failures")
    assert "What is hard?" in section(text, "barren")
    assert "asked of judge 1" in section(text, "episodes")
    assert "solver: {count: 2, " in section(text, "rest")


def test_the_report_opens_with_what_each_role_learnt(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    info = json.loads((folder / "run.json").read_text())
    info["roles"]["judge"]["trainable"] = False
    (folder / "run.json").write_text(json.dumps(info))
    page = write_report(folder).read_text()
    solver, judge = role(page, "solver"), role(page, "judge")
    assert "4 of 12 groups" in solver and "4 too easy" in solver and "4 too hard" in solver
    assert "mean reward in validation, step 0 to 4, 6 rewards" in solver
    assert "not trained" in judge


def test_the_report_has_no_commands(tmp_path: Path) -> None:
    assert "rolegraph view" not in write_report(write_run(tmp_path / "run")).read_text()


def test_a_tie_that_moved_the_weights_taught_nothing_and_is_called_so_everywhere(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=1)
    tied = [rollout("tied", at, [1.0], advantage=1.0) for at in range(2)]
    told = [rollout("told", at, [float(at)], advantage=float(at)) for at in range(2)]
    write_episodes(folder, "train", 1, [*tied, *told])
    text = unescape(write_report(folder).read_text())
    assert "1 of 2 groups had unequal advantages (1 equal rewards)" in role(text, "solver")
    assert "every group moved the weights" in section(text, "barren")
    assert not any(word in text for word in ("learnt from", "nonzero advantage"))


def test_a_role_whose_answers_all_failed_is_not_called_too_hard(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=1)
    failed = [rollout("t", at, [0.0], advantage=0.0, failed=True) for at in range(4)]
    write_episodes(folder, "train", 1, failed)
    solver = role(write_report(folder).read_text(), "solver")
    assert "4 of 4 answers failed" in solver and "no answer was usable" in solver and "too hard" not in solver


def test_the_page_loads_nothing_and_all_its_tags_are_closed(tmp_path: Path) -> None:
    text = page(write_run(tmp_path / "run"))
    read = Page(text)
    assert (read.loads, read.handlers, read.open) == ([], [], [])
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, which nothing loads
    assert "http://" not in text
    assert "https://" not in text


def test_every_chart_is_well_formed(tmp_path: Path) -> None:
    charts = drawings(page(write_run(tmp_path / "run")))
    assert len(charts) >= 14
    for chart in charts:
        ElementTree.fromstring(chart)


def test_text_of_models_tasks_and_files_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    calm = Page(page(folder))
    info = json.loads((folder / "run.json").read_text())
    for key in ("name", "hash", "model", "version"):
        info[key] = HOSTILE
    info["metrics"].append(HOSTILE)
    info["roles"]["judge"]["estimator"] = HOSTILE
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "spec.yaml").write_text(HOSTILE)
    control = {"name": HOSTILE, "figure": "judge_acc", "mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    (folder / "controls.json").write_text(json.dumps([control]))
    with (folder / "metrics.jsonl").open("a") as file:
        names = (HOSTILE, f"validation/{HOSTILE}", f"failures/solver/{HOSTILE}", f"signal/judge/{HOSTILE}")
        file.write(json.dumps({"step": 3} | dict.fromkeys(names, 1)) + "\n")
    write_episodes(folder, "train", 4, [rollout(HOSTILE, at, [0.0, 0.0], text=HOSTILE) for at in range(2)])
    text = page(folder)
    read = Page(text)
    assert read.tags.count("script") == calm.tags.count("script") == 1
    assert "img" not in read.tags
    assert (read.loads, read.handlers, read.open) == ([], [], [])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in section(text, "episodes")
    assert "{{ 7 * 7 }}" in text
    for chart in drawings(text):
        ElementTree.fromstring(chart)


def test_the_policy_names_the_one_script_by_its_hash(tmp_path: Path) -> None:
    import base64
    import hashlib

    text = page(write_run(tmp_path / "run"))
    script = text[text.index("<script>") + len("<script>") : text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest.replace('+', '&#43;')}'" in text or f"'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_a_killed_run_has_a_report_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=3, planned=9)
    for path in (folder / "metrics.jsonl", folder / "episodes" / "train-000003.jsonl"):
        path.write_bytes(path.read_bytes()[:-40])
    text = page(folder)
    assert re.search(r"2 of 9\s*<span class=\"chip warn\">not finished", text)


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=0, planned=9)
    (folder / "metrics.jsonl").write_text("")
    text = page(folder)
    assert "No step is finished yet" in text
    assert not Page(text).open


def test_a_run_without_validation_shows_its_batches(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": n, "episode/judge_acc": n / 4} for n in range(1, 5)])
    text = page(folder)
    assert "Best training batch: step 4, the last" in text
    assert "judge_acc" in section(text, "learning")


def test_any_single_figure_alone_makes_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for key in sorted({key for line in lines for key in line} - {"step"}):
        write_lines(folder / "metrics.jsonl", [{"step": n, key: 0.5} for n in range(1, 3)])
        assert not Page(page(folder)).open, key


def test_figures_that_no_chart_shows_are_in_a_table(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": n, "strange/thing": n * 10} for n in range(1, 4)])
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", section(page(folder), "rest"))]
    assert cells == ["strange/thing", "10", "30", "10", "30"]


def test_controls_are_shown_with_their_intervals(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    control = {"name": "untrained", "figure": "judge_acc", "mean": 0.45, "low": 0.4, "high": 0.5, "n": 512}
    (folder / "controls.json").write_text(json.dumps([control]))
    learning = section(page(folder), "learning")
    assert "[0.400, 0.500]" in learning
    assert learning.count('<svg class="interval') == 1


def test_the_verdict_says_whether_a_role_alone_is_ahead_of_the_workflow(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    names = ("untrained workflow", "trained solver alone", "trained workflow")
    controls = [
        {"name": name, "figure": "correct", "mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 64}
        for name, mean in zip(names, (0.2, 0.8, 0.6), strict=True)
    ]
    (folder / "controls.json").write_text(json.dumps(controls))
    assert "The trained solver alone is ahead of the workflow : 0.800 against 0.600 (correct)" in verdict(
        page(folder)
    )
    controls[1]["mean"] = 0.5
    (folder / "controls.json").write_text(json.dumps(controls))
    text = page(folder)
    assert "The workflow is ahead of the trained solver alone: 0.600 against 0.500 (correct)" in verdict(text)
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="flow"' in section(text, "workflow")


def test_advantages_for_each_token_are_shown_by_their_mean_and_ends(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    episode = rollout("t", 0, [1.0])
    data = episode.to_dict()
    data["trajectories"][0]["steps"][0]["advantage"] = [0.5, -0.25, 0.5]
    (folder / "episodes" / "train-000004.jsonl").write_text(json.dumps(data) + "\n")
    assert "advantage mean +0.250, tokens −0.250 to +0.500" in page(folder)


def test_a_sample_says_which_instance_it_is_shown_for_and_by_what(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    episode = rollout("t", 0, [0.0, 1.0], advantage=-0.5)
    data = episode.to_dict()
    data["trajectories"][1]["steps"][0]["advantage"] = 1.5
    (folder / "episodes" / "train-000004.jsonl").write_text(json.dumps(data) + "\n")
    write_episodes(folder, "validation", 4, [rollout("v", 0, [0.0, 1.0])])
    badges = re.findall(r'<span class="chip">((?:best|worst).*?)</span>', section(page(folder), "episodes"))
    assert badges == [
        "best: solver 2, advantage +1.5",
        "best: judge, advantage −0.500",
        "worst: solver 1, advantage −0.500",
        "worst: judge, advantage −0.500",
        "best: solver 2, reward 1",
        "best: judge, reward 0",
        "worst: solver 1, reward 0",
        "worst: judge, reward 0",
    ]


def test_each_token_of_a_trajectory_counts_the_same_in_its_advantage(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    data = rollout("t", 0, [1.0]).to_dict()
    (step,) = data["trajectories"][0]["steps"]
    whole, cut = step | {"advantage": 1.0}, step | {"advantage": [-1.0], "response_ids": [3]}
    data["trajectories"][0]["steps"] = [whole, cut]
    (folder / "episodes" / "train-000004.jsonl").write_text(json.dumps(data) + "\n")
    assert "advantage mean +0.500, tokens −1 to +1" in page(folder), "three tokens of +1, one of −1"


def test_tokens_of_a_response_are_told_apart_from_those_of_a_batch(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(
        folder / "metrics.jsonl", [{"step": 1, "tokens/response": 720, "tokens/per_response/judge": 5}]
    )
    mean, batch = "Mean tokens of a response", "Response tokens of a batch"
    assert "5" in hover(page(folder), mean)[0].split()
    assert "720" in hover(page(folder), batch)[0].split()
    write_lines(folder / "metrics.jsonl", [{"step": 1, "tokens/response": 720}])
    assert not figure(page(folder), mean), "an older run wrote no mean"
    assert figure(page(folder), batch)


def test_shares_of_groups_are_of_the_advantages_that_training_used(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    tasks = {"learnt": (1.0, 1.0), "known": (1.0, 0.0), "unknown": (0.0, 0.0), "half": (0.5, 0.0)}
    episodes = [rollout(task, 0, [reward], advantage=value) for task, (reward, value) in tasks.items()]
    write_episodes(folder, "train", 1, episodes)
    shares = "step 1\ntaught  0.250\ntoo easy  0.250\ntoo hard  0.250\nneither  0.250"
    for role in ("solver", "judge"):
        assert hover(page(folder), f"Groups of {role}")[0] == shares


def test_the_share_of_a_policy_is_drawn_of_those_that_share_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": 1, "optim/share/solver": 0.7, "optim/share/judge": 0.3}])
    info = json.loads((folder / "run.json").read_text())
    for theirs, drawn in (("main", 2), ("other", 0)):
        info["roles"]["solver"]["policies"], info["roles"]["judge"]["policies"] = ["main"], [theirs]
        (folder / "run.json").write_text(json.dumps(info))
        assert len(legend(page(folder), "Share of its policy&#39;s gradient")) == drawn


def test_the_time_of_a_step_is_told_in_the_order_of_its_stages(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    stages = ["rollout", "advantage", "update", "validate", "a_stage_of_another_version"]
    write_lines(folder / "metrics.jsonl", [{"step": 1} | {f"time/{stage}": 1.0 for stage in sorted(stages)}])
    assert legend(page(folder), "Seconds of a step, by stage") == stages


def test_what_did_not_happen_in_a_step_counts_nothing_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(
        folder / "metrics.jsonl",
        [
            {"step": 0, "validation/correct": 0.5},
            {"step": 1, "time/rollout": 2, "failures/solver/timeout": 3},
            {"step": 2, "time/rollout": 2},
            {"step": 3, "time/rollout": 2, "time/validate": 4, "failures/judge/timeout": 1},
        ],
    )
    text = page(folder)
    assert hover(text, "Failures of solver") == [
        "step 1\ntimeout  3",
        "step 2\ntimeout  0",
        "step 3\ntimeout  0",
    ]
    assert hover(text, "Failures of judge") == [
        "step 1\ntimeout  0",
        "step 2\ntimeout  0",
        "step 3\ntimeout  1",
    ]
    assert hover(text, "Seconds of a step, by stage")[0] == "step 1\nrollout  2\nvalidate  0"


def test_a_long_run_s_stages_are_put_together_step_by_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = [
        {"step": step, "time/rollout": 2.0} | ({"time/validate": 10.0} if step % 5 == 0 else {})
        for step in range(1, 1001)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    bars = hover(page(folder), "Seconds of a step, by stage")
    assert len(bars) <= MOST_BARS
    assert all("rollout" in bar and "validate" in bar for bar in bars)


def test_a_role_without_failures_is_said_to_have_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": 1, "failures/solver/timeout": 0}])
    assert "every role instance gave a usable answer" in section(page(folder), "failures")


def test_a_folder_that_is_no_run_gets_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_the_world_s_fault(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "report.html").mkdir()
    with pytest.raises(WorldError, match="cannot write"):
        write_report(folder)
    assert not (folder / ".report.html.part").exists()


def test_the_page_draws_the_spec_s_roles(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "spec.yaml").write_text("name: incomplete\nroles:\n  solver: {count: 2}\n")
    assert not section(page(folder), "workflow")
    condition = HOSTILE.replace('"', "'").replace("\x00", "")
    spec = {
        "rolegraph": 2,
        "name": "drawn",
        "roles": {
            "solver": {"prompt": "?", "count": 2},
            "judge": {"prompt": "?", "needs": ["solver"], "when": f'"{condition}"'},
        },
    }
    (folder / "spec.yaml").write_text(json.dumps(spec), encoding="utf-8")
    text = page(folder)
    drawn = section(text, "workflow")
    assert "solver × 2" in drawn
    assert "when &quot;&lt;/pre&gt;" in drawn
    assert Page(text).tags.count("script") == 1


def test_a_spec_that_goes_in_circles_is_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    roles = {name: {"prompt": "?", "needs": [other]} for name, other in (("a", "b"), ("b", "a"))}
    (folder / "spec.yaml").write_text(json.dumps({"rolegraph": 2, "name": "circle", "roles": roles}))
    assert not section(page(folder), "workflow")


def test_correct_is_the_first_figure_where_an_episode_can_be_correct(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    page = write_report(folder).read_text()
    names = r'<(?:b|p) class="name">([^<]*)</'
    tiles = re.findall(names, page)
    assert tiles == ["correct", "solver_acc", "judge_acc"]
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "can_be_correct": False}))
    assert re.findall(names, write_report(folder).read_text()) == tiles[1:]


def test_the_reward_stands_beside_the_best_constant_answer(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "validation/reward/judge" in line:
            line |= {"validation/answers/constant/judge": 0.412, "validation/answers/same/judge": 0.98}
    write_lines(folder / "metrics.jsonl", lines)
    page = write_report(folder).read_text()
    judge = role(page, "judge")
    assert "0.412" in judge and "98%" in judge
    assert "one answer" not in role(page, "solver")
    assert page.count("best constant answer</li>") == 1


def test_the_kl_has_one_name(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run")).read_text()
    assert "KL sampler‖trainer" in page and "KL: " not in page


def test_correct_comes_first_with_its_values_and_intervals(tmp_path: Path) -> None:
    text = page(write_run(tmp_path / "run"))
    assert text.index('<b class="name">correct</b>') < text.index('<section id="learning">')
    first = re.search(r"<figure.*?</figure>", text, re.DOTALL)
    assert first and first[0].startswith('<figure class="wide">') and "<b>correct</b>" in first[0]
    tips = [tip.splitlines()[-1] for tip in hover(text, "correct")]
    assert all(re.fullmatch(r"validation  [\d.]+ \[[\d.]+, [\d.]+\]", tip) for tip in tips) and len(tips) == 3
    assert '<polygon class="band c0"' in figure(text, "correct")
    assert 'tabindex="0"' in figure(text, "correct")


def verdict(text: str) -> str:
    """Return the CSS class of a report's verdict, and its words."""
    ((kind, inner),) = re.findall(r'<div class="verdict (\w+)">(.*?)</div>', text, re.DOTALL)
    return f"{kind}: {' '.join(unescape(re.sub('<[^>]+>', ' ', inner)).split())}"


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ((0, 30), "up: 0.450 → 0.745 Rose : correct +1 ["),
        ((30, 0), "down: 0.450 → 0.745 Fell : correct −1 ["),
        ((15, 16), "flat: 0.450 → 0.745 Cannot tell whether it changed : correct +0.033 ["),
    ],
)
def test_the_report_begins_with_its_verdict(tmp_path: Path, right: tuple[int, int], expected: str) -> None:
    folder = write_run(tmp_path / "run")
    for step, count in zip((0, 4), right, strict=True):
        tasks = [rollout(f"v{task}", 0, [float(task < count)]) for task in range(30)]
        write_episodes(folder, "validation", step, tasks)
    told = verdict(page(folder))
    assert told.startswith(expected)
    assert "] over 30 validation tasks, step 0 to 4. Best validation: step 4, the last." in told
    saved = {"step": 2, "best": True, "policies": {"main": {"version": 2, "state": "s", "sampler": "s"}}}
    (folder / "checkpoints.jsonl").write_text(json.dumps(saved) + "\n")
    text = page(folder)
    assert re.search(r"Best checkpoint: step 2, 0\.\d{3}\.", verdict(text))
    assert "best checkpoint" in legend(text, "correct")


def test_a_role_that_moved_beside_an_unmoved_correct_is_in_the_verdict(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for step, second in ((0, 0.0), (4, 1.0)):
        tasks = [rollout(f"v{task}", 0, [float(task < 15), second]) for task in range(30)]
        write_episodes(folder, "validation", step, tasks)
    told = verdict(page(folder))
    assert told.startswith("up: 0.450 → 0.745 solver rose : correct 0 [")
    assert ". reward/solver +0.500 [" in told


def test_a_training_that_diverges_has_collapsed_and_one_without_validations_is_not_judged(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run")
    lost = {"answers/n/solver": 8.0, "failures/solver/malformed_output": 8.0}
    lines = [{"step": n, "episode/correct": 0.5, "answers/n/solver": 8.0} for n in (1, 2)]
    write_lines(folder / "metrics.jsonl", lines)
    assert verdict(page(folder)).startswith("flat: 0.500 → 0.500 Not validated twice so far : correct")
    write_lines(
        folder / "metrics.jsonl", [*lines, *({"step": n, "episode/correct": 0.0} | lost for n in (3, 4))]
    )
    assert verdict(page(folder)).startswith("down: 0.500 → 0 Collapsed : correct")


def test_equal_figures_have_one_chart_and_one_place(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for split in ("episode", "validation"):
            if f"{split}/judge_acc" in line:
                line[f"{split}/correct"] = line[f"{split}/judge_acc"]
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert figure(text, "correct = judge_acc") and not figure(text, "judge_acc")
    assert "episode/judge_acc" not in section(text, "rest"), "drawn, and in no table"


def test_a_collapse_is_told_in_words(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=8)
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    calm = page(folder)
    for line in lines[3:]:
        line["entropy/solver"] = 0.01
        line |= {"validation/reward/solver": 0.4} if "validation/reward/solver" in line else {}
    write_lines(file, lines)
    told = [note for note in re.findall(r'<p class="note">(.*?)</p>', page(folder)) if note not in calm]
    (note,) = told
    assert note.startswith("For 6 steps in a row, solver&#39;s entropy is below a tenth")
