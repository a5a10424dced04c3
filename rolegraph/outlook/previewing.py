"""`rolegraph preview`: the prompts of each role of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rolegraph.api.jobs import blocking
from rolegraph.api.recorded import as_table
from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile.leaving import read_rule, without_quoting
from rolegraph.engine.errors import DataError, ModelError, UsageError, WorldError
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records import Episode, RunFolder, Task, read_episodes
from rolegraph.engine.records.ownership import write_output
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.shipped import model_folder
from rolegraph.engine.vocabulary import Split
from rolegraph.outlook.preview import SentPrompt, TaskPrompts, preview_task


@dataclass(frozen=True, slots=True, repr=False)
class Preview(Summarized):
    """Prompts of a workflow on some tasks; made by `preview`."""

    name: str
    description: str
    tasks: Sequence[TaskPrompts]
    """Prompts of each task, by role."""
    answers: str
    """Origin of the answers that later roles see: `made up`, or the path of a recording."""
    no_tokens: str = ""
    """Reason why token counts are missing; empty if there are counts, or if none were wanted."""

    def of(self, *roles: str) -> Preview:
        """Return a copy that has only some of the roles.

        Args:
            roles: Names of the roles to keep; unknown names are ignored.

        Returns:
            A preview of the same tasks.
        """
        tasks = [
            task._replace(roles=[of for of in task.roles if of.role.name in roles]) for task in self.tasks
        ]
        return replace(self, tasks=tasks)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Rows of plain data, one for each message of a prompt, each argument of a tool, and each problem."""
        return [
            {"task": str(task.task.get("id", "")), "role": role_prompts.role.name, **row}
            for task in self.tasks
            for role_prompts in task.roles
            for row in role_prompts.records
        ]

    def table(self) -> Any:
        """Return a table of the prompts' messages.

        Returns:
            A pandas DataFrame if pandas is installed, else a list of dicts: `task`, `role`, `turns` (those
                that send
            the prompt), `speaker` (the message's role, `tool` or `problem`), `content`, `tokens` of the whole
            prompt, and `note`.
        """
        return as_table(self.records)

    def summary(self) -> Summary:
        """Return the number of tasks as text, and a table row for each message."""
        title = f"Preview of {self.name}, {len(self.tasks)} tasks; answers are {self.answers}"
        columns = ("task", "role", "turns", "speaker", "content")
        return Summary(title, columns, [[row.get(name) for name in columns] for row in self.records])

    def save(self, file: str | Path) -> Path:
        """Write the preview as one page that opens offline.

        Args:
            file: Path of the page.

        Returns:
            The path.

        Raises:
            WorldError: The file cannot be written.
        """
        from rolegraph.pages.report.html import render  # prompts are shown in a terminal without it

        path, folder = Path(file), Path(__file__).parent
        texts = {name: getattr(self, name) for name in ("name", "description", "answers", "no_tokens")}
        page = render(folder / "preview.html.j2", folder / "preview.css", tasks=self.tasks, **texts)
        write_output(path, page.encode("utf-8", "replace"), "html")
        return path


async def preview_async(
    flow: Workflow,
    split: Split | None = None,
    *,
    limit: int = 1,
    recorded: str | Path | None = None,
    tokens: bool = False,
) -> Preview:
    """Render the prompts of each role as a run would, without a model.

    Args:
        flow: The workflow.
        split: Split of the tasks, `train` or `validation`; by default `validation` if the spec has it.
        limit: Number of tasks, the first ones, at least 1.
        recorded: Folder of a run, or its episodes file, for tasks and the answers that later roles see; None
            to make up the answers.
        tokens: True to render each prompt with its model's chat template as well, if the model is a folder of
            this machine.

    Returns:
        The prompts of each task, by role.

    Raises:
        UsageError: No data for the split, or no task.
        DataError: The recording is damaged or empty.
    """
    plan = flow.plan
    rows: list[tuple[Task, Episode | None]]
    if recorded is not None:
        episodes = _episodes(Path(recorded), limit)
        rows = [({**episode.task, "id": episode.task_id}, episode) for episode in episodes]
    else:
        rows = [(task, None) for task in flow.tasks(split, limit)]
    if not rows:
        raise UsageError(f"the data of {flow.name} holds no task to look at")
    previews = [await preview_task(plan, task, episode) for task, episode in rows]
    missing_reason = ""
    if tokens:
        load_format = cache(_chat_format)
        formats = [load_format(endpoint.model.provider, endpoint.model.name) for endpoint in plan.endpoints]
        previews = [_with_tokens(task, formats) for task in previews]
        missing_reason = "; ".join(dict.fromkeys(reason for reason in formats if isinstance(reason, str)))
    answers = "made up" if recorded is None else f"those of {recorded}; what is not there is made up"
    return Preview(plan.name, plan.spec.description, previews, answers, missing_reason)


preview = blocking(preview_async)


def _episodes(path: Path, limit: int) -> list[Episode]:
    """Return the first episode of each of the first `limit` tasks of a run.

    Answers that may quote fields hidden by the run's spec are removed, because the preview's spec may hide
    other fields and have other roles.

    Args:
        path: Folder of the run, or its episodes file.
        limit: Largest number of tasks.

    Raises:
        DataError: The file is damaged, or has no episodes.
    """
    folder = RunFolder(path if path.is_dir() else path.parent)
    file = folder.episodes if path.is_dir() else path
    rule = read_rule(folder) if folder.info_file.is_file() else None
    episodes: dict[str, Episode] = {}
    for episode in read_episodes(file):
        episodes.setdefault(episode.task_id, episode)
        if len(episodes) == limit:
            break
    if not episodes:
        raise DataError(f"{file} holds no episode; give what `rolegraph run` wrote")
    return [without_quoting(episode_, rule) if rule else episode_ for episode_ in episodes.values()]


def _chat_format(provider: str, name: str) -> ChatFormat | str:
    """Return the chat format of a local model, or else a text with the reason why it has no tokenizer
    here."""
    if provider != "local":
        return f"the tokenizer of {provider}:{name} is not on this machine"
    from rolegraph.engine.models.tokenizer import load_tokenizer  # takes half a second to import

    folder = model_folder(name)
    try:
        return ChatFormat(load_tokenizer(folder), folder.name)
    except (UsageError, WorldError) as error:
        return str(error)


def _with_tokens(task: TaskPrompts, formats: Sequence[ChatFormat | str]) -> TaskPrompts:
    """Return a copy of a task's prompts with the tokens of each prompt whose model's chat format was
    loaded."""

    def with_tokens(prompt: SentPrompt) -> SentPrompt:
        chat = formats[prompt.endpoint]
        if isinstance(chat, str):
            return prompt
        try:
            ids = chat.prompt(prompt.messages, prompt.functions).ids
        except ModelError as error:  # the template refuses these messages, or has no tools
            return prompt._replace(note=", ".join(filter(None, (prompt.note, str(error)))))
        return prompt._replace(pieces=chat.pieces(ids), tokens=len(ids))

    roles = [replace(role, asked=[*map(with_tokens, role.asked)]) for role in task.roles]
    return task._replace(roles=roles)
