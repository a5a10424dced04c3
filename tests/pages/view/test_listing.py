"""Tests of the list of episodes: links that set the filter, figures of the rows, answers, and short ids."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.engine.records.episodes import write_episodes
from rolegraph.pages.view.listing import shared_start, short_id
from tests import replays
from tests.pages.view.pages import KEY, Parsed, get
from tests.pages.view.runs import write_training

EQUAL = "correct (also judge_acc, reward/judge)"
"""Figures of `solver_judge` that are equal in every episode."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of four tasks in two rollouts: 3 right, 4 wrong, and one whose judge chose nobody."""

    def says(number: int, rollout: int, role: str, index: int) -> str:
        if role == "judge" and (number, rollout) == (1, 1):
            return "<answer>3</answer>"
        return replays.solved(0, 1)(number, rollout, role, index)

    return replays.run(tmp_path_factory.mktemp("listing") / "run", says, tasks=4, rollouts=2)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("listing") / "training")


def links(text: str) -> dict[str, tuple[str, str, bool]]:
    """Return the count and address of each link that sets the filter, and whether it is the current one."""
    found: dict[str, tuple[str, str, bool]] = {}
    for nav in re.findall(r'<nav class="facets".*?</nav>', text, re.DOTALL):
        for href, current, inner in re.findall(
            r'<a href="([^"]*)"( aria-current="true")?>(.*?)</a>', nav, re.S
        ):
            name, count = re.fullmatch(
                r"(?:<span[^>]*></span>)?([\w :,]+?)(?: <b>([\d,]+)</b>)?", inner
            ).groups()
            found[name] = count or "", href.replace("&amp;", "&"), bool(current)
    return found


def figures(text: str) -> dict[str, str]:
    """Return the means above the list by name."""
    (facts,) = re.findall(r'<dl class="facts"><div><dt>.*?</dl>', text, re.DOTALL)
    return {
        re.sub(r"<[^>]*>", "", name): re.sub(r"<[^>]*>", "", value).split()[0]
        for name, value in re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", facts, re.DOTALL)
    }


def listed(text: str) -> int:
    return len(re.findall(r'<a class="row"', text))


def test_outcomes_are_links_with_their_counts_that_list_those_episodes(run: Path) -> None:
    text = get(f"/{KEY}/0", run).text
    assert {name: (n, now) for name, (n, _, now) in links(text).items()} == {
        "all": ("8", True),
        "wrong": ("5", False),
        "failed: unparseable choice": ("1", False),
        "correct": ("3", False),
    }
    for name, (count, href, _) in links(text).items():
        there = get(href, run).text
        assert listed(there) == int(count) and links(there)[name][2], name


def test_counts_follow_the_other_filters(run: Path) -> None:
    one_task = links(get(f"/{KEY}/0?task=validation-1&correct=no", run).text)
    assert [one_task[name][0] for name in ("all", "wrong", "correct")] == ["2", "1", "1"]
    assert one_task["correct"][1] == f"/{KEY}/0?correct=yes&task=validation-1"
    episodes = read_episodes(RunFolder(run).episodes)
    asked = next(episode.task["question"] for episode in episodes if episode.task_id.endswith("-1"))
    found = get(f"/{KEY}/0?text={quote(str(asked))}&correct=no", run).text
    assert [links(found)[name][0] for name in ("all", "wrong", "correct")] == ["2", "1", "1"]
    everything = get(f"/{KEY}/0?text={quote(str(asked))}", run).text
    assert "95 % interval" in everything and figures(everything)[EQUAL] == "0.500"


def test_a_row_shows_where_it_has_the_text(run: Path) -> None:
    task, *_ = read_episodes(RunFolder(run).episodes)
    words = str(task.task["question"])[:12]
    asked = get(f"/{KEY}/0?text={words.upper()}", run).text
    assert f"<mark>{words}</mark>" in asked and 'class="hit' not in asked
    said = get(f"/{KEY}/0?text=%3CANSWER%3E3", run).text
    assert re.findall(r'class="hit[^>]*>([^<]*)<mark>([^<]*)</mark>', said) == [
        ("judge, answer: ", "&lt;answer&gt;3")
    ]
    assert "<mark>ex</mark>actly" in get(f"/{KEY}/0?text=ex", run).text
    assert listed(get(f"/{KEY}/0?text=validation-1", run).text) == 0, "an id is no text of the task"
    nowhere = get(f"/{KEY}/0", run).text
    assert "<mark>" not in nowhere


