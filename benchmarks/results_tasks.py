"""Tables of tasks for the specs of a real model in benchmarks/results/specs: facts and sums.

    python benchmarks/results_tasks.py        # writes them again, with the same rows

A row has a question and one right answer, which no prompt shows. No question of a test file is in a training
file. `mixed` has the rows of both tables, each with the expert that can answer it, `route`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "results" / "specs"
TEST = 48
"""Rows of a test file: nothing is chosen by them."""

NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Ida Jack Kate Leo Maria Nick Olga Paul Rosa Sam Tina Victor"
)
CITIES = (
    "Oslo Rome Paris Lima Cairo Delhi Tokyo Dublin Vienna Prague Madrid Berlin Boston Athens Havana Sydney"
)
THINGS = "pears apples lemons books chairs lamps pencils shirts plates candles onions carrots eggs cups"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
QUESTIONS = {
    "who": "Who bought {what} in {where}?",
    "what": "What did {who} buy in {where}?",
    "where": "Where did {who} buy {what}?",
    "when": "On which day did {who} buy {what}?",
}
Row = dict[str, str]


def fact_row(draw: random.Random, asked: str) -> Row:
    """Return a sentence about a purchase and a question about one part of it, `asked`."""
    parts = {"who": NAMES, "what": THINGS, "where": CITIES, "when": DAYS}
    fact = {part: draw.choice(words.split()) for part, words in parts.items()}
    text = "On {when} {who} bought {what} in {where}. " + QUESTIONS[asked]
    return {"question": text.format(**fact), "answer": fact[asked]}


def fact_rows(draw: random.Random, count: int) -> list[Row]:
    """Return rows with each question as often as the others, up to one."""
    return [fact_row(draw, [*QUESTIONS][at % len(QUESTIONS)]) for at in range(count)]


def sum_rows(draw: random.Random) -> list[Row]:
    """Return the sums of two numbers from 1 to 12, in a random order."""
    rows = [
        {"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(1, 13) for b in range(1, 13)
    ]
    draw.shuffle(rows)
    return rows


def write(name: str, rows: Sequence[Row]) -> None:
    """Write rows as a file of JSON lines beside the specs."""
    lines = [json.dumps({"id": f"{name}-{at}", **row}) for at, row in enumerate(rows)]
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    draw = random.Random(0)
    facts, sums = fact_rows(draw, 96 + TEST), sum_rows(draw)
    for table, rows in (("facts", facts), ("sums", sums)):
        write(f"{table}_test", rows[:TEST])
        write(f"{table}_train", rows[TEST:])
    half = TEST // 2
    for part, rows in (("test", slice(half)), ("train", slice(TEST, None))):
        routes = ({"route": "reader"}, {"route": "calculator"})
        pairs = zip(facts[rows], sums[rows], strict=True)
        both = [row | route for pair in pairs for row, route in zip(pair, routes, strict=True)]
        write(f"mixed_{part}", both)


if __name__ == "__main__":
    main()
