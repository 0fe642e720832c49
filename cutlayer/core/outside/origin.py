"""How a class from outside is written: `path/to/file.py:SignBit`, or `package.module:SignBit`."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .files import PACKAGE, named

_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)
BARE_PATH = re.compile(r"(?:[A-Za-z]:)?[\w./\\~+-]+\.py")  # any other path is written in quotes


def is_outside(thing: type) -> bool:
    """Whether a class (or function) is none of this package."""
    module = thing.__module__ or ""
    return module.partition(".")[0] != PACKAGE.partition(".")[0] or module in named()


def written(thing: type) -> str:
    """The name of a class as a spec has it. What cannot be imported (a class of a notebook) has no origin."""
    name, module = thing.__qualname__, thing.__module__
    if _PLAIN.get() or not is_outside(thing) or "." in name:
        return thing.__name__
    if (file := named().get(module)) is not None:
        return f"{file.typed if BARE_PATH.fullmatch(file.typed) else repr(file.typed)}:{name}"
    importable = module not in ("__main__", "__mp_main__") and module in sys.modules
    return f"{module}:{name}" if importable and getattr(sys.modules[module], name, None) is thing else name


def plain(thing: object) -> str:
    """The text of a spec without origins: the same wherever its file lies, so random numbers may hang on it."""
    with plain_names():
        return repr(thing)


def is_plain() -> bool:
    """Whether texts are being written that two machines compare."""
    return _PLAIN.get()


@contextmanager
def plain_names() -> Iterator[None]:
    """Names without their origin: where a file lies is not what two machines agree on."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)
