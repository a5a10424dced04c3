"""What comes of the folder of a model or of trained weights, whoever wrote it.

A model is loaded, and renders a chat; its folder is the base model's with some of its files changed, and
weights are linked until they change. Trained weights are listed, loaded, copied and exported.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import honest
import judge_served
from inputs import file_of
from judge_written import FAULT, RESULT, told, write
from mutating import scribbled_bytes
from watching import written_within

import rolegraph as rg
from rolegraph.engine.errors import ModelError, RolegraphError
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records.weights import checkpoint_folder, copy_weights, digest
from rolegraph.local.launcher import BASE_MODEL, check_model_folder
from rolegraph.local.service.checkpoints import CheckpointStore
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import LocalModel

FOLDER, COPIED = Path("theirs"), Path("copied")
CHAT = [{"role": "user", "content": "what is 3 + 4?"}]


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
        with written_within(FOLDER, COPIED):
            open_()
    except (RolegraphError, RequestError) as error:
        told(error)
        named = isinstance(error, ModelError) or FOLDER.name in str(error)
        assert named or honest.SAVED["sampler"] in str(error), f"no place: {error}"
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
    about = json.loads(text)
    _write(about["files"], about["weights"])
    return _came_of(_chat if about["chat"] else lambda: LocalModel(FOLDER, 1))


@cache
def _trained() -> tuple[Path, Path]:
    """Train weights; return their folder and their model's."""
    client = judge_served.client()
    client.begin()
    folder = checkpoint_folder(client.names["$sampled"], client.state)
    assert folder is not None
    return folder, client.model


def weights(text: str) -> str:
    """Use the trained weights in a training's folder."""
    about, (own, base) = json.loads(text), _trained()
    for folder in (FOLDER, COPIED):
        shutil.rmtree(folder, ignore_errors=True)
    held, sampler = FOLDER / "weights", honest.SAVED["sampler"]
    at = checkpoint_folder(sampler, held)
    assert at is not None
    at.mkdir(parents=True)
    for name, value in {
        **{name: file_of(value) for name, value in honest.TRAINING.items()},
        **about["files"],
    }.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        write(str(FOLDER / name), value.replace("$base", str(base)).replace("$digest", digest(base)))
    data = (own / "adapter_model.safetensors").read_bytes()
    seed = about["weights"]
    changed = data if seed is None else scribbled_bytes(random.Random(seed), data)
    (at / "adapter_model.safetensors").write_bytes(changed)

    def serve() -> None:
        store = CheckpointStore(held, "tiny", base)
        store.entries()
        store.load(sampler, optimizer=False)

    doings: dict[str, Callable[[], object]] = {
        "serve": serve,
        "copy": lambda: copy_weights(sampler, held, COPIED),
        "export": lambda: rg.export(FOLDER),
        "merged": lambda: rg.export(FOLDER, merged=True),
    }
    return _came_of(doings[about["do"]])
