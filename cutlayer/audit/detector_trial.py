"""Detectors on trial: alarms are noted, nobody stops, and the judge says how much had leaked by then."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from ..engines.local.run import LocalRun
from .rows import DetectorRow


@contextmanager
def on_trial() -> Iterator[None]:
    """Meters do not warn where nobody is to act on it: an audit says in the end what they saw."""
    log = logging.getLogger("cutlayer.watch")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class DetectorTrial:
    """Called after every step of a run. Under attack the first alarm counts, in honest training every one."""

    def __init__(
        self, run: LocalRun, damage: Callable[[int], dict[str, Any]] = lambda client: {}, honest_steps: int = 0
    ):
        """`damage` says what an attacker would make of a client's data now; it begins after `honest_steps`."""
        self._run, self._damage, self._honest_steps = run, damage, honest_steps
        for party in run.clients[1:]:  # the first one is attacked: nobody asks how much leaks of the others
            party.detection.meters = False
        self._alarms: dict[str, int] = {repr(one): 0 for one in run.plan.client_detectors}
        self._first: dict[str, dict[str, Any]] = {}

    def __call__(self) -> None:
        for client in self._run.clients:
            for name, why in client.detection.alarms():
                self._alarms[name] += 1
                if name not in self._first and self._run.progress.step > self._honest_steps:
                    self._first[name] = {"client": client.number, "why": why, **self._damage(client.number)}
                    self._first[name]["steps"] = self._run.progress.step - self._honest_steps

    def finish(self) -> None:
        """The training is over: what the detectors of the client that is attacked have to say in the end."""
        self._run.clients[0].detection.finish()
        self()

    def honest(self) -> list[DetectorRow]:
        """Of a run without an attacker, a row a detector."""
        rows = self._rows("lowest")
        steps = max(1, self._run.progress.step)
        return [
            {**row, "steps": steps, "false_alarms": count, "false_alarms_per_1000": 1000 * count / steps}
            for row, count in zip(rows, self._alarms.values(), strict=True)
        ]

    def attacked(self) -> list[DetectorRow]:
        """Of a run with one: whether it was noticed, how long after it began, and what had leaked by then."""
        return [
            {**row, "detected": row["detector"] in self._first, **self._delay(row["detector"])}
            for row in self._rows("score")
        ]

    def _delay(self, name: str) -> DetectorRow:
        first = dict(self._first.get(name, {"steps": None}))
        return cast(DetectorRow, {"delay": first.pop("steps"), **first})

    def _rows(self, figure: str) -> list[DetectorRow]:
        """The lowest over clients of what each says at the end."""
        reports = [client.detection.report() for client in self._run.clients]
        rows: list[DetectorRow] = []
        for place, one in enumerate(self._run.plan.client_detectors):
            found = [report[place][figure] for report in reports if report and report[place][figure] is not None]
            first = next((report[place] for report in reports if report), {})  # of the client that is attacked
            told = {name: first[name] for name in one.audited if name in first}
            rows.append(cast(DetectorRow, {"detector": repr(one), figure: min(found, default=None), **told}))
        return rows
