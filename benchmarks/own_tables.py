"""Ten small tables, such as a user has, and what SmolLM2 learns of each by `rolegraph new --data`.

    python benchmarks/own_tables.py OUT                               # write, train and measure all, seed 0
    python benchmarks/own_tables.py OUT --only topics --seeds 3       # one table, three seeds
    python benchmarks/own_tables.py OUT --only topics train.steps=6   # with overrides of the spec
    python benchmarks/own_tables.py OUT --write                       # the tables alone
    python benchmarks/own_tables.py OUT --seeds 0                     # print what was measured

Every row is made here from word lists and rules by a seed; nothing is copied from a data set. Each table has
a few hundred rows, all different. Labels are classes, booleans, ratings, numbers, short texts and objects.

A run is a table with a seed. Its figures are those of `rolegraph eval` on test.jsonl, whose rows chose
nothing: a line of `benchmarks/own_tables.jsonl`. A run with a line is not repeated.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import click

import rolegraph as rg
from rolegraph import api
from rolegraph.starter.data_starting import new_for_data

Row = Mapping[str, Any]
ROWS = 400
"""Rows of a table at most."""

THINGS = (
    "hotel|film|book|phone|concert|restaurant|bag|lamp|course|game|tent|coat|café|train ride|radio|bicycle|"
    "museum|printer|camera|garden chair"
).split("|")
PRAISE = "wonderful|great|lovely|excellent|a real joy|better than I hoped|superb|delightful".split("|")
BLAME = "terrible|awful|broken|a waste of money|disappointing|dreadful|worse than I feared|useless".split("|")
PLAIN = "open on Mondays|made of two parts|near the station|four years old|sold in three shops".split("|")
TOPICS = {
    "sport": "The team won the match|A runner broke the record|The coach praised the goalkeeper|"
    "The final ended after extra time|The swimmer took gold",
    "food": "The baker sells fresh bread|A soup of carrots and ginger|The chef adds salt and butter|"
    "The cake needs six eggs|Grilled fish with lemon",
    "weather": "Heavy rain is expected|Snow falls in the hills|A storm moves to the coast|"
    "The sun returns after the fog|Strong wind and hail",
    "money": "The bank raises its interest|Share prices fell|The company reports a profit|"
    "Taxes on fuel go up|The central bank cuts its rate",
    "music": "The singer plays a new song|The orchestra opens the season|A guitar and a piano duet|"
    "The band releases an album|The choir sings at noon",
}
PLACES = "in Oslo|in Lima|in the north|on Sunday|this week|in the village|tonight|in June|near Turin".split(
    "|"
)
UNITS = (
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("weeks", "days", 7),
    ("metres", "centimetres", 100),
    ("kilometres", "metres", 1000),
    ("kilograms", "grams", 1000),
    ("years", "months", 12),
    ("dozens", "pieces", 12),
)
MONTHS = ("January|February|March|April|May|June|July|August|September|October|November|December").split("|")
WORDS = (
    "garden|window|bottle|summer|winter|orange|yellow|kitchen|doctor|teacher|river|mountain|bridge|letter|"
    "pencil|market|butter|coffee|dinner|sister|brother|mother|father|friend|school|church|island|animal|"
    "monkey|rabbit|turtle|spider|basket|candle|mirror|pillow|blanket|hammer|ladder|engine|ticket|planet|"
    "rocket|forest|desert|harbour|village|castle|palace|soldier|farmer|artist|writer|singer|dancer|"
    "number|minute|second|moment|weather|thunder|shadow|silver|golden|purple|paper|plastic|cotton"
).split("|")
KINDS = {
    "animal": "dog|horse|cow|tiger|lion|rabbit|goat|sheep|wolf|fox",
    "fruit": "apple|pear|plum|cherry|banana|mango|peach|lemon|grape|melon",
    "colour": "red|blue|green|yellow|purple|orange|brown|black|white|grey",
    "country": "France|Spain|Japan|Brazil|Kenya|Norway|India|Peru|Egypt|Chile",
    "vehicle": "car|bus|train|truck|bicycle|tram|ship|boat|plane|van",
}
STARS = {
    1: "Terrible, I want my money back|The worst I ever had|Awful, it broke at once|Useless and rude service",
    2: "Not good, I expected more|Rather poor|It has many faults|Weak and too dear",
    3: "It is okay|Average, nothing special|Neither good nor bad|Fine, but no more",
    4: "Good, with a small fault|I like it|Rather nice|Good value, I would come again",
    5: "Perfect, I love it|The best I ever had|Excellent in every way|Amazing, five stars",
}
NAMES = "Anna|Ben|Clara|David|Emma|Felix|Grace|Hugo|Ida|Jonas|Karin|Leo".split("|")
ITEMS = "chair|table|lamp|cup|plate|shirt|book|clock|bag|rug".split("|")
COLOURS = "red|blue|green|black|white|yellow".split("|")
SPANISH = "uno|dos|tres|cuatro|cinco|seis|siete|ocho|nueve".split("|")
TENS = {
    30: "treinta",
    40: "cuarenta",
    50: "cincuenta",
    60: "sesenta",
    70: "setenta",
    80: "ochenta",
    90: "noventa",
}


def sentiment(draw: random.Random) -> Iterator[Row]:
    """Yield remarks with a sentiment, one label rarer than the others."""
    while True:
        label, said = draw.choice(
            [("positive", PRAISE)] * 4 + [("negative", BLAME)] * 4 + [("neutral", PLAIN)] * 2
        )
        start = draw.choice(["The", "This", "My new", "Our"])
        yield {"text": f"{start} {draw.choice(THINGS)} is {draw.choice(said)}.", "sentiment": label}


def topics(draw: random.Random) -> Iterator[Row]:
    """Yield headlines with one of five topics."""
    while True:
        topic = draw.choice([*TOPICS])
        yield {"headline": f"{draw.choice(TOPICS[topic].split('|'))} {draw.choice(PLACES)}", "topic": topic}


def units(draw: random.Random) -> Iterator[Row]:
    """Yield conversions to a smaller unit, whose answer is a number."""
    while True:
        large, small, factor = draw.choice(UNITS)
        amount = draw.randint(2, 60)
        yield {"question": f"How many {small} are {amount} {large}?", "answer": amount * factor}


def dates(draw: random.Random) -> Iterator[Row]:
    """Yield dates in words, to be written as YYYY-MM-DD."""
    while True:
        year, month, day = draw.randint(1950, 2030), draw.randint(1, 12), draw.randint(1, 28)
        words = draw.choice([f"{MONTHS[month - 1]} {day}, {year}", f"{day} {MONTHS[month - 1]} {year}"])
        yield {"date in words": words, "ISO date": f"{year}-{month:02}-{day:02}"}


def sums(draw: random.Random) -> Iterator[Row]:
    """Yield sums of two numbers of two digits."""
    while True:
        a, b = draw.randint(10, 99), draw.randint(10, 99)
        yield {"a": a, "b": b, "sum": a + b}


def spelling(draw: random.Random) -> Iterator[Row]:
    """Yield words with two letters exchanged, or with one twice or left out."""
    while True:
        word = draw.choice(WORDS)
        at = draw.randrange(1, len(word) - 1)
        wrong = draw.choice(
            [
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at] + word[at:],
                word[:at] + word[at + 1 :],
            ]
        )
        if wrong not in WORDS:
            yield {"typed": wrong, "correct": word}


def true_false(draw: random.Random) -> Iterator[Row]:
    """Yield statements that a thing is of a kind, half of them wrong."""
    while True:
        kind, is_true = draw.choice([*KINDS]), draw.random() < 0.5
        of = kind if is_true else draw.choice([other for other in KINDS if other != kind])
        thing = draw.choice(KINDS[of].split("|"))
        form = draw.choice(["{} is the name of a kind of {}.", "{}: that is a {}.", "You can call {} a {}."])
        yield {"statement": form.format(thing.capitalize(), kind), "is_true": is_true}


def ratings(draw: random.Random) -> Iterator[Row]:
    """Yield reviews of one to five stars."""
    while True:
        stars = draw.choice([1, 2, 3, 4, 5, 5, 4])
        yield {
            "product": draw.choice(THINGS),
            "review": draw.choice(STARS[stars].split("|")) + ".",
            "stars": stars,
        }


def fields(draw: random.Random) -> Iterator[Row]:
    """Yield orders in a sentence, to be read into three fields."""
    while True:
        item, colour, count = draw.choice(ITEMS), draw.choice(COLOURS), draw.randint(2, 9)
        form = draw.choice(
            ["{name} wants {count} {colour} {item}s.", "Please send {count} {item}s in {colour} to {name}."]
        )
        text = form.format(name=draw.choice(NAMES), count=count, colour=colour, item=item)
        yield {"order": text, "fields": {"item": item, "colour": colour, "count": count}}


def numbers(draw: random.Random) -> Iterator[Row]:
    """Yield Spanish numbers, in a few phrases, to be written in digits."""
    while True:
        ten, one = draw.choice([*TENS]), draw.randint(0, 9)
        word = TENS[ten] + (f" y {SPANISH[one - 1]}" if one else "")
        form = draw.choice(["{}", "{} euros", "página {}", "número {}", "{} años", "unos {}", "casi {}"])
        yield {"español": form.format(word), "número": ten + one}


TABLES: Mapping[str, tuple[str, Callable[[random.Random], Iterator[Row]]]] = {
    "sentiment": ("csv", sentiment),
    "topics": ("csv", topics),
    "units": ("csv", units),
    "dates": ("csv", dates),
    "sums": ("csv", sums),
    "spelling": ("csv", spelling),
    "true_false": ("csv", true_false),
    "ratings": ("csv", ratings),
    "fields": ("jsonl", fields),
    "numbers": ("csv", numbers),
}
"""Each table: the suffix of its file, and the function that yields its rows."""


def different(rows: Iterator[Row]) -> list[Row]:
    """Return up to ROWS different rows; fewer where 50 draws in a row give none that is new."""
    kept: dict[str, Row] = {}
    missed = 0
    while len(kept) < ROWS and missed < 50:
        row = next(rows)
        key = json.dumps(row, sort_keys=True)
        missed = missed + 1 if key in kept else 0
        kept[key] = row
    return [*kept.values()]


def write(folder: Path) -> list[Path]:
    """Write all tables into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, (suffix, make) in TABLES.items():
        rows, path = different(make(random.Random(name))), folder / f"{name}.{suffix}"
        with path.open("w", encoding="utf-8", newline="") as file:
            if suffix == "csv":
                table = csv.DictWriter(file, [*rows[0]])
                table.writeheader()
                table.writerows(rows)
            else:
                file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        paths.append(path)
    return paths


