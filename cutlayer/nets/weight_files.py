"""A state dict out of a file that may come from anyone: tensors, or one sentence that says why not. Never code."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

SHOWN = 3  # keys named in a refusal; the others are counted


def read_state(path: Path) -> dict[str, Tensor]:
    """Names and tensors in a .safetensors, .pt or .pth file, on the CPU."""
    if path.suffix not in READERS:
        raise ValueError(f"weights come in {', '.join(READERS)} files; got {path.name}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise type(error)(
            f"the weights {path} cannot be read ({error.strerror}): name a file that is there"
        ) from error
    return READERS[path.suffix](path)


def few(keys: Sequence[str]) -> str:
    """The first of `keys`, and how many more there are."""
    return ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise nearly anything
        if name := re.search(r"GLOBAL (\S+)", str(error)):
            # torch's own text tells how to run such a file all the same; nobody should be led there.
            raise ValueError(
                f"{path} holds more than tensors ({name[1]}), and loading that could run code. "
                "Ask for a .safetensors file, or for one written by torch.save(model.state_dict(), ...)"
            ) from None
        raise ValueError(f"{path} is damaged or not a file of torch.save: {type(error).__name__}") from error
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} is not a state dict: it holds a {type(state).__name__}")
    others = [str(key) for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if others:
        raise ValueError(f"{path} is not a state dict, which has names and tensors alone: it holds {few(others)}")
    return dict(state)


READERS = {".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}  # by the file's suffix
