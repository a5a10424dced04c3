"""`rolegraph test`: a spec's own tests, which compare replays of recorded answers; no model is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolegraph.api.jobs import blocking
from rolegraph.api.verdicts import Verdict, junit, unknown_names, verdicts
from rolegraph.api.workflow import Workflow
from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import Episode, Observer, RunFolder, read_episodes
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.files import is_file
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.records.ownership import check_replaceable, write_output
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode, run_jobs
from rolegraph.engine.run.likelihood import check_scorers
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec import TESTS_SUFFIX, find_spec
from rolegraph.engine.spec.expectations import LoadedTests, SpecTests, read_tests
from rolegraph.engine.spec.yaml_source import parse_yaml
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.training.analysis.compare import by_task
from rolegraph.engine.training.analysis.intervals import interval

_STARTER = """\
# What `rolegraph test {spec}` holds against the answers in {answers}.
# A figure is a number that it must be, or {{at_least: …, at_most: …}}.
{tests}"""


@dataclass(frozen=True, slots=True, repr=False)
class TestReport(Summarized):
    """The results of a spec's tests."""

    __test__ = False  # pytest would take a class of this name for a test class

    name: str
    """Name of the workflow."""
    verdicts: Sequence[Verdict]
    """One verdict for each expectation."""

    @property
    def failed(self) -> list[Verdict]:
        """Verdicts of the expectations that are not met."""
        return [verdict for verdict in self.verdicts if not verdict.holds]

    def summary(self) -> Summary:
        """Return the number of failed expectations, and a row for each, the failed ones first."""
        verdicts = sorted(self.verdicts, key=lambda it: it.holds)
        rows = [("holds" if it.holds else "fails", it.name, it.summary) for it in verdicts]
        title = f"TestReport {self.name}: {len(self.failed)} of {len(verdicts)} failed"
        return Summary(title, ("", "expectation", "result"), rows)

    def junit(self) -> bytes:
        """Return the verdicts as JUnit's XML."""

        return junit(self.name, self.verdicts)


async def test_async(
    flow: Workflow, tests: str | Path | None = None, *, junit: str | Path | None = None
) -> TestReport:
    """Replay a workflow's recorded answers, and compare the episodes with the expectations of its tests.

    No model is asked, even if the spec names models; rewards, parsers and tools do run.

    Args:
        flow: The workflow.
        tests: File of the tests; by default `NAME.test.yaml` beside the spec, or in the working folder for a
            shipped spec.
        junit: File to write the verdicts to, as JUnit XML; None writes no file.

    Returns:
        A verdict for each expectation; `failed` has those that are not met.

    Raises:
        SpecError: The tests have faults, or the spec asks for a permission that `allow` does not give.
        UsageError: There are no tests, or nothing is recorded.
        DataError: The recording is damaged.
        WorldError: A file cannot be read or written.
    """

    loaded_tests = read_tests(_path(flow, tests))
    flow.check_allowed()
    recorded = _recorded(loaded_tests)
    loaded_tests.check(unknown_names(loaded_tests.tests, flow.plan, recorded))
    episodes = await _again(flow, recorded, loaded_tests.tests.seed)
    report = TestReport(flow.name, verdicts(loaded_tests.tests, flow.plan, recorded, episodes))
    if junit:
        write_output(Path(junit), report.junit(), "xml")
    return report


test = blocking(test_async)


async def record_async(
    flow: Workflow,
    tests: str | Path | None = None,
    *,
    observe: Observer | None = None,
    force: bool = False,
) -> list[Path]:
    """Record the answers that `test` replays, with the workflow's own model.

    Args:
        flow: The workflow.
        tests: File of the tests, as for `test`; a missing file is written with the recorded results as its
            expectations.
        observe: Function that is called with each event, such as the end of an episode.
        force: True to replace a file of answers that `record` did not write, or that was changed since.

    Returns:
        The files that were written.

    Raises:
        SpecError: The tests have faults, or the spec asks for a permission that `allow` does not give.
        UsageError: The tests' `answers` is no .jsonl file or must not be replaced, no such model, or no key
            for it.
        WorldError: The model's endpoint does not answer, or the disk is full.
    """

    path = _path(flow, tests)
    read = read_tests(path) if path.exists() else LoadedTests(path, SpecTests(), parse_yaml("{}", str(path)))
    answers_label = f"{read.answers}, the `answers` of {path},"
    if read.answers.is_dir():
        hint = "nothing is recorded into; name a file, or leave `answers` out"
        raise UsageError(f"{answers_label} is a run's folder, which {hint}")
    if read.answers.suffix != ".jsonl":
        raise UsageError(f"{answers_label} is no .jsonl file, so nothing is written there")
    if not force:
        check_replaceable(read.answers)
    settings = read.tests
    rows = flow.tasks(settings.split, settings.tasks)
    async with flow.open() as open_flow:
        stream = open_flow.stream(tasks=rows, rollouts=settings.rollouts, seed=settings.seed, observe=observe)
        episodes = [episode async for episode in stream]
    row_index = {row["id"]: index for index, row in enumerate(rows)}
    episodes.sort(key=lambda episode: (row_index[episode.task_id], episode.rollout))
    lines = b"".join(json_line(episode.to_dict()) for episode in episodes)
    write_output(read.answers, lines, "jsonl")
    if path.exists():
        return [read.answers]
    write_whole(path, _starter(flow, read, episodes).encode())
    return [read.answers, path]


