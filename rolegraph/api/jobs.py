"""Parts of every verb's job: folders in `runs/`, `run.json`, `log.txt`, twins of coroutine functions."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import UTC, datetime
from functools import partial, wraps
from io import TextIOWrapper
from itertools import chain, count
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from rolegraph.api.arguments import check_call
from rolegraph.api.trusting import check_models, resumed_source
from rolegraph.api.workflow import Workflow, foreign_findings, open_source, shipped_specs
from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import DataError, UsageError, WorldError, os_errors_as, printable
from rolegraph.engine.models.checkpoints import with_base
from rolegraph.engine.plugins import plugin, plugin_names
from rolegraph.engine.records import (
    EpisodeDone,
    Event,
    Note,
    Observer,
    RunFolder,
    Source,
    StepLogged,
    Task,
    Trajectory,
    confined,
)
from rolegraph.engine.records.data import UsedRows
from rolegraph.engine.records.folder import INFO
from rolegraph.engine.records.info import Kind, RoleInfo, RunInfo, source_fields
from rolegraph.engine.records.ownership import FolderKind
from rolegraph.engine.records.run_folders import RUNS, newest
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.run.streaming import EpisodeMaker
from rolegraph.engine.shipped import MODELS, model_folder, name_of_fetched
from rolegraph.engine.spec import ModelRef, load_spec
from rolegraph.engine.spec.yaml_source import read_yaml
from rolegraph.engine.vocabulary import Split

P = ParamSpec("P")
T = TypeVar("T")
LOGGERS = ("rolegraph", "tinker")
"""Loggers whose warnings are also written to a run's log."""


def blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a blocking function that runs the coroutine function `work` in a new event loop, for scripts.

    The function raises UsageError for wrong arguments, and if an event loop is already running.
    """

    @wraps(work)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        check_call(work, args, kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **kwargs))
        raise UsageError(f"an event loop is already running, as in a notebook: await rg.{work.__name__}(…)")

    twin.__name__ = twin.__qualname__ = work.__name__.removesuffix("_async")
    return twin


def shown_progress(
    observe: Observer | None, show: bool, steps: int | None = None
) -> AbstractContextManager[Observer]:
    """Return a context manager that yields an observer, and with `show` displays a progress bar.

    Args:
        observe: Function that gets each event; None ignores them.
        show: True to show a progress bar in a terminal and in a notebook.
        steps: For a training: number of its steps.
    """
    observe = observe or ignore_event
    if not show:
        return nullcontext(observe)
    if "ipykernel" in sys.modules:
        from rolegraph.api.notebook import is_notebook, notebook_bars

        if is_notebook():  # rich's bar needs ipywidgets there
            return notebook_bars(observe, steps)
    if not sys.stderr.isatty():
        return nullcontext(observe)
    from rolegraph.api.progress import progress_bars  # imports rich

    return progress_bars(observe, steps)


def folder_to_resume(out: str | Path | None, source: Source | None, kind: Kind) -> RunFolder:
    """Return the RunFolder at `out`; without `out`, the newest folder of this kind in `runs/`.

    If `source` names a spec, the newest folder of that spec is returned.
    """
    if out:
        return RunFolder(Path(out))
    return newest(RUNS, load_spec(source.spec).spec.name if source and source.spec else None, kind)


def flow_to_resume(folder: RunFolder, before: RunInfo, source: Source | None, seed: int | None) -> Workflow:
    """Load the workflow of a run or a training that is resumed; fields that are set in `source` replace those
    of the folder.

    Raises:
        SpecError: The spec has faults.
        UsageError: The seed differs from that of the start, or imports, permissions or an address of another
            machine must be given again.
    """
    if seed not in (None, before.seed):
        raise UsageError(f"{folder.path} was started with the seed {before.seed}; the seed cannot change")
    _check_version(folder, before)
    flow = open_source(resumed_source(folder.path, before, source))
    check_models(folder.path, before, source, flow)
    return flow


def _check_version(folder: RunFolder, before: RunInfo) -> None:
    """Raise UsageError for a folder whose spec is of an earlier version of the language.

    The plan of the spec after `rolegraph migrate` may differ.
    """
    faults = read_yaml(folder.spec_file).faults if folder.spec_file.is_file() else []
    if not any(fault.code == "version" for fault in faults):
        return
    finish_hint = f"finish it with that: pip install 'rolegraph=={before.version}', and resume there"
    path = shlex.quote(str(folder.path))
    if before.kind == "train":
        policies = before.trained_policies or ("main",)
        is_single = len(policies) == 1
        overrides = [f"policies.{it}.checkpoint={path}{'' if is_single else f'#{it}'}" for it in policies]
        anew = f"or start a training from its checkpoint: {shlex.join(['rolegraph', 'train', before.spec])} "
        anew += " ".join(overrides)
    else:
        anew = f"or start it anew: {shlex.join(['rolegraph', 'run', before.spec])}"
    migrate_hint = "" if before.spec in shipped_specs() else f" (after `rolegraph migrate {before.spec}`)"
    message = f"{folder.path} was started by Rolegraph {before.version}, on version 1 of the language"
    raise UsageError(f"{message}; {finish_hint}; {anew}{migrate_hint}")


def drop_damaged(folder: str | Path) -> list[Path]:
    """Drop the damaged lines in a folder, so that it can be resumed; copies of their files are kept.

    Args:
        folder: Folder of a run or a training, or of several: a sweep, an evaluation, an optimization.

    Returns:
        The copies of the changed files of episodes, metrics and checkpoints; empty if no line is damaged.

    Raises:
        UsageError: There is no such folder, or another process writes in it.
        DataError: A file is unreadable.
        WorldError: A file cannot be written.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}")
    files = [file for depth in ("", "*/", "*/*/") for file in sorted(path.glob(f"{depth}{INFO}"))]
    if not files:
        return []
    runs = [RunFolder(file.parent) for file in files]
    parsers = {str(file.relative_to(path)): RunInfo.model_validate for file in files}
    with sole_writer(path, FolderKind("a run", parsers), (name for run in runs for name in run.written())):
        return [copy for run in runs for copy in run.drop_damaged()]


