"""One file a checkpoint: tensors in safetensors, position and history in its header, whole or not at all."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__


class CorruptCheckpoint(ValueError):
    """A checkpoint that cannot be trusted."""


def refuse_other_version(version: str | None, path: Path) -> None:
    """Before 1.0 a minor version may name and order things otherwise: what an other one wrote is not read."""
    if version is None or version.split(".")[:2] != __version__.split(".")[:2]:
        wrote = version or "before 0.2"
        raise ValueError(
            f"{path} was written by cutlayer {wrote}, which this version {__version__} cannot go on from: finish it "
            f"with cutlayer {wrote}, or start anew"
        )


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write beside, then rename: a reader sees the old file or the new one, never half of one."""
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**facts, "version": __version__, "digest": digest(on_cpu)}
    beside = path.with_name(f"{path.name}.{os.getpid()}.writing")  # another process may write the same one
    save_file(on_cpu, beside, metadata={"cutlayer": json.dumps(facts)})
    with beside.open("rb") as file:
        os.fsync(file.fileno())  # a name must not outlive a power cut without its contents
    os.replace(beside, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts, checked against the digest they were written with."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}; a run writes its first one before the first step")
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["cutlayer"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CorruptCheckpoint(f"{path} is damaged or not a cutlayer checkpoint: {error}") from error
    if digest(tensors) != facts.pop("digest", None):
        raise CorruptCheckpoint(f"{path} is damaged: its tensors do not match the digest in its header")
    refuse_other_version(facts.pop("version", None), path)
    return tensors, facts


class Snapshots:
    """Numbered checkpoints in a folder. The last two stay: a snapshot counts once all parties have it."""

    def __init__(self, folder: Path, kept: int = 2):
        self._folder, self._kept = folder, kept

    def numbers(self) -> list[int]:
        """Which there are, the oldest first. A damaged one is none."""
        found = []
        for path in self._folder.glob("snapshot-*.safetensors"):
            with contextlib.suppress(ValueError):
                found.append(int(path.stem.removeprefix("snapshot-")))
        return sorted(found)

    def save(self, number: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        save(self._path(number), tensors, facts)
        # Rewound runs write numbers again that later ones followed: those are of another past.
        for later in [other for other in self.numbers() if other > number]:
            self._path(later).unlink()
        for old in self.numbers()[: -self._kept]:
            self._path(old).unlink()

    def load(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return load(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"snapshot-{number}.safetensors"


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        flat = tensors[name].contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return sha.hexdigest()


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Atomic like `save`."""
    write_bytes(path, text.encode(), mode)


def write_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    beside = path.with_name(path.name + ".writing")
    beside.touch(mode=mode)
    os.chmod(beside, mode)
    beside.write_bytes(content)
    os.replace(beside, path)
