"""A class or function by where it is, with literal arguments: `my.py:Model(width=8)`, `package.module:Model`.

For things that are no specs themselves, such as a user's network. Nothing is evaluated; whether a file may be
imported is decided by whoever reads the text.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .files import load_file, load_module
from .origin import BARE_PATH
from .placeholders import Origin, rewritten

Home = Callable[[Origin], ModuleType]


def import_home(origin: Origin) -> ModuleType:
    """The module of something that a person here has named."""
    return load_file(origin.place) if origin.is_file else load_module(origin.place)


_HOME: ContextVar[Home] = ContextVar("home", default=import_home)


@contextmanager
def found_by(home: Home) -> Iterator[None]:
    """While a text is read: where modules come from. A text that nobody typed here imports none."""
    token = _HOME.set(home)
    try:
        yield
    finally:
        _HOME.reset(token)


def maker(text: str) -> Callable[[], Any]:
    """What `text` names, to be called without arguments."""
    origin, node = _read(text)
    home = _HOME.get()(origin)
    thing = getattr(home, origin.name, None)
    if not callable(thing):
        offers = [n for n, one in vars(home).items() if callable(one) and one.__module__ == home.__name__]
        raise ValueError(
            f"{origin.place} has no class or function {origin.name!r}; it has {', '.join(offers) or 'none'}"
        )
    if not isinstance(node, ast.Call):
        return thing
    try:
        arguments = [ast.literal_eval(one) for one in node.args]
        keywords = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    except ValueError as error:
        raise ValueError(f"cannot read {text!r}: arguments are numbers, strings, truth values or tuples") from error
    return functools.partial(thing, *arguments, **keywords) if arguments or keywords else thing


def is_place(text: str) -> bool:
    """Whether a text is that of something by where it is."""
    try:
        _read(text)
    except ValueError:
        return False
    return True


def without_place(text: str) -> str:
    """The name and the arguments alone, which are the same on every machine."""
    origin, _ = _read(text)
    place = origin.place if not origin.is_file or BARE_PATH.fullmatch(origin.place) else repr(origin.place)
    return text.strip().removeprefix(f"{place}:")


def _read(text: str) -> tuple[Origin, ast.expr]:
    plain, origins = rewritten(text.strip())
    try:
        node = ast.parse(plain, mode="eval").body
    except SyntaxError:
        node = ast.Constant(None)
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id not in origins:
        raise ValueError(
            f"cannot read {text!r}: write 'my.py:Model' or 'package.module:Model', with arguments if it takes any: "
            "'my.py:Model(width=8)'"
        )
    return origins[name.id], node
