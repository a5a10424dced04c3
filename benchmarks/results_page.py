"""The page of benchmarks/results.py, and its pictures, from the lines of the runs alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import own_tables
from results_picture import Change, Rows, picture
from results_tables import LOOKS, ByTask, Run, Study, Table

from rolegraph import api
from rolegraph.engine.training.analysis.intervals import crossed

ALIKE = 0.1
"""Largest difference of two figures that `a ~ b` calls alike."""
SMALL = 0.03
"""Largest difference of two figures that counts as none."""
WIDER = 2.361 / 1.960
"""Factor that widens the 95 % intervals of `LOOKS`, so that all four looks together err in one of 20 cases:
Pocock (1977), "Group sequential methods in the design and analysis of clinical trials", table 1."""
BySeed = Mapping[int, ByTask]
Verdict = Literal["holds", "does not hold", "cannot tell", "no difference above 0.03"]

HEAD = """# Results

First a real language model, SmolLM2-135M-Instruct, in six kinds of workflow; then
the shipped model of one million parameters in every shipped workflow, and in comparisons that papers report
for many GPUs. All of it runs on a CPU. Each table is one YAML file and one command, which goes on where it
was ended.

A *role* is a prompt with a part in the workflow, such as solver or judge; an *arm* is one way to train.

How to read the figures:

- Brackets hold 95 % intervals: Wilson's over the tasks, widened by what the seeds add, with Student's factor
  for few seeds. Figures of a whole training vary over the seeds alone. Arms are compared task by task and
  seed by seed: they meet the same validation tasks.
- A comparison `a > b` *holds* if the interval of a − b lies above 0; it *does not hold* if the interval
  lies below 0; there is *no difference above 0.03* if the interval lies within 0.03 of 0. Otherwise we
  *cannot tell*: the difference is too small for so few runs. `a ~ b` holds if the interval lies within 0.1
  of 0, and does not if it lies beyond.
- The claims of papers follow a sequential rule, fixed before any fourth seed: three seeds, and three more,
  up to 12, until each comparison is decided. The intervals of their differences are 1.2 times as wide
  (Pocock, 1977), so that all four looks together err in one of 20 cases. A comparison keeps the verdict of
  the look that decided it, and an arm without an open comparison takes no further seed; this was fixed
  before any second look. With fewer than three seeds we cannot tell. Where 12 seeds leave a comparison open,
  it stays so; with fewer, the table's command goes on with it.
- A claim holds if all its comparisons do, and does not if one does not; brackets count those that hold.
- A figure after training is that of the last weights, not of the best ones on the tasks that are reported.
- Minutes, model calls and tokens are those of one training, as means over the seeds. The trainings of this
  page had one core each, beside other work; alone on two cores a training takes less. *Calls an episode* is
  the price of one use of the workflow: compare arms where it is equal.

The figures lie in `benchmarks/measured`, one file for each table and one line for each arm and seed, and
`python benchmarks/results.py --out benchmarks/measured --page docs/results.md` writes this page from them."""

OWN_TABLES = """## Ten tables such as a user has

**The claim.** The commands of [A table of your own](own_tasks.md) raise SmolLM2-135M-Instruct on at least
seven of ten unlike tables, and lower it on none.

**What is compared here.** Each table has at most 400 rows, made from word lists and rules. A training is 40
steps of imitation and 4 of GRPO. The figures are those of `rolegraph eval` on the test rows, which choose
nothing, with two episodes a row. A table rises if the difference of each seed has its interval above 0; the
table shows the smallest. `spelling`, seed 0, chose the default; the other nine chose nothing. The best
constant answer is the commonest label of the test rows.

{}

`true_false` rises towards the commoner answer and not beyond it; `sums` is too hard for this model.
All but `dates` ran with a lower `max_tokens` (`fields` 28, the others 8) than `rolegraph new --data` writes
today; their labels have fewer tokens.

**Repeat it.**

```sh
python benchmarks/own_tables.py OUT --seeds 3    # 4 to 6 minutes a training, on two cores
```"""

PAPERS = """## All claims

