"""Tests of the page of an episode: its turns in brief, its groups, and its time line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rolegraph.pages.view.runs import ViewedRun, open_run
from tests import replays
from tests.pages.view.pages import KEY, get
from tests.pages.view.runs import write_run, write_training


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("cards") / "training")


def brief(text: str) -> dict[str, str]:
    """Return the text of each turn in brief, by the anchor that it leads to."""
    (strip,) = re.findall(r'<ol class="strip".*?</ol>', text, re.DOTALL)
    return {
        href: " ".join(re.sub(r"<[^>]*>", " ", inner).split())
        for href, inner in re.findall(r'<a class="c\d" href="#([^"]*)">(.*?)</a>', strip, re.DOTALL)
    }


def chosen(run: ViewedRun) -> tuple[int, int]:
    """Return the number of an episode whose two solvers differ, and of the solver that its judge chose."""
    (part,) = [part for part in run.parts() if part.name == "train-000001"]
    for row in run.rows(part):
        episode = run.read(row)
        if episode["solver"][0].action != episode["solver"][1].action and not episode.failures:
            return row.number, 1 + (episode["judge"][0].action == episode["solver"][1].action)
    raise AssertionError


def test_each_turn_is_told_in_brief_and_leads_to_its_card(training: Path) -> None:
    number, index = chosen(open_run(training))
    text = get(f"/{KEY}/0/train-000001/{number}", training).text
    cards = brief(text)
    names = [re.split(" [✓✗]", words)[0] for words in cards.values()]
    assert names == ["solver 1", "solver 2", "judge"]
    assert {*cards} <= {*re.findall(r'<article class="card" id="([^"]*)"', text)}
    for words in cards.values():
        assert re.search(r"(✓ correct|✗ wrong) .* reward [01] advantage [+−]?[\d.]+", words), words
        assert "answer>" not in words
    assert [*cards.values()][2].count(f"took solver {index} reward") == 1


def test_a_judge_that_chose_an_answer_of_two_names_both_and_a_failed_one_none(tmp_path: Path) -> None:
    def says(number: int, rollout: int, role: str, index: int) -> str:
        return "<answer>1</answer>" if role == "solver" or number == 0 else "<answer>9</answer>"

    run = replays.run(tmp_path / "run", says, tasks=2)
    texts = [get(f"/{KEY}/0/episodes/{number}", run).text for number in range(2)]
    same, failed = sorted(([*brief(text).values()][2] for text in texts), key=lambda it: "failed" in it)
    assert "took solver 1 = solver 2" in same
    assert "! failed" in failed and "unparseable choice" in failed and "took" not in failed


def test_a_metric_that_equals_the_sign_of_the_episode_is_not_told_again(tmp_path: Path) -> None:
    text = get(f"/{KEY}/0/episodes/0", replays.run(tmp_path / "run", replays.solved(0))).text
    (facts,) = re.findall(r'<dl class="facts small">.*?</dl>', text, re.DOTALL)
    assert re.findall(r"<dt>(.*?)</dt>", facts) == ["solver_acc", "ended", "started"]


def test_the_table_of_a_group_is_folded_below_the_answer(training: Path) -> None:
    text = get(f"/{KEY}/0/train-000001/0", training).text
    cards: list[str] = re.findall(r'<article class="card".*?</article>', text, re.DOTALL)
    folded = [card for card in cards if '<details class="credit"' in card]
    assert folded
    for card in folded:
        result, table = card.split('<details class="credit"')
        assert "open" not in table.split(">")[0].split() and 'class="label answer"' in result
        reward, baseline, deviation, advantage = re.findall(
            r"reward ([\d.]+) − baseline ([\d.]+)\)?(?: ÷ std ([\d.]+))? → advantage ([+−]?[\d.]+)", result
        )[0]
        expected = (float(reward) - float(baseline)) / float(deviation or 1)
        assert float(advantage.replace("−", "-")) == pytest.approx(expected, rel=0.01)
        rows = re.findall(r'<td class="n"><span class="(?:up|down)?">([+−]?[\d.]+)</span>', table)
        sizes = [abs(float(row.replace("−", "-"))) for row in rows]
        assert len(sizes) > 1 and sizes[1:] == sorted(sizes[1:], reverse=True)
    columns = dict(re.findall(r'<th scope="col"[^>]* title="([^"]*)">(.*?)</th>', text))
    assert "push per token" in columns.values() and all(columns)


def test_a_run_that_trains_nothing_has_no_columns_of_a_training(tmp_path: Path) -> None:
    text = get(f"/{KEY}/0/episodes/0", write_run(tmp_path / "run", tasks=1)).text
    (columns, *_) = [re.findall(r'<th scope="col"[^>]*>(.*?)</th>', it) for it in text.split("<thead>")[1:]]
    assert columns == ["rollout", "reward", "answer", "tokens", "mean log-prob"]


def test_other_rollouts_of_the_task_are_a_link_away_side_by_side(training: Path) -> None:
    text = get(f"/{KEY}/0/train-000001/0", training).text
    beside = re.findall(r'href="([^"]*/beside\?left=0&amp;right=\d+)"', text)
    assert len(beside) == 3
    assert get(beside[0].replace("&amp;", "&"), training).status_code == 200
