"""What an orchestrator asks over plain HTTP: /healthz (alive), /readyz (doing its work), /metrics (figures).

A port of its own, apart from the run's: counts and states, never contents.
"""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Status = Callable[[], dict[str, Any]]
SLOW = 10.0  # seconds a caller may take to ask


def unready(facts: Mapping[str, Any]) -> str:
    """Why a party is not doing its work, in a sentence; empty: it is."""
    if facts["state"] == "finished":
        return ""
    if facts["missing"]:
        return f"{', '.join(facts['missing'])} never came"
    if facts.get("away"):
        return f"away: {', '.join(facts['away'])}"
    if facts.get("stalled"):
        return f"nothing has moved for {facts['since_step']:.0f} s, where a step takes {facts['step_seconds']:.3g} s"
    return "" if facts["state"] == "training" else f"it is {facts['state']}"


def refuse_no_place(listen: str | None) -> None:
    """Before anything is begun."""
    host, _, port = (listen or "any:0").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--metrics is HOST:PORT; got {listen!r}")
    if listen is not None:
        from . import prometheus  # noqa: F401 - if its package is missing, say so now


def start_health(listen: str, status: Status) -> ThreadingHTTPServer:
    """Answer from threads of their own until the server is shut down; its port is `server_port`."""
    from .prometheus import exposition

    refuse_no_place(listen)
    host, _, port = listen.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            facts = status()
            if path == "/healthz":
                self._send(200, {"state": facts["state"], "missing": facts["missing"]})
            elif path == "/readyz":
                why = unready(facts)
                self._send(503 if why else 200, {"ready": not why, "state": facts["state"], "why": why})
            elif path == "/metrics":
                kind, text = exposition(facts)
                self._reply(200, kind, text)
            else:
                self._send(404, {"why": "there is /healthz, /readyz and /metrics"})

        def _send(self, code: int, facts: Mapping[str, Any]) -> None:
            self._reply(code, "application/json", json.dumps(facts).encode())

        def _reply(self, code: int, kind: str, text: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *ignored: Any) -> None:
            pass

    try:
        server = _Quiet((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise OSError(f"--metrics {listen}: {error.strerror or error}; choose another port") from error
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up in the middle is none of an operator's business."""
