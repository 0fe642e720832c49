"""What a run's server noticed of its clients, beside what malicious ones achieved."""

from collections.abc import Collection, Sequence
from typing import Any

from ..engines.local.run import LocalRun
from ..engines.poison_report import _mean, achieved, malicious
from .rows import DetectorRow


def honest(run: LocalRun) -> list[DetectorRow]:
    """Of a run without malicious clients, a row a detector of the server: every alarm is a false one."""
    return [_rates(watch.report(), "alarms") for watch in run.coordinator.watches]


class PoisonTrial:
    """Called between the turns of a run with malicious clients. Nobody is left out, whoever is flagged: at each
    detector's first true alarm it is written down how well the attack went by then."""

    def __init__(self, run: LocalRun):
        self._run, self._bad = run, set(malicious(run) or ())
        self._first: dict[int, DetectorRow] = {}

    def __call__(self) -> None:
        poison, run = self._run.plan.poison, self._run
        assert poison is not None
        for place, watch in enumerate(run.coordinator.watches):
            if place not in self._first and (rounds := first_true(watch.flagged(), self._bad)):
                rate = _mean(run.evaluate(poison.attacked(run.parts.test)))
                self._first[place] = {"delay": rounds, "success_then": rate}

    def told(self) -> dict[str, Any]:
        """What the attack came to, and what each detector of the server noticed of it."""
        poison = self._run.plan.poison
        assert poison is not None
        return {
            **achieved(self._run),
            "has_trigger": poison.has_trigger,
            "detectors_attacked": [self._row(place) for place in range(len(self._run.coordinator.watches))],
        }

    def _row(self, place: int) -> DetectorRow:
        report = self._run.coordinator.watches[place].report(self._bad)
        against = report["against"]
        wrong = {**report, "wrong": round((against["false_alarms"] or 0.0) * report["rounds"])}
        return {
            **_rates(wrong, "wrong"),
            "detected": place in self._first,
            **self._first.get(place, {"delay": None, "success_then": None}),
            "suspects": report["suspects"],
            "z": against["z"],
            "f1": against["f1"],
        }


def first_true(flagged: Sequence[Collection[int]], bad: Collection[int]) -> int | None:
    """How many rounds it took to flag a malicious client, the last of them included; None: it never was."""
    return next((place for place, found in enumerate(flagged, 1) if set(found) & set(bad)), None)


def _rates(report: dict[str, Any], alarms: str) -> DetectorRow:
    """How often it called for nothing."""
    rounds, count = report["rounds"], report[alarms]
    return {
        "detector": report["detector"],
        "rounds": rounds,
        "false_alarms": count,
        "false_alarms_per_1000": 1000 * count / rounds if rounds else None,
        "threshold": report["threshold"],
    }