Papers that train several language models, or one model in several roles, report large gains, and few
readers can repeat them: they take many GPUs for hours. The following tables repeat what they claim with the
shipped model, on two cores, in minutes. A small model on small tasks refutes no paper. It shows what the
paper's mechanism does, and lets you change it and look again. Most tasks are countdown: write an expression
with some of the given numbers that has a given value."""


def interval(values: BySeed, *, difference: bool = False) -> api.Interval:
    """Return the mean over seeds and tasks, with its interval."""
    return crossed([*values.values()], difference=difference)


def minus(a: BySeed, b: BySeed) -> BySeed:
    """Return `a` minus `b` for each seed that both have: by task if the tasks are the same, else of means."""
    found: dict[int, ByTask] = {}
    for seed in sorted(a.keys() & b.keys()):
        one, other = a[seed], b[seed]
        if one.keys() != other.keys():
            one, other = {"": mean(one)}, {"": mean(other)}
        found[seed] = {task: value - other[task] for task, value in one.items()}
    return found


def widened(over: api.Interval) -> api.Interval:
    """Return the interval for one of several looks at growing data."""
    low, high = (over.mean + WIDER * (end - over.mean) for end in (over.low, over.high))
    return replace(over, low=low, high=high)


def mean(values: ByTask) -> float:
    """Return the mean over tasks."""
    return float(np.mean([*values.values()]))


class Compared(NamedTuple):
    """Verdict of a comparison, None where a side is not measured; the difference, and its number of seeds."""

    verdict: Verdict | None
    over: api.Interval
    seeds: int

    @property
    def is_open(self) -> bool:
        """Whether further seeds can bring a verdict."""
        return self.verdict in (None, "cannot tell")


def reached(seeds: int) -> list[int]:
    """Return those of `LOOKS` that so many seeds reach, or their number: seeds in between wait."""
    return [look for look in LOOKS if look <= seeds] or [seeds]


def judged(over: api.Interval, sign: str) -> Verdict:
    """Return whether a difference makes `a > b` or `a ~ b` true."""
    furthest = max(-over.low, over.high)
    if sign == "~":
        holds, fails = furthest < ALIKE, over.low > ALIKE or over.high < -ALIKE
    else:
        holds, fails = over.low > 0, over.high < 0
    if holds or fails:
        return "holds" if holds else "does not hold"
    return "no difference above 0.03" if furthest < SMALL else "cannot tell"


class Findings:
    """Measured values of a table's runs, and what they say of its claim."""

    def __init__(self, study: Study) -> None:
        self.study, self.table = study, study.table
        self.runs: dict[str, dict[int, Run]] = {arm: {} for arm in self.table.arms}
        for (arm, seed), run in study.runs().items():
            self.runs[arm][seed] = run

    @property
    def measured(self) -> bool:
        """True where every comparison has both sides; of a table without `expect`, where any run is."""
        if not self.table.expect:
            return any(self.runs.values())
        return all(self.compared(words).verdict for words in self.table.expect)

    @property
    def seeds(self) -> int:
        """Number of seeds that every arm has."""
        return min(map(len, self.runs.values()))

    def values(self, name: str) -> BySeed:
        """Return a figure by its name, `ARM` or `ARM.FIGURE`; a number stands for itself."""
        arm, _, figure = name.partition(".")
        if arm not in self.runs:
            return {seed: {"": float(name)} for seed in self.table.seeds}
        return {seed: run.values[figure] for seed, run in self.runs[arm].items() if run.values.get(figure)}

    def compared(self, words: str) -> Compared:
        """Return whether a comparison holds at the first of `LOOKS` that decides it, or at the last look."""
        a, sign, b = words.split()
        gap = minus(self.values(a), self.values(b))
        found = Compared(None, interval({}, difference=True), 0)
        for look in reached(len(gap)):
            over = interval({seed: gap[seed] for seed in sorted(gap)[:look]}, difference=True)
            if not over.n:
                break
            over = widened(over) if self.table.papers else over
            # Few trainings say nothing about the next.
            found = Compared(judged(over, sign) if look >= LOOKS[0] else "cannot tell", over, look)
            if not found.is_open:
                break
        return found

    @property
    def undecided(self) -> list[str]:
        """Arms of comparisons without a verdict, and those whose weights such arms take."""
        open_words = [words for words in self.table.expect if self.compared(words).is_open]
        wanted = {side.partition(".")[0] for words in open_words for side in words.split()[::2]}
        for arm in reversed(self.table.arms):  # an arm takes weights from earlier ones
            if arm in wanted:
                wanted |= self.study.sources_of_weights(arm)
        return [arm for arm in self.table.arms if arm in wanted]

    @property
    def verdict(self) -> str:
        """Words such as `holds (2 of 2, 3 seeds)`: comparisons that hold, and seeds that count."""
        found = [self.compared(words) for words in self.table.expect]
        verdicts = [each.verdict for each in found]
        least, most = min(each.seeds for each in found), max(each.seeds for each in found)
        seeds = f"{most} seed{'s' * (most != 1)}" if least == most else f"{least} to {most} seeds"
        return f"{joined(verdicts)} ({verdicts.count('holds')} of {len(found)}, {seeds})"

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, such as `It holds (2 of 2, 3 seeds).`"""
        verdict = self.verdict
        subject = {"cannot": "We", "no": "There is"}.get(verdict.partition(" ")[0], "It")
        return f"{subject} {verdict}."

    def figures(self) -> list[str]:
        """Return the figures that are compared, '' for the arms' own."""
        names = [name.removesuffix(".start") for words in self.table.expect for name in words.split()[::2]]
        split = [name.partition(".") for name in names]
        return [*dict.fromkeys(figure for arm, _, figure in split if arm in self.runs)] or [""]

    @property
    def headline(self) -> str:
        """Name of the arms' own figure, which may be another for each arm where none are compared."""
        return self.table.figure if self.table.expect or self.table.model else "headline figure"

    def rows(self) -> Rows:
        """Return by arm and figure the values before and after training, and of the best constant answer."""
        rows: dict[str, dict[str, Change]] = {}
        for arm in self.table.arms:
            for figure in self.figures():
                after, before, constant = (
                    interval(self.values(".".join(filter(None, (arm, figure, side)))))
                    for side in ("", "start", "constant")
                )
                if after.n:
                    change = Change(
                        before if before.n else None, after, constant.mean if constant.n else None
                    )
                    rows.setdefault(arm, {})[figure or self.headline] = change
        return rows

    def cost(self, arm: str) -> list[str]:
        """Return an arm's costs as cells: calls an episode, minutes, calls and tokens of a training."""
        digits = {"calls_per_episode": 1, "minutes": 1, "calls": 0, "tokens": 0}
        means = {key: np.mean([getattr(run, key) for run in self.runs[arm].values()]) for key in digits}
        return [f"{mean:,.{digits[key]}f}" if mean else "–" for key, mean in means.items()]

    def minutes(self) -> float:
        """Return the minutes of one seed's trainings, as means over the seeds; CPU minutes if measured."""
        return sum(
            mean_of(run.cpu_minutes or run.minutes for run in runs.values()) for runs in self.runs.values()
        )

    @property
    def missing(self) -> list[str]:
        """Arms that lack seeds, each with those seeds, in words."""
        lacking = {arm: sorted({*self.table.seeds} - {*runs}) for arm, runs in self.runs.items()}
        return [f"`{arm}` ({', '.join(map(str, seeds))})" for arm, seeds in lacking.items() if seeds]

    def beyond(self, arm: str) -> Verdict:
        """Return whether an arm's figure exceeds its start and the best constant answer, in every seed."""
        return joined([self.compared(f"{arm} > {arm}.{other}").verdict for other in ("start", "constant")])


