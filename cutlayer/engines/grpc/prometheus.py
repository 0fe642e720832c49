"""A party's status as Prometheus metrics: counts and states, never contents."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .health import unready

Facts = Mapping[str, Any]
# Name, what it is, and where it comes from: the plain figures.
GAUGES: tuple[tuple[str, str, Callable[[Facts], float]], ...] = (
    ("epoch", "Epochs finished", lambda facts: facts.get("epoch", 0)),
    ("step", "Steps made", lambda facts: facts.get("step", 0)),
    ("steps", "Steps of the plan", lambda facts: facts.get("steps", 0)),
    ("accuracy", "Last validation accuracy", lambda facts: facts.get("accuracy") or 0.0),
    ("ready", "Whether it is doing its work: what /readyz says", lambda facts: not unready(facts)),
    ("stalled", "Whether nothing moves for far longer than a step takes", lambda facts: facts.get("stalled", False)),
    ("step_seconds", "Seconds of most steps", lambda facts: facts.get("step_seconds") or 0.0),
    ("since_step_seconds", "Seconds since anything moved", lambda facts: facts.get("since_step") or 0.0),
    ("missing_clients", "Clients that never came", lambda facts: len(facts["missing"])),
)
COUNTERS = (
    ("rewinds", "Times all went back to a snapshot", "rewinds"),
    ("skipped_turns", "Turns of absent clients", "skipped"),
)


class _Figures:
    """Reads the status when it is asked, so nothing is counted twice."""

    def __init__(self, facts: Facts):
        self._facts = facts

    def collect(self) -> Iterator[Any]:
        facts = self._facts
        for name, text, value in GAUGES:
            yield GaugeMetricFamily(f"cutlayer_{name}", text, value=float(value(facts)))
        for name, text, key in COUNTERS:
            yield CounterMetricFamily(f"cutlayer_{name}", text, value=facts.get(key, 0))
        about = GaugeMetricFamily("cutlayer_build_info", "Which version runs which plan", labels=["version", "plan"])
        about.add_metric([facts["version"], facts["plan"]], 1.0)
        yield about
        refused = CounterMetricFamily("cutlayer_refused", "Refusals by name", labels=["name"])
        for name, count in facts["refused"].items():
            refused.add_metric([name], count)
        yield refused
        crossed = CounterMetricFamily("cutlayer_bytes", "Bytes of frames", labels=["kind", "direction"])
        messages = CounterMetricFamily("cutlayer_messages", "Messages", labels=["kind", "direction"])
        for row in facts.get("ledger", {}).get("rows", []):
            crossed.add_metric([row["kind"], row["direction"]], row["bytes"])
            messages.add_metric([row["kind"], row["direction"]], row["messages"])
        yield crossed
        yield messages
        there = GaugeMetricFamily("cutlayer_connected", "Whether a client is connected", labels=["client"])
        silent = GaugeMetricFamily("cutlayer_silent_seconds", "Seconds since a client was heard", labels=["client"])
        for one in facts.get("clients", []):
            there.add_metric([one["name"]], float(one["connected"]))
            if one["silent"] is not None:
                silent.add_metric([one["name"]], one["silent"])
        yield there
        yield silent
        ends = GaugeMetricFamily(
            "cutlayer_certificate_end_timestamp_seconds", "When a certificate ends", labels=["whose"]
        )
        for who, when in facts.get("certificates", {}).items():
            ends.add_metric([who], datetime.fromisoformat(when).timestamp())
        yield ends


def exposition(facts: Facts) -> tuple[str, bytes]:
    """Content type and text of /metrics."""
    registry = CollectorRegistry()
    registry.register(_Figures(facts))  # type: ignore[arg-type]
    return CONTENT_TYPE_LATEST, generate_latest(registry)
