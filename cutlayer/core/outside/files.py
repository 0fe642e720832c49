"""Import a file by its path, once, under a name that other processes can import, too."""

import ast
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGE = __name__.rpartition(".")[0]
# Processes that this one starts inherit it: they may import what was named here, and nothing else.
NAMED = "CUTLAYER_NAMED_FILES"


class NamedFile(NamedTuple):
    """A file that was named here: where it lies, what was in it, and how it was typed."""

    path: str
    digest: str
    typed: str


def named() -> dict[str, NamedFile]:
    """Every file that was named in this process, or in the one that started it, by the name of its module."""
    return {name: NamedFile(*facts) for name, facts in json.loads(os.environ.get(NAMED, "{}")).items()}


def load_file(typed: str) -> ModuleType:
    """The module in the file that a person has named. A file that was changed since is read again."""
    path = Path(typed).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {typed} (looked in {path.parent})")
    content = path.read_bytes()
    stem, place = re.sub(r"\W", "_", path.stem), sha256(str(path).encode()).hexdigest()[:10]
    name = f"{PACKAGE}.{stem}_{place}"
    known, digest = named(), sha256(content).hexdigest()
    if name in known and known[name].digest == digest:
        return sys.modules.get(name) or importlib.import_module(name)
    for module in list(sys.modules.values()):  # a second copy of its classes would not equal the first
        if getattr(module, "__file__", None) == str(path) and module.__name__ not in (
            name,
            "__main__",
            "__mp_main__",
        ):
            if module.__name__.partition(".")[0] != PACKAGE.partition(".")[0]:
                # Another file imported it first, under its plain name: from now on it is written as it was typed.
                os.environ[NAMED] = json.dumps({module.__name__: NamedFile(str(path), digest, typed)} | known)
            return module
    sys.modules.pop(name, None)
    os.environ[NAMED] = json.dumps(known | {name: NamedFile(str(path), digest, typed)})
    try:
        return importlib.import_module(name)
    except BaseException:
        os.environ[NAMED] = json.dumps(known)
        raise


def load_module(name: str) -> ModuleType:
    """A module that a person has named."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"the module {name} cannot be imported: {where(error)}") from error
        raise ValueError(
            f"there is no module {error.name} (installed, or on PYTHONPATH); a file is named as path/to/file.py:Name"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a module raises while it is imported
        raise ValueError(f"the module {name} cannot be imported: {where(error)}") from error


def load_named(places: Sequence[str]) -> None:
    """Import what somebody named without naming anything in it: a plan from a folder may then be made of it."""
    for place in places:
        if place.endswith(".py"):
            load_file(place)
        else:
            load_module(place)


class _Finder(MetaPathFinder):
    """Finds the files that were named, and no others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (file := named().get(name)) is None:
            return None
        return importlib.util.spec_from_file_location(name, file.path, loader=_OneFile(file))


class _OneFile(Loader):
    """Runs what was read when the file was named: never another text under the same name."""

    def __init__(self, file: NamedFile):
        self.file = file

    def exec_module(self, module: ModuleType) -> None:
        path, digest, typed = self.file
        content = Path(path).read_bytes()
        if sha256(content).hexdigest() != digest:
            raise ValueError(f"{typed} was changed since it was named: start again")
        # A recipe imports what lies beside it, some of it when it is called. Behind all others: it hides nothing.
        if (folder := str(Path(path).parent)) not in sys.path:
            sys.path.append(folder)
        made: Any = vars(module)
        made["__source__"] = content.decode(errors="replace")
        try:
            if b"\0" in content:  # Python 3.11 calls it another error
                raise SyntaxError("there are null bytes in it, as in UTF-16")
            code = compile(content, path, "exec", dont_inherit=True)
            _refuse_hidden_neighbours(ast.parse(content), Path(path))
            exec(code, made)
        except (Exception, SystemExit) as error:  # whatever a file raises while it is imported
            raise ValueError(f"{typed} cannot be imported: {where(error, path)}") from error


def _refuse_hidden_neighbours(tree: ast.Module, path: Path) -> None:
    """Two folders may each have a helper.py, and Python has one module of a name: never take the other folder's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            tops = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            tops = {node.module.partition(".")[0]}
        else:
            continue
        for top in tops:
            beside = next(
                (p for p in (path.parent / f"{top}.py", path.parent / top / "__init__.py") if p.exists()), None
            )
            if beside is None or beside == path:
                continue
            there = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
            if there is not None and there.origin and Path(there.origin).resolve() != beside.resolve():
                raise ImportError(f"{top} is there twice, as {beside} and as {there.origin}: rename one of them")


def where(error: BaseException, path: str = "") -> str:
    """The last line of a traceback that lies in `path` (without one in a file that was named, else in any), and the
    error. What a library complains of is mended where it was called."""
    if isinstance(error, SyntaxError):
        line = f", line {error.lineno}" if error.lineno else ""
        way_out = ": save it as UTF-8" if "'utf-8' codec" in error.msg or "null bytes" in error.msg else ""
        return f"{error.filename or path}{line}: {type(error).__name__}: {error.msg}{way_out}"
    if error.__cause__ is not None and isinstance(error, ValueError) and "cannot be imported" in str(error):
        return str(error)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")
    ]
    mine = {path} if path else {file.path for file in named().values()}
    own = [frame for frame in frames if frame.filename in mine] or ([] if path else frames[1:])
    place = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    return f"{place}{type(error).__name__}: {' '.join(str(error).split())}"


def from_named(error: BaseException) -> bool:
    """Whether it was raised, or passed on, in a file that was named."""
    mine = {file.path for file in named().values()}
    return any(frame.filename in mine for frame in traceback.extract_tb(error.__traceback__))


if not any(
    type(finder).__name__ == _Finder.__name__ and type(finder).__module__ == __name__ for finder in sys.meta_path
):
    sys.meta_path.append(_Finder())
