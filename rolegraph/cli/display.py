"""Display of a run: a progress bar with live metrics, and a table of the roles at the end.

The display keeps sums, and no episodes. The bar goes to standard error, the table to standard output.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rich import progress
from rich.table import Column

from rolegraph import api
from rolegraph.api.progress import SPEED_SECONDS, SteadyProgress
from rolegraph.cli.output import OutputOptions, advised_commands, command
from rolegraph.cli.terminal import add_row, make_table

SHOWN_OF_ANSWER = 16
"""Largest number of characters of an answer in the table of roles."""


@dataclass(slots=True)
class _RoleSums:
    """Sums over the trajectories of a role, for the document of `--json`."""

    trajectories: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    calls: int = 0
    """Number of model calls, each attempt counted, or of tool runs."""
    call_seconds: float = 0.0
    cost: float = 0.0
    """Cost of the calls in dollars; calls whose cost is unknown count as 0."""
    failures: Counter[str] = field(default_factory=Counter[str])
    remarks: Counter[str] = field(default_factory=Counter[str])
    """Number of trajectories with each remark (`REMARKS`)."""


class Display:
    """Progress bar of a run while it is `shown`, and its metrics at the end.

    `floors` gives the lowest accepted values of metrics, by name: `answered` (the share of trajectories that
    a model answered), `correct`, the spec's metrics and `reward/{role}`.
    """

    def __init__(
        self, run: api.RunJob, *, floors: Mapping[str, float], output: OutputOptions | None = None
    ) -> None:
        self._folder, self._run, self._plan = run.folder, run, run.flow.plan
        self._output, self._floors = output or OutputOptions(), floors
        rewards = [f"reward/{role.name}" for role in self._plan.roles if role.reward is not None]
        figures = ["answered", "correct", *self._plan.metrics, *rewards]
        for name in floors:
            if name not in figures:
                hint = api.did_you_mean(name, figures) or f"expected one of {', '.join(figures)}"
                raise api.UsageError(f"--fail-under: no figure {name!r}; {hint}")
        self._roles = {role.name: _RoleSums() for role in self._plan.roles}
        self._answers = {role.name: api.AnswerTally(role.allowed_answers) for role in self._plan.asking}
        self._routes = api.RouteTally(self._plan)
        self._answered = 0
        """Number of trajectories that a model answered."""
        self._first_failures: dict[tuple[str, str], str] = {}
        """First failure for each (role, failure name), in one line with the answer."""
        self._means = api.Means()
        """Means of the spec's metrics, and `reward/{role}` and `right/{role}` over trajectories."""
        self._equal = api.EqualFigures(self._plan.own_metric_names)
        self._episodes = 0
        self._started: float | None = None
        """Time at which the model was ready; None until then."""
        self._progress = SteadyProgress(
            progress.TextColumn("[bold]{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(compact=True),
            # Folded where the line is too narrow, so that count and times stay whole.
            progress.TextColumn("{task.fields[live]}", table_column=Column(overflow="fold")),
            console=self._output.progress(),
            speed_estimate_period=SPEED_SECONDS,
        )
        self._bar = self._progress.add_task(self._plan.name, total=run.episodes, live="")
        if run.resumed and self._folder.episodes.exists():
            for episode in api.read_episodes(self._folder.episodes):
                self._count(episode)
        self._before, self._tokens_before = self._episodes, self._sum("response_tokens")
        """Numbers of episodes and of response tokens that the folder held before the run."""

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show the bar during a block, and print the metrics when the block ends."""
        try:
            with self._progress:
                yield
        finally:
            seconds = 0.0 if self._started is None else time.monotonic() - self._started
            if self._started is not None:
                self._end(seconds)
            self._output.document(self._document(seconds))

    def observe(self, event: api.Event) -> None:
        """Update the bar and the counts for an event; print a notice or a warning."""
        if isinstance(event, api.CallDone):
            role = self._roles[event.id.node.role]
            role.calls += 1
            role.call_seconds += event.seconds
        elif isinstance(event, api.EpisodeDone):
            self._count(event.episode)
        elif isinstance(event, api.Note) and event.kind == "warning":
            self._output.warn(event.text, self._progress.console)
        elif isinstance(event, api.Note) and event.kind == "notice":
            self._progress.console.print(api.printable(event.text), markup=False, highlight=False)
        elif isinstance(event, api.Note):
            if not event.text:
                self._started = time.monotonic()
            self._progress.update(self._bar, live=api.printable(event.text))

    def exit_code(self) -> int:
        """Return 1 if no model call gave an answer, or a metric is below its floor; else 0."""
        return 1 if (self._asked() and not self._answered) or any(self._low()) else 0

    def _count(self, episode: api.Episode) -> None:
        self._episodes += 1
        self._means.add(episode.figures)
        self._equal.add(episode.figures)
        self._routes.add(episode)
        for trajectory in episode.trajectories:
            self._count_trajectory(trajectory, self._roles[trajectory.name])
            if trajectory.name in self._answers:
                self._answers[trajectory.name].add(episode.task_id, trajectory)
        failure_count = sum(sums.failures.total() for sums in self._roles.values())
        status = "  ".join([*self._shown_means(), *([f"failures {failure_count}"] if failure_count else [])])
        self._progress.update(self._bar, advance=1, live=status)

    def _count_trajectory(self, trajectory: api.Trajectory, sums: _RoleSums) -> None:
        name = trajectory.name
        sums.trajectories += 1
        sums.cost += self._plan.cost(trajectory) or 0.0
        sums.remarks.update(trajectory.remarks)
        self._answered += name in self._answers and trajectory.by_model
        if trajectory.reward is not None:
            self._means.add({f"reward/{name}": trajectory.reward})
            if trajectory.failed_by != "reward":
                self._means.add({f"right/{name}": trajectory.is_correct})
        for step in trajectory.steps:
            if name not in self._answers:
                sums.calls += 1
                sums.call_seconds += step.metadata.get("seconds", 0.0)
            sums.prompt_tokens += step.prompt_tokens
            sums.response_tokens += step.response_tokens
        if trajectory.failure is not None:
            failure = trajectory.failure.name.value
            sums.failures[failure] += 1
            self._first_failures.setdefault((name, failure), trajectory.failure_line)

    def _end(self, seconds: float) -> None:
        """Print the closing table, the failures and suggested commands."""
        console = self._output.results()
        if self._episodes:
            self._print_table()
        summary = f"{self._episodes - self._before} episodes in {seconds:.1f} s"
        texts = [f"{summary}, {self._episodes} in all" if self._before else summary, *self._shown_means()]
        if (tokens := self._sum("response_tokens") - self._tokens_before) and seconds:
            texts.append(f"{tokens / seconds:,.0f} tokens/s")
        console.print("   ".join(texts))
        for role in self._plan.roles:
            lines = [line for (name, _), line in self._first_failures.items() if name == role.name]
            lines += [f"{remark}: {role.explain(remark)}" for remark in self._roles[role.name].remarks]
            for line in lines:
                console.print(api.printable(f"{role.name} {line}"), style="yellow", markup=False)
        if self._episodes:
            info, counts = self._run.info.roles, self._routes.answers
            for name, remark in api.route_remarks(info, counts, self._routes.metrics()):
                console.print(api.printable(f"{name}: {remark}"), style="yellow", markup=False)
        for model, fields in self._folder.info().left_out.items():
            console.print(api.printable(f"{model} refuses {', '.join(fields)}: left out"), style="yellow")
        if missing_answers := self._asked() - self._answered:
            text = f"{missing_answers} of {self._asked()} trajectories got no answer"
            if "answered" not in self._floors:
                text += "; --fail-under answered=1 makes that an error"
            self._output.warn(text)
        for name, value, floor in self._low():
            problem = "measured in no episode" if value is None else f"{value:.3f}, under {floor:g}"
            self._output.warnings().print(f"error: {name} is {problem}", style="red")
        for remark in self._advice().remarks:
            self._output.warn(remark)
        self._output.next(*self._next())
        console.print(str(self._folder.episodes), markup=False)

    def _advice(self) -> api.Advice:
        """Return suggested actions that follow from the failures and results of the run."""
        roles = [
            api.RoleOutcome(
                role.name,
                self._roles[role.name].trajectories,
                self._roles[role.name].failures,
                next(iter(role.parser.examples), ""),
            )
            for role in self._plan.roles
        ]
        is_foreign = bool(api.foreign_prompts(self._plan))
        trainable = self._run.flow.is_trainable and not self._run.flow.source.model
        done, planned = self._episodes, self._run.episodes
        return api.advise(api.Outcome("run", done, planned, roles, foreign=is_foreign, trainable=trainable))

    def _next(self) -> list[str]:
        """Return the suggested actions as command lines."""
        return [line for action in self._advice().actions for line in self._commands(action)]

    def _commands(self, it: api.NextAction) -> list[str]:
        flow, folder = self._run.flow, self._folder.path
        if it.action is not api.Action.REPLAY:
            return advised_commands(it, "run", flow, folder)
        source = replace(api.without_project(flow.source), model=f"replay:{folder}", base_url=None)
        return [command("run", *source.arguments(), *self._tasks())]

    def _tasks(self) -> Iterator[str]:
        """Yield the command-line words, such as `--limit` and `8`, that repeat the run's choice of tasks and
        seed."""
        info = self._run.info
        options = {
            "--limit": info.limit if info.limit == len(self._run.tasks) else None,
            "--rollouts": info.rollouts if info.rollouts != 1 else None,
            "--split": info.split,
            "--seed": info.seed or None,
        }
        for option, value in options.items():
            if value is not None:
                yield from (option, str(value))

    def _document(self, seconds: float) -> dict[str, Any]:
        """Return the JSON document; docs/command/output.md describes its keys."""
        routes = self._routes.metrics()
        return {
            "folder": str(self._folder.path),
            "episodes": self._episodes,
            "wanted": self._run.episodes,
            "seconds": round(seconds, 3),
            "figures": self._figures(),
            "n": self._partial(),
            "roles": {
                name: {
                    "trajectories": sums.trajectories,
                    "reward": self._mean("reward", name),
                    "right": self._mean("right", name),
                    "n": self._means.counts[f"reward/{name}"],
                    "constant": self._constant(name),
                    "routes": api.shares_of(name, routes),
                    "defaults": routes.get(f"defaults/{name}", 0.0),
                    "defaults_reward": routes.get(f"defaults/reward/{name}"),
                    "prompt_tokens": sums.prompt_tokens,
                    "response_tokens": sums.response_tokens,
                    "calls": sums.calls,
                    "call_seconds": round(sums.call_seconds, 3),
                    "cost": sums.cost,
                    "failures": sums.failures,
                    **{remark: sums.remarks[remark] for remark in api.REMARKS},
                }
                for name, sums in self._roles.items()
            },
            "under": {name: {"is": value, "floor": floor} for name, value, floor in self._low()},
            "log": str(self._folder.log),
            "next": self._next(),
        }

    def _low(self) -> Iterator[tuple[str, float | None, float]]:
        """Yield (metric, value, floor) for each metric below its floor; the value is None if the metric was
        not measured."""
        figures = self._figures()
        for name, floor in self._floors.items():
            value = figures.get(name)
            if value is None or value < floor:
                yield name, value, floor

    def _figures(self) -> dict[str, float]:
        means = {name: mean for name, mean in self._means.means().items() if not name.startswith("right/")}
        answered_share = self._answered / max(1, self._asked())
        zero_correct = {} if self._episodes else {"correct": 0.0}
        return {"answered": answered_share, **zero_correct, **means}

    def _asked(self) -> int:
        """Return the number of trajectories of roles that call a model."""
        return sum(self._roles[name].trajectories for name in self._answers)

    def _sum(self, count: str) -> int:
        return sum(getattr(sums, count) for sums in self._roles.values())

    def _mean(self, figure: str, role: str) -> float | None:
        """Return the mean of a role's `reward` or `right`, as `figure` names it; None without a value."""
        is_judged = figure == "reward" or role in self._plan.judged
        return self._means.means().get(f"{figure}/{role}") if is_judged else None

    def _constant(self, role: str) -> dict[str, Any] | None:
        """Return a role's commonest answer and best constant answer with their metrics; None if its answers
        are not discrete."""
        constants = self._answers[role].result if role in self._answers else None
        names = ("commonest", "share", "best", "reward")
        return constants and {name: getattr(constants, name) for name in names}

    def _partial(self) -> dict[str, int]:
        """Return the number of values of each metric that some episodes lack."""
        counts = {name: self._means.counts[name] for name in ("correct", *self._plan.metrics)}
        return {name: count for name, count in counts.items() if count < self._episodes}

    def _shown_means(self) -> Iterator[str]:
        """Yield `correct` and each metric with its mean, and with n if it differs from the number of
        episodes.

        Of metrics that are equal in every episode, only the first is shown.
        """
        means, partial = self._means.means(), self._partial()
        for name in self._equal.distinct:
            n_note = f" (n {partial[name]})" if name in partial else ""
            number_format = ".1%" if name == "correct" else ".3f"
            yield f"{name} {means[name]:{number_format}}{n_note}" if name in means else f"{name} –"

    def _print_table(self) -> None:
        constants = {name: tally.result for name, tally in self._answers.items()}
        beside = ("constant", "commonest") if any(constants.values()) else ()
        routes = {name: api.routes_of(name, self._routes.metrics()) for name in self._roles}
        route_columns = ("routes",) if any(routes.values()) else ()
        cost_columns = ("cost",) if any(sums.cost for sums in self._roles.values()) else ()
        tokens = ("tokens in", "out", *cost_columns)
        headings = ("role", "runs", "reward", "right", *beside, *route_columns, *tokens, "s/call", "failures")
        table = make_table(*headings, texts=(len(headings) - 1,))
        for name, sums in self._roles.items():
            failure_counts = [*sums.failures.most_common(), *sums.remarks.items()]
            reward, right = self._mean("reward", name), self._mean("right", name)
            reward_count = self._means.counts[f"reward/{name}"]
            n_note = f" (n {reward_count})" if reward_count != sums.trajectories else ""
            add_row(
                table,
                name,
                f"{sums.trajectories:,}",
                "–" if reward is None else f"{reward:.3f}{n_note}",
                "–" if right is None else f"{right:.1%}{n_note}",
                *(_constant_cells(constants.get(name)) if beside else ()),
                *(routes[name].replace(", ", "\n") or "–" for _ in route_columns),
                f"{sums.prompt_tokens:,}" if name in self._answers else "–",
                f"{sums.response_tokens:,}" if name in self._answers else "–",
                *(f"${sums.cost:,.4f}" for _ in cost_columns),
                f"{sums.call_seconds / max(1, sums.calls):.2f}",
                "\n".join(f"{failure} {count}" for failure, count in failure_counts) or "none",
            )
        self._output.results().print(table)


def _constant_cells(constants: api.ConstantAnswers | None) -> list[str]:
    """Return two cells: reward and text of the best constant answer, and share and text of the commonest
    answer."""
    if constants is None:
        return ["–", "–"]
    reward = "–" if constants.reward is None else f"{constants.reward:.3f} {_shortened(constants.best)}"
    return [reward, f"{constants.share:.0%} {_shortened(constants.commonest)}"]


def _shortened(answer: str) -> str:
    return repr(answer if len(answer) <= SHOWN_OF_ANSWER else f"{answer[:SHOWN_OF_ANSWER]}…")