def joined(verdicts: Sequence[Verdict | None]) -> Verdict:
    """Return the verdict on all of several comparisons."""
    worst: tuple[Verdict, ...] = ("does not hold", "cannot tell", "no difference above 0.03")
    return next((verdict for verdict in worst if verdict in verdicts), "holds")


def mean_of(values: Iterable[float]) -> float:
    """Return the mean, 0 of no values."""
    return float(np.mean(found)) if (found := [*values]) else 0.0


def shown(over: api.Interval, sign: str = "") -> str:
    """Write a figure with its interval, which no line break divides."""
    return f"{over.mean:{sign}.3f} [{over.low:{sign}.3f},\N{NO-BREAK SPACE}{over.high:{sign}.3f}]"


def changed(change: Change | None) -> str:
    """Write a figure before and after training."""
    if change is None:
        return "–"
    return f"{change.before.mean:.3f} → {shown(change.after)}" if change.before else shown(change.after)


COSTS = ("calls an episode", "minutes", "calls of the training", "tokens of the training")


def section(found: Findings, drawing: str) -> str:
    """Write the section of one table."""
    table, name = found.table, found.study.name
    parts = [f"## {table.title}", f"**The claim.** {table.claim}"]
    for paper in table.papers:
        parts.append(f"[{paper.title}]({paper.url}) reports, for {paper.models}:")
        parts.append(grid(["", "reported"], [[key, str(value)] for key, value in paper.numbers.items()]))
    parts += [f"**What is compared here.** {table.setting}", f"![{table.title}]({drawing})"]
    rows = found.rows()
    figures = [*dict.fromkeys(figure for row in rows.values() for figure in row)]
    own = {arm: f" ({part.figure})" if part.figure else "" for arm, part in table.arms.items()}
    cells = [
        [
            f"`{arm}`: {table.arms[arm].about}{own[arm]}",
            *(changed(row.get(figure)) for figure in figures),
            str(len(found.runs[arm])),
            *found.cost(arm),
        ]
        for arm, row in rows.items()
    ]
    parts.append(grid(["arm", *(f"`{figure}`" for figure in figures), "seeds", *COSTS], cells))
    parts.append(f"**Does it hold here?** {found.sentence}")
    predicted: list[list[str]] = []
    for words, means in table.expect.items():
        verdict, over, seeds = found.compared(words)
        predicted.append([f"{means} (`{words}`)", shown(over, "+"), str(seeds), verdict or "–"])
    parts += [grid(["the claim predicts", "difference", "seeds", ""], predicted), repeat(found, name)]
    return "\n\n".join(parts)


