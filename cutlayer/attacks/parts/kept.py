"""Networks that an attacker trains on auxiliary images alone: the same for every guard, so each is trained once.

They are kept in memory, and between processes and runs in the folder that CUTLAYER_CACHE names, if it does.
"""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ... import __version__
from ...core.files import write_tensors
from ...core.seeds import derive, seeded

Network = TypeVar("Network", bound=nn.Module)
MOST = 4  # networks in memory: an audit asks for that of one seed again and again, then for the next
_KEPT: dict[str, dict[str, Tensor]] = {}


def kept(images: Tensor, settings: str, train: Callable[[], Network], build: Callable[[], Network]) -> Network:
    """What `train` gives, or what it gave earlier for the same images and settings, put into what `build` gives.

    It is trained under a seed that follows from both, so no figure hangs on whether it was there already.
    """
    name = digest(images, settings)
    if name not in _KEPT and (found := _read(name)) is not None:
        _remember(name, found)
    if name not in _KEPT:
        with seeded(derive(0, "kept", name), images.device):
            state = train().state_dict()
        _remember(name, {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()})
        _write(name, _KEPT[name])
    with seeded(0):  # its first weights are drawn, and nobody's
        network = build()
    network.load_state_dict(_KEPT[name])
    return network.to(images).requires_grad_(False).eval()


def digest(images: Tensor, settings: str) -> str:
    pixels = images.detach().cpu().contiguous()
    sha = sha256(f"{__version__} {settings} {tuple(pixels.shape)} {pixels.dtype}".encode())
    sha.update(pixels.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()[:32]


def _remember(name: str, state: dict[str, Tensor]) -> None:
    _KEPT[name] = state
    while len(_KEPT) > MOST:
        _KEPT.pop(next(iter(_KEPT)))


def _path(name: str) -> Path | None:
    folder = os.environ.get("CUTLAYER_CACHE")
    return Path(folder) / f"{name}.safetensors" if folder else None


def _read(name: str) -> dict[str, Tensor] | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = _path(name)
    if path is None or not path.exists():
        return None
    try:
        return load_file(path)
    except SafetensorError:  # damaged on disk: it is trained and written anew
        return None


def _write(name: str, state: dict[str, Tensor]) -> None:
    """Whoever reads meanwhile finds the whole file or none, and of two writers one wins."""
    path = _path(name)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, state)
