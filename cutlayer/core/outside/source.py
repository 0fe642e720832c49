"""Which code a thing is: a digest of its source and of what it uses from beside it, and why that may not be enough.

Library code (this package, torch, whatever is installed) counts by its name; a user's own by its text.
"""

import ast
import builtins
import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

_LITERALS = (int, float, complex, str, bytes, bool, type(None))
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Source(NamedTuple):
    """`digest` tells it from other code here; between machines that is worth something where `why_not` is empty."""

    digest: str
    why_not: str = ""


def source_of(thing: Any) -> Source:
    """The identity of a class, a function, or a `partial` of one."""
    inner = thing.func if isinstance(thing, functools.partial) else thing
    walk = _Walk(_top(getattr(inner, "__module__", None) or type(inner).__module__))
    walk.value(thing)
    text = "\0".join(walk.found)
    return Source(sha256(text.encode(errors="replace")).hexdigest()[:16], "; ".join(dict.fromkeys(walk.reasons)))


class _Walk:
    """Everything that one thing is made of, in the order it was met."""

    def __init__(self, top: str):
        self.top = top  # of an installed package all own modules count
        self.found: list[str] = []
        self.reasons: list[str] = []
        self._seen: set[int] = set()

    def value(self, thing: Any) -> None:
        if isinstance(thing, _LITERALS):
            self.found.append(repr(thing))
        elif isinstance(thing, tuple | list | set | frozenset):
            self.found.append(type(thing).__name__)
            for one in sorted(thing, key=repr) if isinstance(thing, set | frozenset) else thing:
                self.value(one)
        elif isinstance(thing, dict):
            for key, one in sorted(thing.items(), key=lambda item: repr(item[0])):
                self.found.append(repr(key))
                self.value(one)
        elif isinstance(thing, functools.partial):
            self.found.append("partial")
            self.value(thing.func)
            self.value(thing.args)
            self.value(thing.keywords)
        elif isinstance(thing, MethodType):
            if not isinstance(thing.__self__, type):
                self.reasons.append(f"{thing.__qualname__} is a method of an object, which has no text")
            self.value(thing.__self__)
            self.found.append(thing.__name__)
        elif isinstance(thing, FunctionType | type):
            self._code(thing)
        elif callable(inner := getattr(thing, "__wrapped__", None)):
            self.value(inner)
        elif hasattr(thing, "__qualname__"):  # written in C
            self.found.append(f"{thing.__module__}.{thing.__qualname__}")
        else:
            self._object(thing)

    def _object(self, thing: Any) -> None:
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        self.value(type(thing))
        if hasattr(type(thing), "__dataclass_fields__"):
            self.value({name: getattr(thing, name) for name in type(thing).__dataclass_fields__})
            return
        self.reasons.append(
            f"an object of the class {type(thing).__name__} has no text that two machines could compare"
        )
        self.found.append(repr(thing) if not hasattr(thing, "__dict__") else "")
        self.value({name: one for name, one in getattr(thing, "__dict__", {}).items() if not name.startswith("_")})

    def _code(self, thing: Any) -> None:
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        name, module = thing.__qualname__, sys.modules.get(thing.__module__ or "")
        if self._is_library(thing.__module__ or "", module):
            self.found.append(f"{thing.__module__}.{name}")
            return
        if isinstance(thing, FunctionType):
            self._of_function(thing)
        node = _definition(module, name) if "<lambda>" not in name else None
        if node is None:
            self.reasons.append(
                "a lambda has no name to find its source by: write a function with def"
                if "<lambda>" in name
                else f"the source of {name} cannot be found: define it in a file, outside of functions"
            )
            self._compiled(thing)
            return
        self.found.append(f"{name}\n{node.text}")
        for used in node.uses:
            self._name(used, module)

    def _of_function(self, thing: FunctionType) -> None:
        for cell in thing.__closure__ or ():
            self.reasons.append(f"{thing.__qualname__} keeps values of the function it was made in")
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not yet filled
                continue

    def _name(self, dotted: str, module: ModuleType | None) -> None:
        """What a name in the text stands for in its module; `helper.width` is looked up in helper."""
        first, *rest = dotted.split(".")
        if module is None or not hasattr(module, first):
            return
        thing = getattr(module, first)
        while isinstance(thing, ModuleType) and rest:
            if self._is_library(thing.__name__, thing) or not hasattr(thing, rest[0]):
                return
            thing = getattr(thing, rest.pop(0))
        if isinstance(thing, ModuleType):
            return
        self.found.append(dotted)
        if isinstance(thing, (*_LITERALS, tuple, list, dict, set, frozenset, functools.partial, type, FunctionType)):
            self.value(thing)

    def _compiled(self, thing: Any) -> None:
        """Without a source: what Python made of it, good for this machine and this version of Python."""
        functions = [thing] if isinstance(thing, FunctionType) else [
            one for _, one in sorted(vars(thing).items()) if isinstance(one, FunctionType)
        ]  # fmt: skip
        for one in functions:
            self.found.append(_bytecode(one.__code__))
            self.value(one.__defaults__)
            for name in one.__code__.co_names:
                used = one.__globals__.get(name)
                if isinstance(used, (*_LITERALS, type, FunctionType)):
                    self.value(used)

    def _is_library(self, name: str, module: ModuleType | None) -> bool:
        from .files import PACKAGE, named

        top = _top(name)
        if top == _top(PACKAGE):
            return name not in named()
        if top in ("torch", "numpy", *sys.stdlib_module_names) and top != "__main__":
            return True
        file = getattr(module, "__file__", None)
        return top != self.top and file is not None and str(file).startswith(_INSTALLED)


class _Definition(NamedTuple):
    text: str
    uses: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def _definitions(module: ModuleType) -> dict[str, _Definition]:
    """Each class and function of a module, by its qualified name. Read once: what runs is what was imported."""
    source = getattr(module, "__source__", None)
    if source is None:
        file = getattr(module, "__file__", None)
        source = Path(file).read_text() if file and Path(file).suffix == ".py" and Path(file).exists() else ""
    lines, found = source.splitlines(), {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                text = inspect.cleandoc("\n".join(lines[first - 1 : child.end_lineno]))
                found[prefix + child.name] = _Definition(text, _uses(child))
                visit(child, f"{prefix}{child.name}." + ("" if isinstance(child, ast.ClassDef) else "<locals>."))
            else:
                visit(child, prefix)

    visit(ast.parse(source), "")
    return found


def _definition(module: ModuleType | None, name: str) -> _Definition | None:
    return _definitions(module).get(name) if module is not None else None


def _uses(node: ast.AST) -> tuple[str, ...]:
    """Names and dotted names in a definition, in order."""
    found: dict[str, None] = {}
    for one in ast.walk(node):
        name = ast.unparse(one) if isinstance(one, ast.Name | ast.Attribute) else ""
        if all(part.isidentifier() for part in name.split(".")) and not hasattr(builtins, name):
            found[name] = None
    return tuple(found)


def _bytecode(code: CodeType) -> str:
    inner = [_bytecode(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def called(make: Callable[..., Any]) -> str:
    """A callable as a person would write it. Its repr has an address, and two processes have to agree on a text."""
    if isinstance(make, functools.partial):
        keywords = [f"{name}={_short(value)}" for name, value in make.keywords.items()]
        return f"partial({', '.join([called(make.func), *map(_short, make.args), *keywords])})"
    return getattr(make, "__qualname__", type(make).__name__)


def _short(value: Any) -> str:
    return called(value) if callable(value) else repr(value) if isinstance(value, _LITERALS) else type(value).__name__