def repeat(found: Findings, name: str) -> str:
    """Write how to repeat a table, here and at the paper's size."""
    minutes = found.minutes() if found.seeds else found.table.minutes  # estimated while an arm is missing
    lines = [f"python benchmarks/results.py {name}    # {minutes:.0f} minutes a seed, on one core"]
    if size := found.table.paper_size:
        lines += [f"python benchmarks/results.py {name} --paper-size    # every spec also with:"]
        lines += [f"    # {shlex.quote(word)}" for word in size.set]
        lines += [f"    # {shlex.quote(word)}, {arm} alone" for arm, own in size.arms.items() for word in own]
    parts = ["**Repeat it.**", "\n".join(["```sh", *lines, "```"])]
    if size and size.rllm:
        kinds = ", ".join(f"`{arm}` (`--backend {kind}`)" for arm, kind in size.rllm.items())
        parts.append(f"Also with `rolegraph train --trainer rllm`: {kinds}.")
    return "\n\n".join(parts)


def shipped(found: Findings, drawing: str) -> str:
    """Write the section of the shipped specs: each seed by itself, held against the interval of its start."""
    table, rows, risen, trained = found.table, list[list[str]](), 0, 0
    for arm, part in table.arms.items():
        before, after = found.values(f"{arm}.start"), found.values(arm)
        seeds = sorted(before.keys() & after.keys())
        starts = {seed: interval({seed: before[seed]}) for seed in seeds}
        rose = sum(mean(after[seed]) > starts[seed].high for seed in seeds)
        risen += 0 < len(seeds) == rose
        trained += len(seeds)
        figure = f"`{part.figure or table.figure}`" + f" in `{part.test_spec}`" * bool(part.test_spec)
        if seeds:
            sides = [(starts[seed].mean, starts[seed].high, mean(after[seed])) for seed in seeds]
            cells = ["<br>".join(f"{value:.3f}" for value in column) for column in zip(*sides, strict=True)]
            rows.append([f"`{arm}`", figure, *cells, f"{rose} of {len(seeds)}", *found.cost(arm)[:2]])
    head = ["spec", "figure", "before, by seed", "up to", "after", "seeds that rose", *COSTS[:2]]
    text = (
        "A seed *rose* if its figure after training lies above the interval of its own start, which ends "
        "where the column *up to* says. "
        f"**{risen} of {len(table.arms)} specs rose in all their seeds.**"
    )
    if trained < (planned := len(table.arms) * len(table.seeds)):
        text += f" {trained} of {planned} trainings are measured."
    longest = max(run.minutes for runs in found.runs.values() for run in runs.values())
    text += f" The longest training took {longest:.1f} minutes."
    if missing := [f"`{arm}`" for arm in table.arms if not found.runs[arm]]:
        text += f" Not measured yet: {', '.join(missing)}."
    parts = [
        f"## {table.title}",
        f"**The claim.** {table.claim}",
        f"**What is compared here.** {table.setting}",
    ]
    parts += [text, f"![{table.title}]({drawing})"]
    return "\n\n".join([*parts, grid(head, rows), repeat(found, found.study.name)])


