"""Finished cells of an audit or a comparison, kept as they come: an interrupted one makes those that are missing."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from ..training import checkpoint


class ResultStore:
    """Facts and tensors by name; in memory alone where there is no folder."""

    def __init__(self, folder: Path | None = None, identity: str = ""):
        """`identity` is everything the results hang on: a folder made for something else is refused."""
        self.folder = folder
        self._found: dict[str, tuple[Any, dict[str, Tensor]]] = {}
        if folder is None:
            return
        self.identity, about = identity, folder / "about.json"
        if about.exists() and json.loads(about.read_text()) != identity:
            raise ValueError(f"{folder.parent} was started with other options: resume it with those")

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

    def open(self) -> None:
        """Make the folder, if there is to be one."""
        if self.folder is not None and not self.folder.exists():
            self.folder.mkdir(parents=True)
            checkpoint.write_text(self.folder / "about.json", json.dumps(self.identity))

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{sha256(name.encode()).hexdigest()[:20]}.safetensors"
