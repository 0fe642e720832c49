"""What a run's server noticed of its clients, beside what malicious ones achieved."""

from typing import Any

from .local.run import LocalRun


def watched(run: LocalRun) -> dict[str, Any]:
    """`server_detectors`, one report a detector, and `poison`: what the attack of malicious clients came to."""
    found: dict[str, Any] = {}
    if run.coordinator.watches:
        found["server_detectors"] = [watch.report(malicious(run)) for watch in run.coordinator.watches]
    if run.plan.poison is not None:
        found["poison"] = achieved(run)
    return found


def malicious(run: LocalRun) -> tuple[int, ...] | None:
    poison, plan = run.plan.poison, run.plan
    return None if poison is None else poison.members(plan.clients, plan.seed)


def achieved(run: LocalRun) -> dict[str, Any]:
    """What malicious clients want of the network, and how often they get it now."""
    poison, test = run.plan.poison, run.parts.test
    assert poison is not None
    return {
        "attack": repr(poison),
        "clients": list(malicious(run) or ()),
        "success_rate": _mean(run.evaluate(poison.attacked(test))),
        "success_without": _mean(run.evaluate(poison.plain(test))),
        "clean_accuracy": _mean(run.evaluate(test)),
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
