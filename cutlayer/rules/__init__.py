"""Rules, one idea a file: which weights the next turn starts from."""

from .base import Rule as Rule
from .base import Update as Update
from .latest import Latest

__all__ = ["Latest"]
