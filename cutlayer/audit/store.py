"""Finished cells of an audit or a comparison, kept as they come: an interrupted one makes those that are missing."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from ..training import checkpoint


def _nothing() -> None:
    """Named, because a store is handed to other processes."""


class ResultStore:
    """Facts and tensors by name; in memory alone where there is no folder."""

    def __init__(self, folder: Path | None = None, identity: str = "", on_open: Callable[[], None] = _nothing):
        """`identity` is everything the results hang on: a folder made for something else is refused. `on_open` is
        called when the folder is made."""
        self.folder, self.on_open = folder, on_open
        self._found: dict[str, tuple[Any, dict[str, Tensor]]] = {}
        if folder is None:
            return
        self.identity, about = identity, folder / "about.json"
        if about.exists() and (begun := json.loads(about.read_text())) != identity:
            raise ValueError(
                f"{folder.parent} was started with other options, or with code that was another then "
                f"({first_difference(begun, identity)}): resume it with those"
            )

    def get(self, name: str) -> tuple[Any, dict[str, Tensor]] | None:
        if name not in self._found and self.folder is not None:
            path = self._path(name)
            if path.exists():
                tensors, facts = checkpoint.load(path)
                self._found[name] = (facts["data"], tensors)
        return self._found.get(name)

    def put(self, name: str, data: Any, **tensors: Tensor) -> None:
        self._found[name] = (data, tensors)
        if self.folder is not None:
            self.open()  # only now: an audit that is refused leaves no folder behind
            checkpoint.save(self._path(name), tensors, {"name": name, "data": data})

    def remember(self, name: str, data: Any) -> None:
        """For this result alone: whoever resumes the folder tries it again."""
        self._found[name] = (data, {})

    def open(self) -> None:
        """Make the folder, if there is to be one."""
        if self.folder is not None and not self.folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.write_text(self.folder / "about.json", json.dumps(self.identity))
            self.on_open()

    def clear(self) -> int:
        """Remove what was taken from here or put here, once a result holds it; how many others were left alone."""
        if self.folder is None or not self.folder.exists():
            return 0
        for name in self._found:
            self._path(name).unlink(missing_ok=True)
        others = sum(path.name != "about.json" for path in self.folder.iterdir())
        if not others:
            (self.folder / "about.json").unlink(missing_ok=True)
            self.folder.rmdir()
        return others

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{sha256(name.encode()).hexdigest()[:20]}.safetensors"


def first_difference(before: str, now: str, most: int = 60) -> str:
    """Where two texts part, from the beginning of the word there."""
    same = next(
        (at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    begin = max(before.rfind(mark, 0, same) for mark in " ,([") + 1
    return f"then {before[begin : begin + most]!r}, now {now[begin : begin + most]!r}"
