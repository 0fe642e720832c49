"""Protocols, one a file: where a network is cut, what crosses, and what each side builds for it.

An import line here is all that registers one: `__all__`, and with it every name a person may type, follows.
"""

from ...core.spec import plug_ins
from .alone import Alone as Alone
from .base import Cut as Cut
from .base import Protocol as Protocol
from .bypass import Bypass as Bypass
from .federated import Federated as Federated
from .ushaped import UShaped as UShaped
from .vanilla import Vanilla as Vanilla

__all__ = plug_ins(globals(), Protocol)
