"""Many runs in one table: victims, attackers, judges, verdicts and reports.

`audit(AuditSpec(plan, guards=[...]), loaded)` fills the table, `report.write` makes files of it, `compare` puts
variants of one plan side by side.
"""

from ..core.lazy import lazy

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

__getattr__ = lazy(__name__, _HOMES)
