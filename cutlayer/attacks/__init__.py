"""Attacks, one idea a file: what a server can find out from what it sees."""

from .base import Attack as Attack
from .base import Attacker as Attacker
from .base import Knowledge as Knowledge
from .base import KnownGuard as KnownGuard
from .decoder import Decoder

__all__ = ["Decoder"]
