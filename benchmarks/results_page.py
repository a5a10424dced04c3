"""The page of benchmarks/results.py, and its pictures, from the JSON files of the runs alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from results_tables import ByTask, Run, Study

import rolegraph as rg
from rolegraph.engine.report.sweep import SweepPointFigures, sweep_picture

RESAMPLES = 2000
ALIKE = 0.1
"""Largest difference of two figures that `a ~ b` calls alike."""
UNMEASURED = "not measured yet"

BySeed = Mapping[int, ByTask]

HEAD = """# The field's tables in small

Each section takes one claim of a paper, trains the roles that it is about on the small model that ships, and
says whether the claim holds there. A small model on a small task can refute no paper; it shows in minutes
what the paper's mechanism does. Every figure has a 95 % interval that resamples both tasks and seeds. A
comparison holds if the interval of its difference lies above 0 and every seed agrees, and `a ~ b` if the
interval lies within 0.1 of 0. A claim holds if all its comparisons do; how many do stands beside it."""
COSTS = {"calls_per_episode": 1, "minutes": 1, "calls": 0, "tokens": 0}
"""Fields of a run with its costs, each with its digits."""


def interval(values: BySeed) -> rg.Interval:
    """Return the mean over seeds and tasks, with a percentile bootstrap interval that resamples both."""
    sides = [*values.values()]
    tasks = sorted(task for task in sides[0] if all(task in own for own in sides)) if sides else []
    if not tasks:
        return rg.Interval(0.0, 0.0, 0.0, 0)
    table_S_P = np.array([[own[task] for task in tasks] for own in sides])
    draw, (seeds, count) = np.random.default_rng(0), table_S_P.shape
    of_seeds = draw.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    of_tasks = draw.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    low, high = np.percentile(np.einsum("rs,sp,rp->r", of_seeds, table_S_P, of_tasks), (2.5, 97.5))
    return rg.Interval(float(table_S_P.mean()), float(low), float(high), count)


def minus(a: BySeed, b: BySeed) -> BySeed:
    """Return `a` minus `b` for each seed that both have: by task if the tasks are the same, else of means."""
    found: dict[int, ByTask] = {}
    for seed in sorted(a.keys() & b.keys()):
        one, other = a[seed], b[seed]
        if one.keys() != other.keys():
            one, other = {"": float(np.mean([*one.values()]))}, {"": float(np.mean([*other.values()]))}
        found[seed] = {task: value - other[task] for task, value in one.items()}
    return found


class Findings:
    """Measured values of a table's runs, and what they say of its claim."""

    def __init__(self, study: Study) -> None:
        self.study, self.table = study, study.table
        self.runs: dict[str, dict[int, Run]] = {arm: study.runs(arm) for arm in self.table.arms}

    def values(self, name: str) -> BySeed:
        """Return a figure by its name, `ARM` or `ARM.FIGURE`; a number stands for itself."""
        arm, _, figure = name.partition(".")
        if arm not in self.runs:
            return {seed: {"": float(name)} for seed in self.table.seeds}
        return {seed: run.values[figure] for seed, run in self.runs[arm].items() if run.values.get(figure)}

    def compared(self, words: str) -> tuple[bool | None, rg.Interval]:
        """Return whether a comparison holds, None where a side is not measured, and the difference."""
        a, sign, b = words.split()
        gap = minus(self.values(a), self.values(b))
        over = interval(gap)
        if not over.n:
            return None, over
        if sign == "~":
            return max(-over.low, over.high) < ALIKE, over
        return over.low > 0 and all(np.mean([*own.values()]) > 0 for own in gap.values()), over

    @property
    def verdict(self) -> str:
        """Words such as `holds (2 of 2)`: comparisons that hold, and seeds where some are missing."""
        found = [self.compared(words)[0] for words in self.table.expect]
        if None in found:
            return UNMEASURED
        seeds = min(len(runs) for runs in self.runs.values())
        few = f", {seeds} of {len(self.table.seeds)} seeds" if seeds < len(self.table.seeds) else ""
        return f"{'holds' if all(found) else 'does not hold'} ({sum(map(bool, found))} of {len(found)}{few})"

    def grid(self) -> str:
        """Write the table of the arms: figures with intervals, and the means of what a run costs."""
        own = [*self.table.tests, *self.table.metrics]
        head = [
            "arm",
            "untrained",
            self.table.figure,
            *own,
            "tasks × seeds",
            "calls an episode",
            *[*COSTS][1:],
        ]
        rows: list[list[str]] = []
        for arm, part in self.table.arms.items():
            names = [f"{arm}.start", arm, *(f"{arm}.{name}" for name in own)]
            runs = self.runs[arm].values()
            means = {key: np.mean([getattr(run, key) for run in runs]) if runs else 0.0 for key in COSTS}
            costs = [f"{mean:,.{COSTS[key]}f}" if mean else "–" for key, mean in means.items()]
            over = [interval(self.values(name)) for name in names]
            n = f"{over[1].n} × {len(runs)}" if runs else UNMEASURED
            own_figure = f" ({part.figure})" if part.figure else ""
            rows.append([f"`{arm}`: {part.about}{own_figure}", *map(shown, over), n, *costs])
        return grid(head, rows)

    def picture(self) -> str:
        """Draw a panel for each figure that is compared, with rows for each arm before and after training."""
        named = [
            name.removesuffix(".start").partition(".")
            for words in self.table.expect
            for name in words.split()
        ]
        compared = dict.fromkeys(figure for arm, _, figure in named if arm in self.runs)
        points: list[SweepPointFigures] = []
        for arm in self.table.arms:
            for label, suffix in ((f"{arm}, untrained", ".start"), (arm, "")):
                names = {figure: f"{arm}.{figure}".rstrip(".") + suffix for figure in compared}
                over = {
                    figure or self.table.figure: interval(self.values(name)) for figure, name in names.items()
                }
                if drawn := {title: found for title, found in over.items() if found.n}:
                    points.append(SweepPointFigures(label, (), drawn))
        return sweep_picture(self.table.title, points)


