"""Many runs in one table: victims, attackers, judges, verdicts and reports.

`audit(AuditSpec(plan, guards=[...]), loaded)` fills the table, `report.write` makes files of it, `compare` puts
variants of one plan side by side.
"""

from typing import TYPE_CHECKING

from ..core.lazy import lazy as _lazy

_HOMES = {
    "audit": "matrix",
    "AuditSpec": "spec",
    "Resources": "spec",
    "strongest": "verdicts",
    "verdict": "verdicts",
    "check": "",
    "compare": "",
    "report": "",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from . import check as check
    from . import compare as compare
    from . import report as report
    from .matrix import audit as audit
    from .spec import AuditSpec as AuditSpec
    from .spec import Resources as Resources
    from .verdicts import strongest as strongest
    from .verdicts import verdict as verdict
else:
    __getattr__, __dir__ = _lazy(__name__, _HOMES)