MEASURED = Path(__file__).with_suffix(".jsonl")
LABELS = {"sums": "sum"}
"""Label of the tables whose columns do not tell it."""


def measured() -> list[dict[str, Any]]:
    """Return the runs that have figures, by table and seed."""
    lines = MEASURED.read_text("utf-8").splitlines() if MEASURED.exists() else []
    return sorted(map(json.loads, lines), key=lambda run: (run["table"], run["seed"]))


def best_constant(folder: Path) -> tuple[str, float]:
    """Return the commonest label of a folder's test rows, and the share of the rows that have it."""
    spec = api.load(folder / f"{folder.name}.yaml").plan.spec
    (label,) = spec.data.hidden
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text("utf-8").splitlines()]
    ((answer, count),) = Counter(json.dumps(row[label], ensure_ascii=False) for row in rows).most_common(1)
    return answer, count / len(rows)


def measure(out: Path, table: Path, seed: int, overrides: tuple[str, ...]) -> None:
    """Train on one table with a seed, evaluate on its test rows, and add the figures to MEASURED."""
    name = table.stem
    folder, trained = out / name, out / f"{name}-{seed}"
    if not folder.exists():
        new_for_data(folder, table, LABELS.get(name))
    if not trained.exists():
        rg.train(rg.load(folder / f"{name}.yaml", *overrides), out=trained, seed=seed)
    flow = rg.load(folder / f"{name}.yaml", "data.validation=test.jsonl", *overrides)
    tasks = len((folder / "test.jsonl").read_bytes().splitlines())
    done = rg.evaluate(flow, trained, tasks=tasks, rollouts=2, seed=seed)
    answer, share = best_constant(folder)
    row = done.figures["correct"]
    run = {
        "table": name,
        "seed": seed,
        "base": asdict(row.base),
        "trained": asdict(row.checkpoint),
        "difference": asdict(row.difference),
        "constant": {"answer": answer, "share": share},
        "tasks": done.tasks,
        "overrides": overrides,
    }
    with MEASURED.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run, ensure_ascii=False) + "\n")