@contextmanager
def damage_explained(folder: RunFolder) -> Generator[None]:
    """Add to the error of a damaged line, raised in a block, how the folder can be resumed without the
    line."""
    try:
        yield
    except DataError as error:
        folder_word = shlex.quote(str(folder.path))
        raise DataError(
            f"{error}\nTo go on without damaged lines, add --drop-damaged --out {folder_word}; "
            "a copy of the file is kept"
        ) from error


def changed(folder: RunFolder) -> UsageError:
    """Return a UsageError that another command has written into the folder since it was read."""
    return UsageError(f"another command wrote in {folder.path} meanwhile; give this one again")


def new_folder(name: str) -> Path:
    """Return the path of a folder for a run that starts now; the folder is not created.

    Args:
        name: First part of the folder's name, such as the workflow's name.

    Returns:
        `runs/NAME-TIME`, with the local time in seconds; if that exists, the first free name of
        `runs/NAME-TIME-2` and so on.
    """
    path = RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered_paths = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered_paths) if not os.path.lexists(candidate))


def command_line() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def foreign_prompts(plan: Plan) -> str:
    """Return a warning that names the roles whose prompts a shipped model was not trained on; empty without
    such roles."""
    return "; ".join(f"{finding.message}; {finding.hint}" for finding in foreign_findings(plan))


def describe(flow: Workflow, kind: Kind, **fields: Any) -> RunInfo:
    """Return the RunInfo of a run or a training of a workflow.

    Args:
        flow: The workflow.
        kind: `run` or `train`.
        fields: Further fields of the RunInfo, such as `seed` and `rollouts`.

    Returns:
        The content of the folder's `run.json` when the run starts.
    """
    plan = flow.plan
    return RunInfo(
        kind=kind,
        name=plan.name,
        hash=plan.hash,
        command=command_line(),
        model=_asked_models(plan),
        checkpoint=_asked_weights(plan) if kind == "run" else None,
        roles={
            role.name: RoleInfo(
                estimator=role.estimator.name if role.estimator else None,
                loss=role.loss.name if role.run is None else None,
                trainable=role.spec.is_trained,
                policies=_policies(plan, role),
                answers=role.allowed_answers,
                default=plan.defaults.get(role.name, ""),
                when=role.when.source if role.when else "",
            )
            for role in plan.roles
        },
        metrics=tuple(plan.metrics),
        validations=tuple(plan.validations) if kind == "train" else (),
        validation_figures=plan.validation_metric_names if kind == "train" and plan.validations else (),
        can_be_correct=plan.can_be_correct,
        hidden=tuple(sorted(plan.hidden)),
        templates=templates_of(plan),
        **source_fields(flow.source),
        **fields,
    )