record = blocking(record_async)


def tested_specs(folder: str | Path = ".") -> list[Path]:
    """Return the specs in a folder that have tests beside them, NAME.test.yaml, by name.

    Args:
        folder: The folder; folders in it are not searched.

    Raises:
        UsageError: No spec of the folder has tests.
    """
    tests = sorted(Path(folder).glob(f"*{TESTS_SUFFIX}"))
    specs = [path.with_name(f"{path.name.removesuffix(TESTS_SUFFIX)}.yaml") for path in tests]
    if not (existing_specs := [spec for spec in specs if is_file(spec)]):
        hint = "name a spec, or create tests with `rolegraph test SPEC --record`"
        raise UsageError(f"no spec here has tests (NAME{TESTS_SUFFIX} beside NAME.yaml); {hint}")
    return existing_specs


def check_tests(path: str | Path) -> None:
    """Check a file of tests, without the spec and the recording that it belongs to.

    Args:
        path: File of the tests.

    Raises:
        SpecError: The tests have faults; the error lists each with its place.
        UsageError: There is no such file.
    """

    read_tests(Path(path))


def _path(flow: Workflow, tests: str | Path | None) -> Path:
    if tests is not None:
        return Path(tests)
    spec = find_spec(flow.source.named_spec)
    name = f"{spec.stem}{TESTS_SUFFIX}"
    return Path(name) if spec.parent == SPECS else spec.with_name(name)


def _recorded(read: LoadedTests) -> list[Episode]:
    answers = read.answers
    file = RunFolder(answers).episodes if answers.is_dir() else answers
    if not file.exists():
        raise UsageError(f"there are no recorded answers in {file}; make them with --record")
    episodes = [*read_episodes(file)]
    if not episodes:
        raise DataError(f"{file} holds no episode; record it again with --record")
    return episodes


async def _again(flow: Workflow, recorded: Sequence[Episode], seed: int) -> list[Episode]:
    """Replay recorded answers through the workflow; return the new episodes in the recording's order."""

    rows = [{**episode.task, "id": episode.task_id} for episode in recorded]
    jobs = [EpisodeJob(row, episode.rollout, seed) for row, episode in zip(rows, recorded, strict=True)]
    models = [LimitedModel(Replay.from_episodes(recorded, any_prompt=True), 1024)] * len(flow.plan.endpoints)
    await check_scorers(flow.plan, models)
    async with Isolation(flow.plan.imports) as isolation:
        episode_stream = run_jobs(jobs, lambda job: run_episode(flow.plan, job, models, isolation=isolation))
        episodes = [episode async for episode in episode_stream]
    position = {(episode.task_id, episode.rollout): index for index, episode in enumerate(recorded)}
    return sorted(episodes, key=lambda episode: position[episode.task_id, episode.rollout])


def _starter(flow: Workflow, read: LoadedTests, episodes: Sequence[Episode]) -> str:
    """Return the YAML text of a new tests file that expects the figures and failures of recorded episodes."""

    of = read.tests
    metrics = by_task(flow.plan, episodes)
    means = {name: interval(of).mean for name, of in metrics.items() if not name.startswith("answers/")}
    failures = [(t.name, t.failure) for e in episodes for t in e.trajectories if t.failure is not None]
    counts = Counter(f"{role}/{failure.name.value}" for role, failure in failures)
    figures = {name: round(value, 6) for name, value in means.items()}
    expectations = {"figures": figures, "failures": dict(counts) or 0}
    tests = dump_yaml({"tasks": of.tasks, "rollouts": of.rollouts, "expect": expectations})
    return _STARTER.format(spec=flow.source.named_spec, answers=read.answers.name, tests=tests)