REAL_TEXT = """\
Greedy figures are one answer to each task at temperature 0; the others are sampled at temperature 1, as in
training. *Beyond both* compares the figure after training with its start and with the best constant answer,
in every seed. A *single role* is a solver alone that was trained with as many model calls and is asked as
often; the majority of its answers counts. Memory is the peak of the service, with the model's weights."""
REAL_HEAD = ("workflow", "right answers", "greedy", "best constant answer", "beyond both")
REAL_HEAD += ("single role", "difference", "seeds", "calls an episode", "CPU minutes", "memory, GB")


def real(found: Findings, drawing: str) -> str:
    """Write the section of a model that was not taught here, each workflow beside simpler answers."""
    table = found.table
    singles = {words.split()[2] for words in table.equal_calls}
    trained, planned = sum(map(len, found.runs.values())), len(table.arms) * len(table.seeds)
    parts = [
        f"## {table.title}",
        f"**The claim.** {table.claim}",
        f"**What is compared here.** {table.setting}",
        f"![{table.title}]({drawing})",
        grid(REAL_HEAD, [real_row(found, arm) for arm in found.rows() if arm not in singles]),
        " ".join(REAL_TEXT.splitlines()),
    ]
    if missing := found.missing:
        text = f"{trained} of {planned} trainings are measured. Missing arms, each with its seeds: "
        parts.append(f"{text}{', '.join(missing)}. The command measures them.")
    return "\n\n".join([*parts, repeat(found, found.study.name)])


def real_row(found: Findings, arm: str) -> list[str]:
    """Write one workflow's cells."""
    runs = found.runs[arm].values()
    words = next((words for words in found.table.equal_calls if words.startswith(f"{arm} ")), "")
    return [
        f"`{arm}`: {found.table.arms[arm].about}",
        changed(found.rows()[arm][found.headline]),
        " → ".join(over_all(found.values(f"{arm}.{figure}")) for figure in ("greedy.start", "greedy")),
        over_all(found.values(f"{arm}.constant")),
        found.beyond(arm),
        *beside_single(found, words),
        str(len(runs)),
        found.cost(arm)[0],
        measured_mean(run.cpu_minutes for run in runs),
        measured_mean(run.memory for run in runs),
    ]


def beside_single(found: Findings, words: str) -> list[str]:
    """Write a single role's figure and by how much a team is ahead, as two cells."""
    single = words.rpartition(" ")[2]
    if not found.runs.get(single):
        return ["–", "–"]
    verdict, over, _ = found.compared(words)
    return [f"{over_all(found.values(single))} (`{single}`)", f"{shown(over, '+')}, {verdict}"]


def over_all(values: BySeed) -> str:
    """Write the mean over seeds and tasks, without its interval."""
    return f"{mean_of(map(mean, values.values())):.3f}" if values else "–"


