"""One file a checkpoint: tensors in safetensors, position and history in its header, whole or not at all."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..core import files
from ..core.files import write_bytes as write_bytes
from ..core.files import write_text as write_text
from ..core.layout import in_rows

log = logging.getLogger("cutlayer.checkpoint")


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
    """A reader sees the old file or the new one, never half of one."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**facts, "version": __version__, "digest": digest(on_cpu)}
    files.write_tensors(path, on_cpu, {"cutlayer": json.dumps(facts)})


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


def save_keeping_older(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """As `save`; what was there stays beside, for the day on which this one cannot be read."""
    beside = path.with_name(f"{path.name}.older{files.WRITING}")
    with contextlib.suppress(OSError):  # a disk that knows no second names
        beside.unlink(missing_ok=True)
        os.link(path, beside)
        os.replace(beside, _older(path))
    beside.unlink(missing_ok=True)
    save(path, tensors, facts)


def load_or_older(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        return load(path)
    except (CorruptCheckpoint, FileNotFoundError) as error:
        if not _older(path).exists():
            raise
        found = load(_older(path))
        log.warning(f"{error}; going on from the one before it")
        return found


def drop_older(path: Path) -> None:
    """Nobody goes on from here any more."""
    _older(path).unlink(missing_ok=True)


def _older(path: Path) -> Path:
    return path.with_name(f"older-{path.name}")


class Snapshots:
    """Numbered checkpoints in a folder. The last two stay: a snapshot counts once all parties have it."""

    def __init__(self, folder: Path, kept: int = 2):
        self._folder, self._kept = folder, kept

    def numbers(self) -> list[int]:
        """Which there are, the oldest first."""
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

    def set_aside_damaged(self) -> None:
        """When a run goes on: what cannot be read gives way to the older one, and keeps its contents under another
        name. Whoever has none left is told: beginning anew would not be going on."""
        damaged = {}
        for number in self.numbers():
            try:
                self.load(number)
            except CorruptCheckpoint as error:
                damaged[number] = str(error)
        left = [number for number in self.numbers() if number not in damaged]
        if damaged and not left:
            raise CorruptCheckpoint(
                f"no snapshot in {self._folder} can be read, so this party cannot go on: put back a copy of "
                f"{self._folder}, or begin anew with another --out ({damaged[max(damaged)]})"
            )
        for number, why in damaged.items():
            path = self._path(number)
            path.rename(path.with_name(f"{path.name}.damaged"))
            log.warning("damaged snapshot", extra={"facts": {"why": why, "older_ones": left}})

    def load(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return load(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"snapshot-{number}.safetensors"


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        flat = in_rows(tensors[name]).reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return sha.hexdigest()
