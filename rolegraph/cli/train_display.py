"""Display of a training: a live table on a terminal, one line for each step without a terminal.

Everything that is shown is also in the training's folder.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rolegraph import api
from rolegraph.api.progress import SPEED_SECONDS, NoteProgress
from rolegraph.cli.output import OutputOptions, advised_commands, command
from rolegraph.cli.terminal import add_row, clock, make_table

VALIDATION, GREEDY, IMITATION = "validation/", "greedy/", "imitation/"
Metrics = Mapping[str, float]
COST = "cost/step", "${:,.4f}"
"""Metric of a step's cost in dollars, and its format."""
FIRST = "first-"
"""Prefix under which the metrics of the first validation are kept."""
FIGURE_COLUMNS = (
    api.StepMetric("episode/{}", "this step"),
    api.StepMetric(VALIDATION + "{}", "validation"),
    api.StepMetric(FIRST + VALIDATION + "{}", "before training"),
)
FAILED = "magenta"
"""Colour of failed answers, as in the report."""


@contextmanager
def train_display(training: api.TrainingJob, output: OutputOptions | None = None) -> Generator[api.Observer]:
    """Show a training during a block; give its observer, and print the results at the end.

    Args:
        training: The training that the block runs.
        output: Options of the output; None for neither quiet nor JSON.
    """
    output, started = output or OutputOptions(), time.monotonic()
    display = _TrainDisplay(training, output)
    display.announce()
    try:
        with display.shown:
            yield display.observe
    finally:
        _TrainEnd(training).show(output, time.monotonic() - started)


