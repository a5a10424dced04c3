"""Tests of comparing runs: differences, intervals, flipped tasks, and escaping on the page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import rolegraph as rg
from rolegraph.engine.training.analysis.intervals import difference
from tests import replays
from tests.pages.report.runs import rollout, write_episodes, write_run
from tests.pages.report.test_page import Page

HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="alert(1)">'


def test_specs_differ_by_what_they_mean_and_not_by_how_they_are_written(tmp_path: Path) -> None:
    same = tmp_path / "same.yaml"
    same.write_text(
        "extends: solver_judge.yaml\ntrain: {gradient_clip: 1.0, lora: {rank: 32}}\n"
        "roles: {judge: {on_failure: {then: zero}}}\n"
    )
    assert rg.compare("solver_judge", same).spec == []

    found = rg.compare("solver_judge", rg.load("solver_judge_validator", "train.learning_rate=0.001"))
    assert [row.key for row in found.spec] == [
        "name",
        "description",
        "roles.validator",
        "episode.metrics.validator_acc",
        "train.learning_rate",
    ]
    assert found.spec[-1].values == ["–", "0.001"]
    assert found.spec[2].values[0] == "–"
    assert "judge.right" in found.spec[2].values[1]
    (changed,) = found.templates
    assert changed.name == "the prompt of validator"
    assert "+Chosen solution: {{ judge.action }}" in changed.diffs[0]
    assert (found.rows, found.flips) == ((), [])


def test_a_value_that_is_replaced_whole_is_one_difference() -> None:
    plain = rg.load("solver_judge")
    other = rg.load("solver_judge", "roles.solver.parser={tag: result}")
    (row,) = rg.compare(plain, other).spec
    assert row.key == "roles.solver.parser"
    assert row.values == [
        "{tag: answer, keep_tag: true, default: No solution found}",
        "{tag: result}",
    ]


def test_stages_are_compared_key_by_key_where_both_sides_have_as_many() -> None:
    def staged(*steps: int) -> rg.Workflow:
        stages = ", ".join(f"{{imitation: best, steps: {n}}}" for n in steps)
        return rg.load("solver_judge", f"train.stages=[{stages}]")

    found = [rg.compare(staged(2), other).spec for other in (staged(3), staged(2, 3))]
    assert [[(row.key, row.values) for row in rows] for rows in found] == [
        [("train.stages.0.steps", ["2", "3"])],
        [
            (
                "train.stages",
                [
                    "[{imitation: best, steps: 2}]",
                    "[{imitation: best, steps: 2}, {imitation: best, steps: 3}]",
                ],
            )
        ],
    ]


def test_figures_are_paired_over_the_tasks_and_not_over_the_episodes(tmp_path: Path) -> None:
    def half(number: int, rollout: int, role: str, index: int) -> str:
        return replays.solved(*([0, 1] if rollout else [0]))(number, rollout, role, index)

    first = replays.run(tmp_path / "first", replays.solved(0, 3), rollouts=2)
    other = replays.run(tmp_path / "other", half, rollouts=2)
    found = rg.compare(first, other)
    rows = {row.figure: row for row in found.rows}
    correct = rows["correct"]
    # By task: 1 0 0 1 on the first side; 1 .5 0 0 on the other.
    assert [side and (side.mean, side.n) for side in correct.sides] == [(0.5, 4), (0.375, 4)]
    gap = correct.differences[0]
    assert gap and (gap.mean, gap.n) == (-0.125, 4)
    assert gap.low < gap.mean < gap.high
    assert gap.sign == 0
    assert (rows["judge_acc"].equal_to, rows["judge_acc"].sides) == ("correct", correct.sides)
    (verdict,) = found.verdicts
    assert str(verdict).startswith("Cannot tell other from first: correct −0.125 [")
    assert str(verdict).endswith("over 4 shared tasks; no task gained, 1 lost")
    assert {"reward/solver", "reward/judge", "solver_acc", "tokens in", "tokens out"} <= rows.keys()
    assert rows["tokens in"].sides[0].mean == 9  # pyright: ignore[reportOptionalMemberAccess]
    (flips,) = found.flips
    assert (flips.gains, flips.losses, flips.shared, flips.alone) == (0, 1, 4, 0)
    assert "paired over 4 tasks" in flips.pairing


def test_a_flipped_task_comes_with_an_episode_of_each_side(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0, 1))
    other = replays.run(tmp_path / "other", replays.solved(1, 2))
    (flips,) = rg.compare(first, other).flips
    (gained,), (lost,) = flips.gained, flips.lost
    assert [gained.task, lost.task] == ["countdown-validation-2", "countdown-validation-0"]
    assert (gained.was, gained.now) == (0.0, 1.0)
    assert (gained.first.is_correct, gained.other.is_correct) == (False, True)
    assert (lost.first.is_correct, lost.other.is_correct) == (True, False)
    said = {row.instance: row for row in gained.beside()}
    assert [*said] == ["solver 1", "solver 2", "judge"]
    assert said["solver 1"].first and said["solver 1"].first.reward == 0
    assert said["solver 1"].other and said["solver 1"].other.reward == 1


def test_tasks_of_one_id_that_are_not_the_same_are_not_paired(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved())
    other = replays.run(tmp_path / "other", replays.solved(0, 1, 2, 3))
    file = other / "episodes.jsonl"
    file.write_text(file.read_text().replace('"target":', '"aim":'))
    found = rg.compare(first, other)
    (flips,) = found.flips
    assert (flips.shared, flips.gains) == (0, 0)
    assert "no task is the same" in flips.pairing
    correct = next(row for row in found.rows if row.figure == "correct")
    gap = correct.differences[0]
    assert gap and (gap.mean, gap.high) == (1.0, 1.0)
    assert gap.low == pytest.approx(0.307, abs=1e-3), "Newcombe's, of 4 tasks on either side"


def test_the_figures_of_sides_are_over_the_tasks_that_both_have(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0, 1, 2, 3), tasks=8)
    other = replays.run(tmp_path / "other", replays.solved(0, 1, 2, 3), tasks=4)
    correct = next(row for row in rg.compare(first, other).rows if row.figure == "correct")
    was, now = correct.sides
    assert was and now and (was.mean, was.n) == (now.mean, now.n) == (1.0, 4)
    assert correct.differences[0] and correct.differences[0].mean == 0


def test_a_training_differs_by_its_learning_rate_and_a_run_by_no_key_of_training(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2))
    for folder, rate in ((one, 0.002), (two, 0.004)):
        record = json.loads((folder / "run.json").read_text()) | {"learning_rates": {"main": rate}}
        (folder / "run.json").write_text(json.dumps(record))
    assert ("train.learning_rate", ["0.002", "0.004"]) in [
        (row.key, [*row.values]) for row in rg.compare(one, two).spec
    ]
    runs = [
        replays.run(tmp_path / f"run{steps}", replays.solved(), f"train.steps={steps}") for steps in (3, 5)
    ]
    found = rg.compare(*runs)
    assert not [row.key for row in found.spec if row.key.startswith("train")] and not found.other_code


def test_the_difference_of_tasks_apart_is_as_wide_as_both_sides_make_it() -> None:
    rng = np.random.default_rng(1)
    now, before = ({f"{name}{n}": float(rng.random() < 0.5) for n in range(400)} for name in "ab")
    found = difference(now, before, paired=False)
    assert found.mean == pytest.approx(np.mean([*now.values()]) - np.mean([*before.values()]))
    spread = np.sqrt(np.var([*now.values()]) / 400 + np.var([*before.values()]) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * spread, rel=0.1)
    assert difference({}, before, paired=False).n == 0


def test_a_training_is_compared_by_its_last_validation_and_by_its_best_checkpoint(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2))
    policies = {"main": {"version": 2, "state": "s", "sampler": "s"}}
    (one / "checkpoints.jsonl").write_text(json.dumps({"step": 2, "best": True, "policies": policies}) + "\n")
    last = ("validation, step 4", "validation, step 4")
    at_best = ("best validation, step 2", "validation, step 4")
    found = rg.compare(one, two)
    assert [side.results.what for side in found.measured if side.results] == [*last]
    assert [verdict.of for verdict in found.verdicts] == [last, at_best]
    assert ("seed", ["0", "1"]) in [(row.key, row.values) for row in found.settings]
    turned = rg.compare(one, two, best=True)
    assert [side.results.what for side in turned.measured if side.results] == [*at_best]
    assert [verdict.of for verdict in turned.verdicts] == [at_best, last]
    (one / "checkpoints.jsonl").write_text(json.dumps({"step": 4, "best": True, "policies": policies}) + "\n")
    assert len(rg.compare(one, two).verdicts) == 1


def test_a_training_that_fell_after_its_best_checkpoint_has_a_second_verdict(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("steady", "fell")))
    policies = {"main": {"version": 2, "state": "s", "sampler": "s"}}
    (two / "checkpoints.jsonl").write_text(json.dumps({"step": 2, "best": True, "policies": policies}) + "\n")
    for folder, reward in ((one, 1.0), (two, 0.0)):
        tasks = [rollout(f"v{task}", 0, [reward, 0.0]) for task in range(40)]
        write_episodes(folder, "validation", 2, [rollout(f"v{task}", 0, [1.0, 0.0]) for task in range(40)])
        write_episodes(folder, "validation", 4, tasks)
    page = tmp_path / "page.html"
    end, best = rg.compare(one, two, html=page).verdicts
    assert (best.means, best.gap.mean, best.gap.sign) == ((1.0, 1.0), 0.0, 0)
    assert (end.means, end.gap.mean, end.gap.sign) == ((1.0, 0.0), -1.0, -1)
    assert (best.flips.losses, end.flips.losses) == (0, 40)
    assert str(end).startswith("fell is worse than steady (validation, step 4): correct −1 [")
    assert re.findall(r'class="verdict (\w+)"', page.read_text()) == ["down"]
    assert "B: best validation, step 2. Cannot tell B from A: correct 0 [" in words(page.read_text())
    assert section(page, "tasks").count('<details class="flip">') == 40
    rg.compare(one, two, html=page, best=True)
    assert section(page, "tasks").count('<details class="flip">') == 0


def test_where_the_words_are_the_same_the_code_may_differ(tmp_path: Path) -> None:
    recorded = replays.answers(tmp_path / "recorded.jsonl", replays.solved(0), tasks=1)
    flow = rg.load("solver_judge", model=f"replay:{recorded}")
    sides = [rg.run(flow, limit=1, out=tmp_path / name).folder for name in ("first", "other")]
    found = rg.compare(*sides)
    assert (found.same_words, found.other_code) == (True, False)
    info = sides[1] / "run.json"
    info.write_text(info.read_text().replace('"hash": "', '"hash": "0'))
    assert rg.compare(*sides).other_code


def test_three_sides_are_each_held_against_the_first(tmp_path: Path) -> None:
    sides = [replays.run(tmp_path / f"run{n}", replays.solved(*range(n))) for n in range(3)]
    found = rg.compare(*sides)
    correct = next(row for row in found.rows if row.figure == "correct")
    assert [gap and gap.mean for gap in correct.differences] == [0.25, 0.5]
    assert [flips.gains for flips in found.flips] == [1, 2]


def test_the_page_loads_nothing_and_what_models_wrote_stays_text(tmp_path: Path) -> None:
    def hostile(number: int, rollout: int, role: str, index: int) -> str:
        said = replays.solved(0)(number, rollout, role, index)
        return said if role == "judge" else f"{HOSTILE}{said}"

    sides = [replays.run(tmp_path / f"<b>{n}", hostile if n else replays.solved(1)) for n in range(2)]
    page = tmp_path / "page.html"
    rg.compare(*sides, html=page)
    text = page.read_text()
    read = Page(text)
    assert (read.loads, read.handlers, read.open) == ([], [], [])
    assert not {"img", "link"} & set(read.tags) and "<b>0" not in text
    assert read.tags.count("script") == 1 and "default-src 'none'; style-src" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "http://" not in text and "https://" not in text


def test_one_side_is_no_comparison_and_a_folder_without_a_run_is_none(tmp_path: Path) -> None:
    with pytest.raises(rg.UsageError, match="a comparison needs two"):
        rg.compare("solver_judge")
    with pytest.raises(rg.UsageError, match="is not the folder of a run"):
        rg.compare("solver_judge", tmp_path)


def section(page: Path, anchor: str) -> str:
    (found,) = re.findall(rf'<section id="{anchor}">.*?</section>', page.read_text(), re.DOTALL)
    return found


def words(html: str) -> str:
    """Return the text of HTML, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_page_begins_with_the_verdict_and_names_the_flipped_tasks(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0, 1), rollouts=2)
    other = replays.run(tmp_path / "other", replays.solved(1, 2))
    page = tmp_path / "page.html"
    rg.compare(first, other, html=page)
    text = page.read_text()
    assert "4 tasks, 8 episodes" in words(text) and "4 tasks, 4 episodes" in words(text)
    (verdict,) = re.findall(r'<div class="verdict flat">.*?</ul>', text, re.DOTALL)
    assert "Cannot tell B from A : correct 0 [" in words(verdict)
    assert words(verdict).endswith("1 gained 1 lost 1 solved by both 1 solved by neither")
    anchors = re.findall(r'<section id="(\w+)">', text)
    assert anchors == ["roles", "figures", "tasks", "all", "differences", "cost"]
    gained, lost = re.findall(r"<summary>(.*?)</summary>", section(page, "tasks"), re.DOTALL)
    assert "countdown-validation-2" in gained and "countdown-validation-0" in lost
    assert re.findall(r"\d+ %", words(gained)) == ["0 %", "100 %"]
    rows = re.findall(r"<tr( class=\"flipped\")?><td>(.*?)</tr>", section(page, "all"), re.DOTALL)
    assert [bool(flipped) for flipped, _ in rows] == [True, True, False, False]
    cells = [re.findall(r'<td class="n">([^<]*)</td>', row) for _, row in rows]
    assert sorted(cells[:2]) == [["0 → 1", "0 → 0.500"], ["1 → 0", "0.500 → 0"]]
    assert sorted(cells[2:]) == [["0", "0"], ["1", "0.500"]]
    assert "correct = judge" in section(page, "all"), "equal on every task"


