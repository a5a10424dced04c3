"""What comes of the folder of a model, whoever wrote it: it is loaded, and a chat is rendered by it.

The folder is that of the base model with some of its files changed; weights are linked until they change.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from judge_written import FAULT, RESULT, told, write
from mutating import scribbled_bytes
from watching import written_within

from rolegraph.engine.errors import ModelError, RolegraphError
from rolegraph.engine.local.launcher import BASE_MODEL, check_model_folder
from rolegraph.engine.local.service.local_model import LocalModel
from rolegraph.engine.local.weights import digest
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.vocabulary.isolation import shared_isolation

FOLDER = Path("theirs")
CHAT = [{"role": "user", "content": "what is 3 + 4?"}]
LIFE = 100
"""Inputs after which the workers, which keep every tokenizer, begin anew."""
_judged = 0


def _write(files: dict[str, str], weights: int | None) -> None:
    """Write the base model's folder with these files in place of its own; scribble in its weights."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for file in BASE_MODEL.iterdir():
        if file.name == "model.safetensors" and weights is not None:
            scribbled = scribbled_bytes(random.Random(weights), file.read_bytes())
            (FOLDER / file.name).write_bytes(scribbled)
        else:
            (FOLDER / file.name).symlink_to(file)
    for name, text in files.items():
        (FOLDER / name).unlink(missing_ok=True)
        if text:
            write(str(FOLDER / name), text)


def _came_of(open_: Callable[[], object]) -> str:
    try:
        with written_within(FOLDER):
            open_()
    except RolegraphError as error:
        told(error)
        named = isinstance(error, ModelError) or FOLDER.name in str(error)
        assert named, f"no place: {error}"
        return FAULT
    return RESULT


def _chat() -> None:
    check_model_folder(FOLDER)
    digest(FOLDER)
    form = ChatFormat(load_tokenizer(FOLDER), FOLDER.name)
    prompt = form.prompt(CHAT)
    form.pieces(prompt.ids)
    form.answer(prompt.ids, stop=["a"], thinking=False)
    form.turn("7")


def model(text: str) -> str:
    """Open a folder as a client does, which renders chats, or load it as the service does."""
    global _judged
    _judged += 1
    if _judged % LIFE == 0:
        shared_isolation().close()
        shared_isolation.cache_clear()
    about = json.loads(text)
    _write(about["files"], about["weights"])
    return _came_of(_chat if about["chat"] else lambda: LocalModel(FOLDER, 1))