class _TrainDisplay:
    """Live tables of a training."""

    def __init__(self, training: api.TrainingJob, output: OutputOptions) -> None:
        self._plan, self._steps = training.flow.plan, training.steps
        self._latest: dict[str, float] = {}
        self._lines: list[Metrics] = []
        self._lost = ""
        """Failures of the latest step, and remarks on its answers, as text."""
        for line in training.folder.metrics():
            self._add(line)
        self._console, self._output = output.progress(), output
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            speed_estimate_period=SPEED_SECONDS,
        )
        self._bar = self._progress.add_task(self._plan.name, total=self._steps, completed=training.done)
        self._part = NoteProgress(console=self._console)
        """Progress of a part of a step: a batch of episodes, or an update."""
        is_live = self._console.is_terminal and not output.quiet
        live_tables = Live(console=self._console, get_renderable=self._view, transient=True)
        self.shown = live_tables if is_live else self._part.progress
        """Context manager that shows tables on a terminal, and lines about the current part without one."""

    def announce(self) -> None:
        """Print the number of steps, the learning rate of each policy with its origin, and the imitation
        stages."""
        rates = api.policy_rates(self._plan)
        rate_texts = [
            f"learning rate of {name} {rate}" if len(rates) > 1 else f"learning rate {rate}"
            for name, rate in rates.items()
        ]
        rate_texts += [
            f"steps {stage.first} to {stage.last} imitate"
            + (f" at {stage.stage.learning_rate:g}" if stage.stage.learning_rate else "")
            for stage in self._plan.stages
        ]
        text = "  ".join([f"{self._plan.name}: {self._steps} steps", *rate_texts])
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def observe(self, event: api.Event) -> None:
        """Update the tables and the progress line for an event of the training: metrics, a warning, or a
        note."""
        if isinstance(event, api.StepLogged):
            self._log(event)
        elif isinstance(event, api.Note) and event.kind == "warning":
            self._output.warn(event.text, self._console)
        else:
            self._part.observe(event)

    def _log(self, event: api.StepLogged) -> None:
        """Show the metrics of a step that is on disk."""
        self._add(event.metrics)
        faults = [*_lost(event.metrics), *self._faults(event)]
        self._lost = ", ".join(faults)
        self._progress.update(self._bar, completed=event.step)
        if not self._console.is_terminal:
            line = self._line(event.step, event.metrics, faults)
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _faults(self, event: api.StepLogged) -> Iterator[str]:
        """Yield a remark for each role whose reward a constant answer would get too, and the names of
        diverging roles."""
        metrics = event.metrics
        for role in self._plan.trained:
            reward, n = (metrics.get(f"reward/{role}/{name}") for name in ("mean", "n"))
            if reward is not None:
                constant_mean = metrics.get(f"answers/constant/{role}")
                remark = api.constant_remark(reward, constant_mean, n, event.constants.get(role))
                yield from [f"{role} {reward:.2f}, {remark}"] if remark else []
        if diverged_roles := api.divergences(self._lines, [*self._plan.trained]):
            yield f"diverging: {', '.join(divergence.role for divergence in diverged_roles)}"

    def _add(self, metrics: Metrics) -> None:
        """Add a step's metrics to the latest ones; the first validation's metrics are kept under the prefix
        `FIRST`."""
        starts = {f"{FIRST}{name}": value for name, value in metrics.items() if name.startswith(VALIDATION)}
        kept_metrics = {name: value for name, value in self._latest.items() if not name.startswith(IMITATION)}
        self._latest = {**starts, **kept_metrics, **metrics}
        self._lines.append(metrics)

    def _distinct_figures(self) -> list[str]:
        """Return the metrics of the episodes and the rewards of the roles; of metrics equal at every step,
        only the first."""
        names = (*self._plan.metric_names, *(f"reward/{role.name}" for role in self._plan.roles))
        return [metric for metric, *_ in api.equal_figures(self._lines, names)]

    def _distinct_metrics(self) -> list[str]:
        """Return the distinct metrics of the episodes, without the rewards of roles."""
        return [name for name in self._distinct_figures() if name in self._plan.metric_names]

    def _line(self, step: int, metrics: Metrics, faults: Iterable[str]) -> str:
        stage = [f"stage {metrics[api.STAGE]:.0f}"] if api.STAGE in metrics else []
        parts = [f"step {step}/{self._steps}", *stage]
        for name in self._distinct_figures():
            n_key = f"{name}/n" if name.startswith("reward/") else f"episode/n/{name}"
            parts += _mean(name, metrics, api.batch_key(name), n_key)
        for role, row_ in product(self._plan.trained, api.ROLE_METRICS):
            if row_.line and (value := metrics.get(row_.name.format(role))) is not None:
                parts.append(f"{role} {row_.line} {value:{row_.form}}")
        for name in self._distinct_metrics():
            parts += _mean(f"validation {name}", metrics, VALIDATION + name, f"{VALIDATION}n/{name}")
        parts += faults
        shown_metrics = (("tokens/per_second", "{:,.0f} tokens/s"), ("time/step", "{:.1f} s"), COST)
        for metric, number_format in shown_metrics:
            if metric in metrics:
                parts.append(number_format.format(metrics[metric]))
        return "  ".join(parts)

    def _view(self) -> Group:
        roles = [role.name for role in self._plan.roles]
        columns = [
            row
            for row in api.ROLE_METRICS
            if row.column and (not row.rare or any(self._latest.get(row.rare.format(role)) for role in roles))
        ]
        tables = [self._table("role", roles, columns)]
        if len(self._plan.policies) > 1:
            tables.append(self._table("policy", self._plan.policies, api.POLICY_METRICS))
        tables.append(self._table("figure", self._distinct_metrics(), FIGURE_COLUMNS))
        rate = self._latest.get("tokens/per_second")
        speed = "" if rate is None else f"{rate:,.0f} tokens/s"
        return Group(self._progress, self._part.progress, *tables, Text(self._lost, style=FAILED), speed)

    def _table(self, heading: str, names: Iterable[str], columns: Sequence[api.StepMetric]) -> Table:
        table = make_table(heading, *(metric.column for metric in columns))
        for column in table.columns:
            column.style = FAILED if str(column.header) == "failed" else column.style
        for name in names:
            values = [(self._latest.get(metric.name.format(name)), metric.form) for metric in columns]
            table.add_row(name, *("–" if value is None else format(value, form) for value, form in values))
        return table


