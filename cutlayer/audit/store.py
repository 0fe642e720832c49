"""Finished cells of an audit or a comparison, kept as they come: an interrupted one makes those that are missing."""

import json
import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.base import Loaded
from ..data.files import digest
from ..data.fingerprint import fingerprint
from ..training import checkpoint

log = logging.getLogger("cutlayer.audit")

ABOUT = "about.json"


def _nothing() -> None:
    """Named, because a store is handed to other processes."""


class ResultStore:
    """Facts and tensors by name; in memory alone where there is no folder."""

    def __init__(
        self,
        folder: Path | None = None,
        identity: str = "",
        on_open: Callable[[], None] = _nothing,
        inputs: Mapping[str, str] | None = None,
    ):
        """`identity` is everything that was asked for and results hang on, `inputs` what they were made from: a
        folder made for something else is refused. `on_open` is called when the folder is made."""
        self.folder, self.on_open = folder, on_open
        self.identity, self.inputs = identity, dict(inputs or {})
        self._found: dict[str, tuple[Any, dict[str, Tensor]]] = {}
        self.lost: list[str] = []  # names of cells that failed
        if folder is None:
            return
        self._about = folder / ABOUT
        begun = self._begun()
        if begun["identity"] != identity:
            raise ValueError(
                f"{folder.parent} was started with other options, or with code that was another then "
                f"({first_difference(begun['identity'], identity)}): resume it with those"
            )
        for what, now in self.inputs.items():
            if (then := begun["inputs"].get(what, now)) != now:
                raise ValueError(
                    f"{folder.parent} was begun with{_another(then, now)} {what}, and new cells would not stand "
                    "beside its finished ones: name the folder that holds what it was begun with by --data-dir, or "
                    "begin anew without --resume"
                )

    def _begun(self) -> dict[str, Any]:
        """What the folder was made for."""
        if not self._about.exists():
            return {"identity": self.identity, "inputs": {}}
        try:
            told = json.loads(self._about.read_text())
            return {"identity": told, "inputs": {}} if isinstance(told, str) else {**told}
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self._about} is damaged, and without it nobody knows what the finished cells beside it are of: "
                "put back a copy of it, or begin anew with another --out"
            ) from error

    def get(self, name: str) -> tuple[Any, dict[str, Tensor]] | None:
        if name not in self._found and self.folder is not None:
            path = self._path(name)
            if path.exists():
                try:
                    tensors, facts = checkpoint.load(path)
                    self._found[name] = (facts["data"], tensors)
                except checkpoint.CorruptCheckpoint as error:
                    log.warning(f"{error}; this cell is made again")
        return self._found.get(name)

    def put(self, name: str, data: Any, **tensors: Tensor) -> None:
        self._found[name] = (data, tensors)
        if self.folder is not None:
            self.open()  # only now: an audit that is refused leaves no folder behind
            checkpoint.save(self._path(name), tensors, {"name": name, "data": data})

    def remember(self, name: str, data: Any) -> None:
        """Of what failed, and for this result alone: whoever resumes the folder tries it again."""
        self._found[name] = (data, {})
        self.lost.append(name)

    def open(self) -> None:
        """Make the folder, if there is to be one."""
        if self.folder is not None and not self._about.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.on_open()
            checkpoint.write_text(self._about, json.dumps({"identity": self.identity, "inputs": self.inputs}))

    def clear(self) -> int:
        """Remove what was taken from here or put here, once a result holds it; how many others were left alone. Where
        something failed everything stays: what is missing may be made later."""
        if self.folder is None or not self.folder.exists() or self.lost:
            return 0
        for name in self._found:
            self._path(name).unlink(missing_ok=True)
        others = sum(path.name != ABOUT for path in self.folder.iterdir())
        if not others:
            self._about.unlink(missing_ok=True)
            self.folder.rmdir()
        return others

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{sha256(name.encode()).hexdigest()[:20]}.safetensors"


def inputs(sets: Mapping[str, Loaded | None], weights: Path | None = None) -> dict[str, str]:
    """What the figures of a table are made from, by name: data sets, and the weights of LPIPS where it has such."""
    found = {f"samples of {name}": fingerprint(one.train, one.test) for name, one in sets.items() if one is not None}
    return {**found, "LPIPS weights": digest(weights, "sha256") if weights is not None else ""}


def _another(then: str, now: str) -> str:
    return "out" if not then else "" if not now else " other"


def first_difference(before: str, now: str, most: int = 60) -> str:
    """Where two texts part, from the beginning of the word there."""
    same = next(
        (at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    begin = max(before.rfind(mark, 0, same) for mark in " ,([") + 1
    return f"then {before[begin : begin + most]!r}, now {now[begin : begin + most]!r}"