def used_rows(
    flow: Workflow,
    split: Split | None,
    tasks: Sequence[Task],
    *,
    given: bool = False,
    fixed: bool = False,
) -> UsedRows:
    """Return the rows that a run uses, with their source, for the digests in its folder.

    Args:
        flow: The workflow.
        split: Split of the tasks, as for `Workflow.dataset`.
        tasks: The tasks.
        given: True for tasks that were given in Python.
        fixed: True if additional rows of the data would change the run, as in a training.
    """
    if given:
        return UsedRows("tasks", "tasks given in Python", tasks, lambda _: tasks)
    dataset = flow.dataset(split)
    split_name: Split = next(name for name, split_data in flow.plan.data.items() if split_data is dataset)
    origin = (dataset.whole or dataset).origin
    source = dataset.file.name if dataset.file else origin.call.name if origin else "seeds"
    return UsedRows(split_name, source, tasks, partial(flow.tasks, split_name), dataset.file, fixed)


def training_rows(flow: Workflow, tasks: Sequence[Task], validation: Sequence[Task]) -> list[UsedRows]:
    """Return the rows of both splits that a training uses."""
    training_used = [used_rows(flow, "train", tasks, fixed=True)]
    if "validation" in flow.plan.data and not flow.plan.validations:
        training_used.append(used_rows(flow, "validation", validation))
    return training_used


def _asked_models(plan: Plan) -> str:
    """Return the names of the models that trained policies start from, joined by commas; without trained
    policies, the spec's model."""
    refs = [endpoint.model for endpoint in plan.endpoints if endpoint.policy is not None]
    return ", ".join(dict.fromkeys(map(model_name, refs or [plan.spec.model])))


def model_name(ref: ModelRef) -> str:
    """Return the name of a model for files and pages, which does not depend on its weights or on how it was
    written.

    Args:
        ref: The model. If it names only a checkpoint, the model is the checkpoint's.

    Returns:
        The name of a shipped or fetched model; else the reference as in a spec, with the absolute path of a
        folder.

    Raises:
        UsageError: The checkpoint cannot be read.
    """
    ref = with_base(ref)
    if not ref.served_here:
        return str(ref)
    folder = model_folder(ref.name).resolve()
    names_by_folder = {path: name for name, path in MODELS.items()}
    return names_by_folder.get(folder) or f"{ref.provider}:{name_of_fetched(folder) or folder}"


def _asked_weights(plan: Plan) -> str | None:
    """Return the checkpoints of the roles' models, joined by commas; None if no model has one."""
    return ", ".join(dict.fromkeys(filter(None, (it.model.weights for it in plan.endpoints)))) or None


def _policies(plan: Plan, role: RolePlan) -> tuple[str, ...]:
    """Return the policy names of a role's instances, one name if all are equal; empty if no instance has a
    trained policy."""
    if not plan.policies_of(role.name):
        return ()
    policies = [plan.policy_of(role.name, index) for index in range(1, role.count + 1)]
    return (policies[0],) if len(set(policies)) == 1 else tuple(policies)


def templates_of(plan: Plan) -> dict[str, str]:
    """Return the source text of every template of a plan, by a name such as `the prompt of solver`."""
    templates = dict(text for role in plan.roles for text in _templates(role))
    for number, stage in enumerate(plan.stages, 1):
        stage_texts = {name: text for role in stage.roles for name, text in _templates(role)}
        changed_texts = {name: text for name, text in stage_texts.items() if templates.get(name) != text}
        templates |= {f"{name} in stage {number}": text for name, text in changed_texts.items()}
    return templates


def _templates(role: RolePlan) -> list[tuple[str, str]]:
    """Return the text of each template of a role, by a name such as `the prompt of solver`."""
    demonstration = role.signal.demonstration if role.signal else None
    role_templates = ("prompt", role.prompt), ("system", role.system), ("tool", role.run and role.run.value)
    role_templates += (("examples", role.examples),)
    teacher_templates = [
        (f"{key}teacher's {part}", template)
        for key, teacher in (role.signal.keyed_teachers if role.signal else ())
        for part, template in (("prompt", teacher.prompt), ("system", teacher.system))
    ]
    return [
        (f"the {part} of {role.name}", template.source)
        for part, template in (*role_templates, ("demonstration", demonstration), *teacher_templates)
        if template is not None
    ]


def ignore_event(_event: object) -> None:
    """Ignore an event; the default observer."""


