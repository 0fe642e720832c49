"""Prometheus metrics and a health check over plain HTTP: counts and states, never contents."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server


class _Figures:
    """Reads the status when it is asked, so nothing is counted twice."""

    def __init__(self, status: Callable[[], dict[str, Any]]):
        self._status = status

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        facts = self._status()
        for name, text in (("epoch", "Epochs finished"), ("step", "Steps made"), ("steps", "Steps of the plan")):
            yield GaugeMetricFamily(f"cutlayer_{name}", text, value=facts.get(name, 0))
        yield GaugeMetricFamily("cutlayer_accuracy", "Last validation accuracy", value=facts.get("accuracy") or 0.0)
        yield CounterMetricFamily(
            "cutlayer_rewinds", "Times all went back to a snapshot", value=facts.get("rewinds", 0)
        )
        yield CounterMetricFamily("cutlayer_skipped_turns", "Turns of absent clients", value=facts.get("skipped", 0))
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
        for one in facts.get("clients", []):
            there.add_metric([one["name"]], float(one["connected"]))
        yield there


class _Quiet(WSGIRequestHandler):
    def log_message(self, *ignored: Any) -> None:
        pass


def start_metrics(listen: str, status: Callable[[], dict[str, Any]]) -> int:
    """Serve /metrics and /healthz from a thread of their own; returns the port."""
    import threading

    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(_Figures(status))  # type: ignore[arg-type]
    metrics = make_wsgi_app(registry)

    def answer(environment: dict[str, Any], start: Any) -> Any:
        if environment["PATH_INFO"] == "/healthz":
            facts = status()
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"state": facts["state"], "missing": facts["missing"]}).encode()]
        return metrics(environment, start)

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--metrics is HOST:PORT; got {listen!r}")
    server = make_server(host, int(port), answer, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)