def test_the_figures_are_those_of_the_rows(run: Path) -> None:
    everything = figures(get(f"/{KEY}/0", run).text)
    assert (everything["These episodes"], everything[EQUAL]) == ("8", "0.375")
    assert {*everything} == {"These episodes", EQUAL, "solver_acc (also reward/solver)"}
    wrong = get(f"/{KEY}/0?correct=no", run).text
    assert figures(wrong)["These episodes, chosen by outcome"] == "5" and "correct" not in figures(wrong)
    assert "95 % interval" not in wrong, "of episodes chosen by their outcome"


def test_of_a_training_the_figures_are_of_its_last_validation_and_splits_are_links(training: Path) -> None:
    text = get(f"/{KEY}/0", training).text
    assert figures(text)["Last validation, step 2"] == "2"
    splits = links(text)
    assert [splits[name][0] for name in ("all steps", "train", "validation")] == ["26", "24", "2"]
    there = get(splits["train"][1], training).text
    assert figures(there)["These episodes"] == "24" and links(there)["train"][2]
    assert links(there)["wrong"][1].endswith("correct=no&split=train")


def test_answers_have_no_tags_and_a_sign_with_its_word(run: Path) -> None:
    text = get(f"/{KEY}/0?task=validation-1", run).text
    cells = re.findall(r'<span class="answers">(.*?)</span>\s*(?:<b>|–)', text, re.DOTALL)
    words = [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]
    solution = re.sub(r"</?answer>", "", replays.solved(1)(1, 0, "solver", 1))
    assert f"✓ correct {solution} ✗ wrong 1" in words and f"✓ correct {solution}" in words
    assert "! failed unparseable choice" in words
    assert "&lt;answer&gt;" not in text


def test_the_rollouts_of_a_task_follow_one_another_in_order(run: Path) -> None:
    text = get(f"/{KEY}/0", run).text
    assert re.findall(r">(rollout \d)</span>", text) == ["rollout 0", "rollout 1"] * 4
    assert text.count('title="countdown-validation-') == 4, "the id of a task is named once"


def test_what_is_not_decided_is_neither_right_nor_wrong(run: Path, tmp_path: Path) -> None:
    other = replays.run(tmp_path / "other", replays.solved(0), tasks=2)
    file = RunFolder(other).episodes
    one, two = read_episodes(file)
    write_episodes(file, [one, two._replace(metadata={**two.metadata, "undecided": True}, is_correct=False)])
    text = get(f"/{KEY}/0", other).text
    assert [links(text)[name][0] for name in ("all", "wrong", "correct")] == ["2", "0", "1"]
    assert text.count("not decided") == 1
    assert listed(get(f"/{KEY}/0?correct=no", other).text) == 0


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["countdown-train-11", "countdown-train-12"], ["11", "12"]),
        (["countdown-train-1", "countdown-validation-1"], ["train-1", "validation-1"]),
        (["a1b2", "a1c3"], ["a1b2", "a1c3"]),
        (["alone-7"], ["alone-7"]),
        (["f" * 60], [f"…{'f' * 24}"]),
    ],
)
def test_ids_lose_the_words_that_all_begin_with(ids: list[str], shown: list[str]) -> None:
    assert [short_id(task, shared_start(ids)) for task in ids] == shown


def test_a_text_search_has_the_means_of_all_that_it_finds(tmp_path: Path) -> None:
    run = replays.run(tmp_path / "run", replays.solved(*range(10)), tasks=30, rollouts=2)
    text = get(f"/{KEY}/0?text=Use", run).text
    assert listed(text) == 50 and "1–50 of 60 episodes" in Parsed(text).text
    shown = figures(text)
    assert (shown["These episodes"], shown[EQUAL]) == ("60", "0.333")


@pytest.mark.parametrize("query", ["from=5000", "text=Use&from=5000"])
def test_a_start_past_the_end_shows_the_last_page(tmp_path: Path, query: str) -> None:
    run = replays.run(tmp_path / "run", replays.solved(0), tasks=30, rollouts=2)
    assert "51–60 of 60 episodes" in Parsed(get(f"/{KEY}/0?{query}", run).text).text
    assert listed(get(f"/{KEY}/0?text=nowhere&{query}".replace("text=Use&", ""), run).text) == 0


def test_an_episode_leads_back_to_the_page_of_the_list_that_it_is_on(tmp_path: Path) -> None:
    run = replays.run(tmp_path / "run", replays.solved(0), tasks=30, rollouts=2)
    second = Parsed(get(f"/{KEY}/0?text=Use&from=50", run).text)
    episode = next(link for link in second.links if "/episodes/" in link)
    (up,) = re.findall(r'<a rel="up" href="([^"]*)"', get(episode, run).text)
    assert up == f"/{KEY}/0?text=Use&amp;from=50"
