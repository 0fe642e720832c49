"""Split inference with a trained network: in this process, or with the body on a server."""

import csv
import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import certs, checkpoint, runs
from .batch import in_batches
from .data.base import Source
from .engines.site import Visitor
from .engines.uplink import Address
from .ledger import DOWN, UP, Ledger
from .message import Kind, through
from .parties import build_client
from .plan import Plan
from .seeds import derive
from .turn import Client, load, predict
from .worker import as_batch, task_of


@dataclass(frozen=True)
class Predictions:
    """Class and confidence for every sample, and what it cost."""

    classes: tuple[str, ...]
    logits: Tensor
    labels: Tensor
    seconds: list[float]  # of each batch, from input to answer
    bytes_up: float  # a sample
    bytes_down: float

    def summary(self) -> dict[str, Any]:
        right = (self.logits.argmax(1) == self.labels).double().mean()
        times = torch.tensor(self.seconds, dtype=torch.float64) * 1e3
        return {
            "samples": len(self.logits),
            "batches": len(self.seconds),
            "accuracy": float(right),
            "latency_ms": {"median": float(times.quantile(0.5)), "p95": float(times.quantile(0.95))},
            "samples_per_second": len(self.logits) / sum(self.seconds),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def as_csv(self) -> str:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["sample", "predicted", "confidence", "label"])
        confidences, found = self.logits.softmax(1).max(1)
        for number, (which, sure, label) in enumerate(zip(found, confidences, self.labels, strict=True)):
            rows.writerow([number, self.classes[which], f"{sure:.4f}", self.classes[label]])
        return text.getvalue()


def predict_with(
    folder: Path,
    *,
    given: Plan | None = None,
    server: str | None = None,
    name: str = "",
    identity: Path | None = None,
    data: Source | None = None,
    data_dir: Path | None = None,
    limit: int = 0,
    size: int = 64,
    device: str = "cpu",
    on_batch: Callable[[int, int], None] = lambda done, all: None,
) -> Predictions:
    """Test samples of `data` (default: the plan's) through the network in `folder`.

    `folder` is one of `cutlayer train`, or of `cutlayer join` together with the `server` that has the body.
    """
    plan = runs.load_plan(folder, given)
    loaded = (data or plan.data).load(data_dir)
    samples = loaded.test if not limit else loaded.test[torch.arange(min(limit, len(loaded.test)))]
    ledger = Ledger()
    with _client(plan, folder, loaded, ledger, server, name, identity, data_dir, device) as client:
        # Noise is drawn anew by every process: the same image twice must not meet the same noise.
        secret = derive(plan.private_seed or 0, "predict", secrets.token_hex(8))
        size = plan.batch if plan.guard.mixes_samples else size
        logits, seconds = [], []
        for number, index in enumerate(in_batches(torch.arange(len(samples)), size, plan.least_batch)):
            began = time.perf_counter()
            batch = as_batch(samples, index, derive(secret, number)).to(device)
            logits.append(predict(client, [batch]).cpu())
            seconds.append(time.perf_counter() - began)
            on_batch(sum(map(len, logits)), len(samples))
    up, down = (ledger.bytes[Kind.PREDICT.name, way] / len(samples) for way in (UP, DOWN))
    classes = tuple(map(str, loaded.classes))
    return Predictions(classes, torch.cat(logits), samples.y, seconds, up, down)


@contextmanager
def _client(
    plan: Plan,
    folder: Path,
    loaded: Any,
    ledger: Ledger,
    server: str | None,
    name: str,
    identity: Path | None,
    data_dir: Path | None,
    device: str,
) -> Iterator[Client]:
    if server is None:
        run = runs.ready(plan, data_dir, device)
        which = folder / ("best.safetensors" if plan.patience else "last.safetensors")
        run.restore(*checkpoint.load(which))
        client = run.clients[0]
        if run.shared:
            load(client, run.shared)
        client.remote._send = through([ledger], run.server.handle)
        yield client
        return
    path = folder / "client.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no finished part in a run: there is no {path.name} in it")
    state, facts = checkpoint.load(path)
    task = task_of(loaded.train, len(loaded.classes))
    address = Address(server, certs.read_identity(identity, "client") if identity else None)
    with Visitor(plan, task, name, address, ledger) as visitor:
        client = build_client(plan, task, visitor.number, visitor.ask, device)
        if visitor.number != facts["number"]:
            raise ValueError(f"{folder} is client {facts['number']}'s, {name} is client {visitor.number}")
        load(client, {key: tensor.to(device) for key, tensor in state.items()})
        yield client