def shown(over: rg.Interval) -> str:
    """Write a figure with its interval; a dash where there is none."""
    return f"{over.mean:.3f} [{over.low:.3f}, {over.high:.3f}]" if over.n else "–"


def section(name: str, found: Findings, picture: str) -> str:
    """Write the section of one table."""
    table, measured = found.table, any(found.runs.values())
    parts = [f"## {table.title}", f"**Claim.** {table.claim} **Here: {found.verdict}.**"]
    for paper in table.papers:
        numbers = "; ".join(f"{label} {value}" for label, value in paper.numbers.items())
        parts.append(f"[{paper.title}]({paper.url}), {paper.models}: {numbers}.")
    parts.append(f"**Setting.** {table.setting}")
    if measured:
        parts += [f"![{table.title}]({picture})", found.grid()]
    verdicts = {True: "holds", False: "does not hold", None: UNMEASURED}
    rows: list[list[str]] = []
    for words, means in table.expect.items():
        holds, over = found.compared(words)
        rows.append([f"{means} (`{words}`)", shown(over), verdicts[holds]])
    parts.append(grid(["the claim predicts", "difference", ""], rows))
    size = table.paper_size
    words = " ".join(shlex.quote(word) for word in size.set)
    repeat = f"Repeat it: `python benchmarks/results.py {name}`. With `--paper-size` it adds `{words}`."
    for arm, kind in size.rllm.items():
        repeat += f" `{arm}` also trains with `--trainer rllm --backend {kind}`."
    if measured:
        parts.append("Minutes, calls and tokens are those of one training, as means over the seeds.")
    parts.append(repeat)
    return "\n\n".join(parts)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(studies: Sequence[Study], page: Path) -> None:
    """Write the page, and a picture beside it for each table that has runs."""
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for study in studies:
        found, picture = Findings(study), f"{page.stem}_{study.folder.name}.svg"
        if any(found.runs.values()):
            (page.parent / picture).write_text(found.picture(), encoding="utf-8")
        parts.append(section(study.folder.name, found, picture))
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