def test_roles_have_their_rewards_with_deviation_and_their_failures(tmp_path: Path) -> None:
    def failing(number: int, rollout: int, role: str, index: int) -> str:
        return (
            "no tag" if role == "judge" and number < 2 else replays.solved(0, 1)(number, rollout, role, index)
        )

    first = replays.run(tmp_path / "first", replays.solved(0, 1))
    other = replays.run(tmp_path / "other", failing)
    page = tmp_path / "page.html"
    rg.compare(first, other, html=page)
    solver, judge = re.findall(r"<tr><th.*?</tr>", section(page, "roles"), re.DOTALL)[1:]
    assert words(solver).startswith(
        "solver A 0.250 ± 0.433 none of 8 failed B 0.250 ± 0.433 none of 8 failed B − A 0 ["
    )
    assert words(judge).startswith(
        "judge A 0.500 ± 0.500 none of 4 failed B 0 ± 0 2 failed of 4, most often malformed output "
        "B − A −0.500 ["
    )


def test_a_flipped_task_shows_the_last_answer_of_each_side(tmp_path: Path) -> None:
    """The sides have other instances: `solver` on the first, `solver 1` and `solver 2` on the other."""
    first = replays.run(tmp_path / "first", replays.solved(), "roles.solver.count=1", tasks=1)
    other = replays.run(tmp_path / "other", replays.solved(0), tasks=1)
    page = tmp_path / "page.html"
    rg.compare(first, other, html=page)
    (gained,) = re.findall(r"<summary>(.*?)</summary>", section(page, "tasks"), re.DOTALL)
    assert re.search(r"A 0 % 1 B 100 % \S+$", words(gained))