def measured_mean(values: Iterable[float]) -> str:
    """Write the mean of the values other than 0, which stands for one that is not measured."""
    return f"{mean_of(known):.1f}" if (known := [value for value in values if value]) else "–"


def sweep(found: Findings, drawing: str) -> str:
    """Write the section of the settings that each arm is trained with: which one suits all arms best."""
    table = found.table
    arms = [*dict.fromkeys(arm.partition("@")[0] for arm in table.arms)]
    rises = {
        setting: [
            interval(minus(found.values(name), found.values(f"{name}.start")), difference=True)
            for name in (f"{arm}@{setting}" for arm in arms)
        ]
        for setting in table.settings
    }
    best = [max(own[at].mean for own in rises.values()) for at in range(len(arms))]
    # A rise of nothing, or one that is not measured, suits no arm.
    least = {
        setting: min(
            rise.mean / top if rise.n and top > 0 else 0.0 for rise, top in zip(own, best, strict=True)
        )
        for setting, own in rises.items()
    }
    words = {setting: f"`{' '.join(own)}`" for setting, own in table.settings.items()}
    rows = [
        [words[setting], *(shown(rise, "+") if rise.n else "–" for rise in own), f"{least[setting]:.0%}"]
        for setting, own in rises.items()
    ]
    chosen = max(least, key=lambda setting: least[setting])
    text = (
        f"**{words[chosen]} suits all best**: each workflow rises by at least {least[chosen]:.0%} of what "
        f"its own best setting gives. Seeds: {found.seeds}."
    )
    parts = [
        f"## {table.title}",
        f"**The claim.** {table.claim}",
        f"**What is compared here.** {table.setting}",
    ]
    parts += [text, f"![{table.title}]({drawing})"]
    head = ["setting", *(f"rise of `{arm}`" for arm in arms), "least, of the best"]
    return "\n\n".join([*parts, grid(head, rows), repeat(found, found.study.name)])


def summary(tables: Sequence[Findings]) -> str:
    """Write one row for each measured claim."""
    rows = [
        [f"[{found.table.title}](#{anchor(found.table.title)})", found.table.claim, found.verdict]
        for found in tables
    ]
    teams = [found.compared(words).verdict for found in tables for words in found.table.equal_calls]
    text = (
        f"At equal numbers of model calls, the trained team beats the trained single role in "
        f"{teams.count('holds')} of {len(teams)} settings."
    )
    return "\n\n".join([grid(["table", "claim", "here"], rows), *([text] if teams else [])])


def anchor(title: str) -> str:
    """Return the anchor that the site gives a heading."""
    from markdown.extensions.toc import slugify

    return slugify(title, "-")


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def writer(table: Table) -> Callable[[Findings, str], str]:
    """Return the function that writes the section of a table of this kind."""
    if table.papers:
        return section
    return real if table.model else sweep if table.settings else shipped


def write_page(studies: Sequence[Study], page: Path) -> None:
    """Write the page, and a picture beside it for each table that is measured."""
    page.parent.mkdir(parents=True, exist_ok=True)
    tables = [Findings(study) for study in studies]
    measured = [found for found in tables if found.measured]
    claims = [found for found in measured if found.table.papers]
    others = [found for found in measured if not found.table.papers]
    parts = [HEAD]
    real = [found for found in others if found.table.model]
    for found in [*real, *(found for found in others if not found.table.model), *claims]:
        if claims and found is claims[0]:
            parts += [PAPERS, summary(claims)]
        name = f"{page.stem}_{found.study.name}.svg"
        (page.parent / name).write_text(picture(found.table.title, found.rows()), encoding="utf-8")
        parts.append(writer(found.table)(found, name))
        if real and found is real[-1]:
            parts.append(OWN_TABLES.format(own_tables.markdown()))
    if missing := [found for found in tables if not found.measured]:
        names = ", ".join(f"{found.table.title} (`{found.study.name}`)" for found in missing)
        parts += ["## Not measured yet", f"There are files, and no figures yet, for: {names}."]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