@contextmanager
def logged(file: Path, observe: Observer) -> Generator[Observer]:
    """Yield an observer that writes events to a log and passes them on, for the time of a block.

    The first line is the command line. Each kind of failure of each role is written once, and so is each line
    of the user's code that raises an error, which a warning also shows at once. An error that ends the block
    is written with its traceback.

    Args:
        file: The log, which is appended to.
        observe: Observer that events are passed to.

    Raises:
        WorldError: The file cannot be written.
    """
    with os_errors_as(WorldError, f"cannot write {file}"):
        log = RunLog(file, observe)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(log)
    log.say(logging.INFO, command_line())
    try:
        yield log.observe
    except BaseException as error:
        log.say(logging.ERROR, "".join(traceback.format_exception(error)).rstrip())
        raise
    else:
        log.say(logging.INFO, f"done: {log.episodes} episodes, {log.failures.total()} failures")
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(log)
        with suppress(OSError):
            log.close()


class RunLog(logging.FileHandler):
    """`log.txt` of a run or a training: notes, warnings, failures, and the error that ended it."""

    def __init__(self, file: Path, observe: Observer) -> None:
        self._file = file
        super().__init__(file, encoding="utf-8")
        self.setLevel(logging.WARNING)
        self._observe = observe
        self._is_full = False
        self.episodes = 0
        self.failures: Counter[tuple[str, str]] = Counter()
        """Number of failures by role and failure name."""
        self._written: set[tuple[str, str, str]] = set()
        """Role, failure name and line of code of the failures that were already written."""

    def observe(self, event: Event) -> None:
        """Write an event, and pass it on."""
        if isinstance(event, Note) and event.text:
            self.say(logging.WARNING if event.kind == "warning" else logging.INFO, event.text)
        elif isinstance(event, StepLogged):
            metric_texts = (f"{name}={value:.4g}" for name, value in event.metrics.items())
            self.say(logging.INFO, f"step {event.step}: {' '.join(metric_texts)}")
        elif isinstance(event, EpisodeDone):
            self.episodes += 1
            for trajectory in event.episode.trajectories:
                self._write_failure(event.episode.id, trajectory)
        self._observe(event)

    def _write_failure(self, episode: str, it: Trajectory) -> None:
        """Count a failure; write the first of each kind, and show it if a line of the user's code raised
        it."""
        if it.failure is None:
            return
        name, code_place = it.failure.name.value, it.failure.place
        self.failures[it.name, name] += 1
        if (failure_key := (it.name, name, code_place)) in self._written:
            return
        self._written.add(failure_key)
        self.say(logging.WARNING, f"{episode} {it.name} {it.index}: {name}: {it.failure.explanation}")
        if code_place:
            self._observe(Note(f"{it.name} {it.failure_line}", "warning"))

    def say(self, level: int, text: str) -> None:
        """Write one entry with a level of `logging` to the log."""
        self.emit(logging.LogRecord("rolegraph", level, "", 0, text, None, None))

    def _open(self) -> TextIOWrapper:
        file = confined.open_file(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return TextIOWrapper(os.fdopen(file, "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn once that the log cannot be written, such as on a full disk; the run goes on."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            return super().handleError(record)
        if not self._is_full:
            self._is_full = True
            self._observe(Note(f"cannot write {self._file}: {error.strerror}; the log has gaps", "warning"))

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level and text, without secrets; lines after the first are indented."""
        text = printable(super().format(record))
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        first_line, *rest = text.splitlines() or [""]
        return "\n".join([f"{time} {record.levelname} {first_line}", *(f"    {line}" for line in rest)])


class EpisodePool(EpisodeMaker, Protocol):
    """Maker of episodes whose models are open on a cluster."""

    @property
    def jobs(self) -> int:
        """Largest number of episodes in flight."""
        ...


class OpenCluster(Protocol):
    """Function that an integration registers (`rolegraph.clusters`), such as `open_on_ray`."""

    def __call__(
        self,
        open_maker: Callable[[], AbstractAsyncContextManager[EpisodeMaker]],
        address: str,
        *,
        slots: int,
        observe: Observer,
    ) -> AbstractAsyncContextManager[EpisodePool]:
        """Open a workflow's models on the nodes of a cluster, for the time of a block."""
        ...


def open_cluster(address: str) -> OpenCluster:
    """Return the function that opens models on the cluster of an address.

    Args:
        address: `NAME` or `NAME://…` of a registered cluster; any other address belongs to the first
            registered cluster.

    Raises:
        UsageError: The cluster's integration is not installed.
    """
    name, clusters = address.partition("://")[0], plugin_names("clusters")
    return plugin("clusters", name if name in clusters or not clusters else clusters[0])