def test_equal_figures_have_one_row_and_differences_of_a_kind_one_scale(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(0))
    other = replays.run(tmp_path / "other", replays.solved(0, 1, 2, 3))
    page = tmp_path / "page.html"
    found = rg.compare(first, other, html=page)
    assert [(row.figure, equal) for row, equal in found.distinct_rows[:2]] == [
        ("correct", ["judge_acc", "reward/judge"]),
        ("solver_acc", ["reward/solver"]),
    ]
    assert str(found.verdicts[0]).startswith("other is better than first: correct +0.750 [+")
    figures = section(page, "figures")
    kinds = re.findall(r'<th scope="rowgroup"[^>]*>([^<]*)', figures)
    assert (kinds[0], kinds[-1]) == ("scores", "tokens of an episode")
    assert words(figures).count("= judge_acc = reward/judge") == 1
    scores = figures.split("</tbody>")[0]
    zeros = re.findall(r'<line class="zero" x1="([^"]*)"', scores)
    assert len(zeros) == 2 and len({*zeros}) == 1
    assert scores.count('class="interval up"') == 1, "solver_acc may be chance"


def test_specs_alone_have_no_verdict(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = rg.compare("solver_judge", "solver_judge_validator", html=page)
    assert found.verdicts == []
    assert "No verdict: fewer than two sides have episodes" in words(page.read_text())


def test_many_flipped_tasks_are_folded(tmp_path: Path) -> None:
    first = replays.run(tmp_path / "first", replays.solved(), tasks=13)
    other = replays.run(tmp_path / "other", replays.solved(*range(13)), tasks=13)
    page = tmp_path / "page.html"
    rg.compare(first, other, html=page)
    tasks = section(page, "tasks")
    assert tasks.count('<details class="flip">') == 13
    assert tasks.split("<summary>8 more</summary>")[0].count('<details class="flip">') == 5


def test_the_curves_of_two_trainings_are_in_one_chart(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2))
    page = tmp_path / "page.html"
    rg.compare(one, two, html=page)
    (curves,) = re.findall(r'<section id="curves">.*?</section>', page.read_text(), re.DOTALL)
    charts = re.findall(r"<figure>.*?</figure>", curves, re.DOTALL)
    assert len(charts) == 3, "correct and both metrics"
    (places,) = re.findall(r'data-hover="(.*?)"', charts[0])
    values = [said.splitlines() for _, said in json.loads(unescape(places))]
    assert [[line.split("  ")[0] for line in lines] for lines in values] == [
        [f"step {step}", "A seed0", "B seed1"] for step in (0, 2, 4)
    ]
    assert charts[0].count("<polygon") == 2 and charts[0].count("<polyline") == 2
    run = replays.run(tmp_path / "run", replays.solved(0))
    rg.compare(one, run, html=page)
    assert 'id="curves"' not in page.read_text()
