"""Conversion of a GGUF file: `python -P -m rolegraph.local.service.gguf_model FILE FOLDER NAME`.

transformers reads a GGUF file as a quantized model, which it refuses to save; a plain model of the same
config with the same weights is saved in its place. Runs as a process of its own: the file may be hostile, and
its weights take memory. The process ends with its parent, whose end of standard input closes then.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError, first_line, panics_as_errors
from rolegraph.local.fetching.gguf_header import read_header
from rolegraph.local.service.model_files import check_names, model_shell
from rolegraph.local.service.parent import exit_with_parent
from rolegraph.local.service.tensors import tensor_faults

_SLACK = 1.05
"""Parameters of a model for each weight in its file: some architectures split or share tensors."""


def convert(source: Path, folder: Path, name: str) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, with float32 weights.

    Args:
        source: The file, alone in its folder.
        folder: An existing folder.
        name: Name of the file in messages.

    Raises:
        UsageError: The file holds no causal language model that transformers reads.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with panics_as_errors():
            _convert(source, folder)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except Exception as error:  # gguf, transformers and tokenizers raise many types for files that are broken
        raise UsageError(f"{name} cannot be made a model folder: {first_line(error)}") from error
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only the owner can read


def _convert(source: Path, folder: Path) -> None:
    options: dict[str, Any] = {
        "gguf_file": source.name,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    header = read_header(source)
    # AutoConfig.from_pretrained reads the file twice, which takes 5 s for 49,152 tokens.
    settings: dict[str, Any] = PreTrainedConfig.get_config_dict(str(source.parent), **options)[0]
    plain: Any = model_shell(settings, header.tensors)
    size = sum(parameter.numel() for parameter in plain.parameters())
    if size > header.elements * _SLACK:
        raise UsageError(f"it announces {size:,} parameters, and has {header.elements:,}")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(source.parent), config=plain.config, dtype=torch.float32, output_loading_info=True, **options
    )
    model, info = loaded
    check_names(plain, info, {})
    if fault := tensor_faults(model.state_dict(), plain.state_dict()):
        raise UsageError(fault)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    plain.save_pretrained(str(folder))
    tokenizer: Any = AutoTokenizer.from_pretrained(str(source.parent), **options)
    tokenizer.save_pretrained(str(folder))


def main() -> None:
    """Convert the file that the command line names."""
    source, folder, name = sys.argv[1:]
    exit_with_parent(stays=lambda: False, clean_up=lambda: None)
    try:
        convert(Path(source), Path(folder), name)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