class _TrainEnd:
    """Results of a training that is finished or was stopped."""

    def __init__(self, training: api.TrainingJob) -> None:
        self._flow, self._folder, self._steps = training.flow, training.folder, training.steps
        self._stopped = ""
        """Reason why `train.stop` ended the training."""
        if self._folder.info_file.exists() and (info := self._folder.info()).stopped:
            self._steps, self._stopped = info.steps, info.stopped
        self._plan = training.flow.plan
        self._lines = lines = self._folder.metrics() if self._folder.metrics_file.exists() else []
        self._done = int(max((line["step"] for line in lines), default=0))
        self._best = self._folder.best() if self._folder.checkpoints() else None
        self._last_saved = self._folder.last_checkpoint()
        self._report = self._folder.report if self._folder.report.exists() else None
        validations = [line for line in lines if any(name.startswith(VALIDATION) for name in line)]
        self._first, self._last = (validations[0], validations[-1]) if validations else ({}, {})
        self._measured = int(self._last.get("step", 0))
        """Step of the latest validation."""
        both = self._first.keys() & self._last.keys() if self._measured > 0 else set[str]()
        constants = [constant_metric for role in self._plan.asking for constant_metric in _beside(role.name)]
        self._figures = [it for it in (*self._plan.metric_names, *constants) if VALIDATION + it in both]
        """Metrics of both the first and the latest validation; empty if there was only one validation."""
        info = self._folder.info() if lines else None
        self._verdict = api.training_verdict(self._folder, info, lines) if info else api.TrainingVerdict()
        self._change = api.recorded_change(self._folder, info, lines) if info else None
        self._advice = api.advise(self._outcome())
        self._warnings = [*self._find_warnings(), *self._advice.remarks, *self._verdict.remarks]

    def show(self, output: OutputOptions, seconds: float) -> None:
        """Print the closing tables, the report's path, suggested commands, and the JSON document."""
        console = output.results()
        for table in self._tables():
            console.print(table)
        if self._change:
            console.print(str(self._change), markup=False, highlight=False)
        for text in self._warnings:
            output.warn(text)
        commands = self._next() if self._folder.info_file.exists() else []
        if self._folder.info_file.exists():
            seconds = self._folder.info().seconds or seconds
            cost = sum(line.get(COST[0], 0.0) for line in self._lines)
            cost_note = f", {COST[1].format(cost)}" if cost else ""
            console.print(f"{self._done} of {self._steps} steps in {clock(seconds)}{cost_note}")
            if self._stopped:
                console.print(f"stopped early: {self._stopped}", markup=False)
            if greedy_metrics := self._greedy():
                n = self._lines[-1].get(f"{GREEDY}n/{greedy_metrics[0][0]}", 0)
                took = self._lines[-1].get("time/greedy", 0)
                console.print(
                    f"greedy: one episode of each validation task at temperature 0 (n {n:.0f}), {took:.1f} s"
                )
            if self._last_saved and self._done < self._steps:
                console.print(f"--resume continues from the checkpoint of step {self._last_saved.step}")
            if self._best:
                word, best_note = ("best", f" ({api.BEST_ON_THESE})") if self._best.best else ("last", "")
                console.print(f"{word} weights: step {self._best.step}{best_note}")
            output.next(*commands)
            console.print(str(self._report or self._folder.path), markup=False)
        output.document({**self._document(), "seconds": round(seconds, 3), "next": commands})

    def _document(self) -> dict[str, Any]:
        """Return the document of `--json`, without the seconds and the suggested commands."""
        values = [(name, f"{VALIDATION}{name}") for name in self._figures]
        return {
            "folder": str(self._folder.path),
            "steps": self._steps,
            "done": self._done,
            "stopped": self._stopped,
            "metrics": self._lines[-1] if self._lines else {},
            "validation": {
                name: {"before": self._first[key], "now": self._last[key]} for name, key in values
            },
            "verdict": self._change and self._change.record,
            "controls": [row.model_dump() for row in self._folder.controls()],
            "greedy": {
                name: {"before": self._lines[0].get(key), "now": self._lines[-1][key]}
                for name, key in self._greedy()
            },
            "diverged": [divergence._asdict() for divergence in self._verdict.diverged],
            "warnings": self._warnings,
            "best": self._best and {"step": self._best.step, "policies": [*self._best.policies]},
            "report": self._report and str(self._report),
            "log": str(self._folder.log),
        }

    def _greedy(self) -> list[tuple[str, str]]:
        """Return (metric, its name in the last line) for each metric of the greedy validation at the end."""
        names = self._lines[-1] if self._done else ()
        return [(metric, f"{GREEDY}{metric}") for metric in self._figures if f"{GREEDY}{metric}" in names]

    def _outcome(self) -> api.Outcome:
        """Return the outcome of the training, from which advice is chosen."""
        answers = self._folder.answers() if self._done else {}
        roles = [
            api.RoleOutcome(
                role.name,
                answers[role.name].count if role.name in answers else 0,
                answers[role.name].failures if role.name in answers else {},
                next(iter(role.parser.examples), ""),
                dead=self._is_dead(role.name),
                diverged=any(divergence.role == role.name for divergence in self._verdict.diverged),
            )
            for role in self._plan.roles
        ]
        figure = f"{VALIDATION}{self._plan.spec.train.validation.best}"
        rates = {rate.value for rate in api.policy_rates(self._plan).values()}
        is_measured = any(figure in line for line in self._lines)
        return api.Outcome(
            "train",
            self._done,
            self._steps,
            roles,
            foreign=bool(api.foreign_prompts(self._plan)),
            has_weights=self._best is not None,
            learnt=any(line.get("optim/data") for line in self._lines),
            rate=next(iter(rates)) if len(rates) == 1 else None,
            better=self._best.best if self._best and is_measured else None,
        )

    def _is_dead(self, role: str) -> bool:
        """Return True for a trained role if no group and no signal of any step taught it anything."""
        shares = [api.taught_share(line, role) for line in self._lines]
        known_shares = [share for share in shares if share is not None]
        return role in self._plan.trained and bool(known_shares) and not any(known_shares)

    def _next(self) -> list[str]:
        """Return the suggested next commands."""
        return [line for action in self._advice.actions for line in self._commands(action)]

    def _commands(self, it: api.NextAction) -> list[str]:
        folder, source = self._folder.path, api.without_project(self._flow.source)
        match it.action:
            case api.Action.TRAIN_LOWER:
                lower_rates = api.lower_rates(self._plan, [it.role for it in self._verdict.diverged])
                names = {word.partition("=")[0] for word in lower_rates}
                overrides = [word for word in source.overrides if word.partition("=")[0] not in names]
                return [command("train", *replace(source, overrides=(*overrides, *lower_rates)).arguments())]
            case api.Action.RUN_WEIGHTS:
                policies = [*self._best.policies] if self._best else []
                trained_source = api.trained_source(self._flow, folder, policies)
                return [command("run", *api.without_project(trained_source).arguments())]
            case api.Action.EXPORT:
                return [command("export", *words) for words in api.export_arguments(folder)]
            case _:
                return advised_commands(it, "train", self._flow, folder)

    def _find_warnings(self) -> Iterator[str]:
        """Yield a line for each role with failed answers, and for each remark on a role's answers."""
        yield from self._folder.common_failures()
        if idle_count := sum(line.get("optim/data") == 0 for line in self._lines):
            yield f"{idle_count} of {self._done} steps had no gradient: every advantage in them is 0"
        if self._done and self._folder.info_file.exists():
            answers = {name: tally.count for name, tally in self._folder.answers().items()}
            routes, info = api.summed_routes(self._lines), self._folder.info().roles
            yield from (f"{name}: {text}" for name, text in api.route_remarks(info, answers, routes))
            choices = {tally: of for tally in self._plan.routers if (of := api.routes_of(tally, routes))}
            step_range = api.last_routes(self._lines).where
            yield from (f"{router} chose {of} in {step_range}" for router, of in choices.items())
        for role in self._plan.roles:
            for remark in api.REMARKS:
                if count := sum(line.get(f"{remark}/{role.name}", 0) for line in self._lines):
                    yield f"{role.name}: {count:.0f} answers {remark}: {role.explain(remark)}"

    def _distinct_figures(self) -> list[tuple[str, ...]]:
        """Return the metrics of the table's rows; metrics that are equal at every step share a row."""
        constant = [(name,) for name in self._figures if name.startswith("answers/")]
        scores = [name for name in self._figures if not name.startswith("answers/")]
        return [*api.equal_figures(self._lines, scores), *constant]

    def _tables(self) -> Iterator[Table]:
        if self._figures:
            greedy = dict(self._greedy())
            columns = ("greedy",) if greedy else ()
            table = make_table("validation", "before", f"at step {self._measured}", "change", "n", *columns)
            for name, *equal_names in self._distinct_figures():
                before, now = (line[VALIDATION + name] for line in (self._first, self._last))
                n = self._last.get(f"{VALIDATION}n/{name}")
                n_text = "–" if n is None else f"{n:,.0f}"
                greedy_means = [line.get(greedy.get(name, "")) for line in (self._lines[0], self._lines[-1])]
                values = [f"{value:.3f}" for value in greedy_means if value is not None]
                cells = [" -> ".join(values) or "–"] if greedy else []
                label = "\n= ".join([name, *equal_names])
                add_row(table, label, f"{before:.3f}", f"{now:.3f}", f"{now - before:+.3f}", n_text, *cells)
            yield table
        if controls := self._folder.controls():
            headings = ("on the same validation tasks", "figure", "mean and 95 % interval", "n")
            table = make_table(*headings, texts=(1,))
            for row in controls:
                mean = f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"
                add_row(table, row.name, row.figure, mean, str(row.n or "–"))
            yield table


def _beside(role: str) -> list[str]:
    """Return the names of metrics to show side by side: a role's reward, and the metrics of its constant
    answers.
    """
    return [f"reward/{role}", f"answers/constant/{role}", f"answers/same/{role}"]


def _mean(label: str, metrics: Metrics, key: str, n: str) -> list[str]:
    """Return a mean with its label, and with n if it is on record; an empty list without the metric."""
    return [f"{label} {metrics[key]:.3f}{_n(metrics.get(n))}"] if key in metrics else []


def _n(count: float | None) -> str:
    return "" if count is None else f" (n {count:.0f})"


def _lost(metrics: Metrics) -> Iterator[str]:
    """Yield a text such as `solver timeout 3` for each count of failures or remarks in a step's metrics."""
    for name, count in metrics.items():
        kind, _, subject = name.partition("/")
        if kind == "failures":
            yield f"{subject.replace('/', ' ')} {count:.0f}"
        elif kind in api.REMARKS:
            yield f"{subject} {kind} {count:.0f}"
