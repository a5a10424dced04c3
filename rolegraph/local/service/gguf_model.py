"""Conversion of a GGUF file: `python -P -m rolegraph.local.service.gguf_model FILE FOLDER NAME`.

transformers reads a GGUF file as a quantized model, which it refuses to save; a plain model of the same
config with the same weights is saved in its place. Runs as a process of its own: the file may be hostile, and
its weights take memory. The process ends with its parent, whose end of standard input closes then.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from rolegraph.engine.errors import UsageError, WorldError, first_line, panics_as_errors
from rolegraph.engine.vocabulary.isolation import limit_memory, memory_taken
from rolegraph.local.fetching.program import announce, main
from rolegraph.local.limits import GGUF_HEADER
from rolegraph.local.service.model_files import check_names, model_shell
from rolegraph.local.service.tensors import tensor_faults

_FLOAT_BYTES = 4
"""Bytes of a weight in the folder: float32 holds each value of a GGUF file exactly."""
_PER_BYTE = 8
"""Largest number of elements in a byte of a tensor's data: no quantization takes less than 1 bit."""
_SLACK = 1.05
"""Tolerated ratio of a model's parameters to the weights in its file: some architectures split or share
tensors."""


def convert(source: str, folder: str, name: str) -> str:
    """Write the model and the tokenizer of a GGUF file into a folder, with float32 weights.

    Args:
        source: The file, alone in its folder.
        folder: An existing folder.
        name: Name of the file in messages.

    Returns:
        The licence that the file states.

    Raises:
        UsageError: The file holds no causal language model that transformers reads.
        WorldError: The disk has too little room.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with panics_as_errors():
            license_name = _convert(Path(source), Path(folder))
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except WorldError:
        raise
    except Exception as error:  # gguf, transformers and tokenizers raise many types for files that are broken
        raise UsageError(f"{name} cannot be made a model folder: {first_line(error)}") from error
    for file in Path(folder).iterdir():
        file.chmod(0o644)  # safetensors writes files that only the owner can read
    return f"{license_name[:100]} (the GGUF file)" if license_name else "not stated"


def _read_header(source: Path) -> tuple[str, int, int]:
    """Return (licence that a GGUF file states, number of its tensors, number of their elements).

    It checks the counts in the file first: the library trusts them, and makes as many objects.
    """
    limit_memory(memory_taken() + GGUF_HEADER.most)
    try:
        reader = GGUFReader(source)
    except MemoryError as error:
        raise UsageError(GGUF_HEADER.exceeded("its header takes")) from error
    finally:
        limit_memory()
    license_field = reader.get_field("general.license")
    element_count = sum(tensor.n_elements for tensor in reader.tensors)
    if element_count > source.stat().st_size * _PER_BYTE:
        raise UsageError(f"it announces {element_count:,} weights, more than its bytes can hold")
    return str(license_field.contents()) if license_field else "", len(reader.tensors), element_count


def _convert(source: Path, folder: Path) -> str:
    options: dict[str, Any] = {
        "gguf_file": source.name,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    license_name, tensors, elements = _read_header(source)
    announce(elements * _FLOAT_BYTES, folder)
    # AutoConfig.from_pretrained reads the file twice, which takes 5 s for 49,152 tokens.
    settings: dict[str, Any] = PreTrainedConfig.get_config_dict(str(source.parent), **options)[0]
    shell: Any = model_shell(settings, tensors)
    parameter_count = sum(parameter.numel() for parameter in shell.parameters())
    if parameter_count > elements * _SLACK:
        raise UsageError(f"it announces {parameter_count:,} parameters, and has {elements:,}")
    loaded_pair: Any = AutoModelForCausalLM.from_pretrained(
        str(source.parent), config=shell.config, dtype=torch.float32, output_loading_info=True, **options
    )
    model, info = loaded_pair
    check_names(shell, info, {})
    if fault := tensor_faults(model.state_dict(), shell.state_dict()):
        raise UsageError(fault)
    shell.load_state_dict(model.state_dict(), assign=True)
    shell.tie_weights()
    shell.generation_config = model.generation_config
    shell.save_pretrained(str(folder))
    tokenizer: Any = AutoTokenizer.from_pretrained(str(source.parent), **options)
    tokenizer.save_pretrained(str(folder))
    return license_name


if __name__ == "__main__":
    main(convert)
