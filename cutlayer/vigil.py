"""What a run's server noticed of its clients, beside what malicious ones achieved."""

from typing import Any

from .engines.local import LocalRun


def watched(run: LocalRun) -> dict[str, Any]:
    """`server_watch`, one report a detector, and `poison`: what the attack of malicious clients came to."""
    poison, plan = run.plan.poison, run.plan
    malicious = None if poison is None else poison.members(plan.clients, plan.seed)
    found: dict[str, Any] = {}
    if run.watches:
        found["server_watch"] = [watch.report(malicious) for watch in run.watches]
    if poison is not None:
        test = run.parts.test
        found["poison"] = {
            "attack": repr(poison),
            "clients": list(malicious or ()),
            "success_rate": _mean(run.evaluate(poison.attacked(test))),
            "success_without": _mean(run.evaluate(poison.plain(test))),
            "clean_accuracy": _mean(run.evaluate(test)),
        }
    return found


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