def markdown() -> str:
    """Return a Markdown table with a line for each table that has figures, means over its seeds."""
    of_table: dict[str, list[dict[str, Any]]] = {}
    for run in measured():
        of_table.setdefault(run["table"], []).append(run)
    lines = [
        "| table | seeds | before | after | smallest difference | best constant answer | test rows |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in of_table.items():
        before, after = (mean(run[side]["mean"] for run in runs) for side in ("base", "trained"))
        least = min((run["difference"] for run in runs), key=lambda gap: gap["low"])
        change = f"{least['mean']:+.3f} [{least['low']:+.3f},\N{NO-BREAK SPACE}{least['high']:+.3f}]"
        best = f"{runs[0]['constant']['share']:.3f} `{runs[0]['constant']['answer']}`"
        figures = f"{len(runs)} | {before:.3f} | {after:.3f} | {change} | {best} | {runs[0]['tasks']}"
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--only", multiple=True, type=click.Choice([*TABLES]), help="Tables; all without it.")
@click.option("--seeds", default=1, help="Number of seeds, from 0.")
@click.option("--write", "only_write", is_flag=True, help="Write the tables and train nothing.")
def main(out: Path, overrides: tuple[str, ...], only: tuple[str, ...], seeds: int, only_write: bool) -> None:
    """Write the tables to OUT/tables; train on each with SmolLM2, and measure on rows that chose nothing."""
    tables = write(out / "tables")
    done = {(run["table"], run["seed"]) for run in measured()}
    chosen = [(table, seed) for seed in range(seeds) for table in tables if not only or table.stem in only]
    for table, seed in [] if only_write else chosen:
        if (table.stem, seed) not in done:
            click.echo(f"{table.stem}, seed {seed} …", err=True)
            measure(out, table, seed, overrides)
    if not only_write:
        click.echo(markdown())


if __name__ == "__main__":
    main()
